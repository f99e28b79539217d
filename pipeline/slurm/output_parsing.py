"""Parse the values that Slurm's commands print: resources, node lists, sizes, times and states.

Sites print them in different forms. All of Polder's code that reads such a value calls a function of this module.
"""

from __future__ import annotations

import re

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
NO_NODES = ("", "None assigned", "(null)", "n/a", "N/A", "Unknown")
# gpu:a100:4 (GRES), gres:gpu:4 (squeue), gres/gpu:a100=4 (TRES), Gres=gpu:4 (scontrol); without a number, one. A type
# of digits alone, such as 3090, is one before a number.
_GPU = re.compile(
    r"(?:\w+=)?(?:gres[/:])?gpu(?P<type>(?::[^:=]+(?=[:=]\d+$)|:[^:=]*[^:=\d][^:=]*)*)(?:(?P<sign>[:=])(?P<number>\d+))?",
    re.I,
)
# NVIDIA's profiles of Multi-Instance GPU: 3g.20gb, 1g.10gb+me; sites write 1g_5gb and mig as well.
_SLICE = re.compile(r"\d+g[._]\d+gb|(?<![a-z])mig(?![a-z])", re.I)


def parse_tres(text: str) -> dict[str, str]:
    """Return the trackable resources of `cpu=2,gres/gpu:a100=4,mem=4G`, name to value."""
    return dict(entry.split("=", 1) for entry in text.split(",") if "=" in entry)


def count_gpus(text: str) -> int:
    """Return the number of whole GPUs in a list of resources, of TRES or of GRES.

    TRES name the sum of all types next to the types, or only one of the two, as AccountingStorageTRES of the site says.
    Slices of a GPU (MIG), shards, memory and utilization of GPUs are no GPUs.
    """
    total = typed = slices = 0
    for entry in re.sub(r"\([^)]*\)", "", text).split(","):  # (S:0-1) and (IDX:0,2-3) say which ones
        match = _GPU.fullmatch(entry.strip())
        if match is None:
            continue
        number = int(match["number"] or 1)
        if not match["type"] and match["sign"] == "=":
            total += number
        else:
            typed += number
            slices += number if _SLICE.search(match["type"]) else 0
    return max(total, typed) - slices


def list_hosts(node_list: str) -> list[str]:
    """Return the nodes of a list such as `node[1-2]-ib,login`, sorted; without nodes an empty list."""
    if node_list.strip() in NO_NODES:
        return []
    return list(NodeSet(node_list, resolver=RESOLVER_NOGROUP))  # to Slurm @ is no group of nodes


def parse_bytes(text: str, unit: str = "") -> int | None:
    """Return the bytes of a size such as 201872K, 1.5G or 0; None where there is none.

    A request of older Slurms ends in c or n: 4000Mc for each core, 4Gn for each node. Their number of cores and nodes
    is not in the text, so it is no size.

    Args:
        unit: the unit of a number without one: nothing for MaxRSS, M for the memory of TRES.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)([KMGTP]?)", text.strip(), re.I)
    return round(float(match[1]) * UNITS[match[2].upper() or unit]) if match else None


def parse_seconds(text: str) -> float | None:
    """Return the seconds of a time such as 1-02:03:04, 02:03:04, 03:04.500 or 1-12; 0 where the text is empty.

    None for a word: UNLIMITED, Partition_Limit, INVALID, NOT_SET.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2}(?:\.\d+)?)", text.strip())
    if match is None:
        return None if text.strip() else 0.0
    parts = [float(part) for part in match[2].split(":")]
    if match[1]:  # days-hours[:minutes[:seconds]]
        parts += [0.0] * (3 - len(parts))
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + part
    return seconds + 86400 * int(match[1] or 0)


def parse_minutes(limit: str) -> int | None:
    """Return a time limit in whole minutes; None where there is no limit. A number alone is one of minutes."""
    if limit.isdigit():
        return int(limit)
    seconds = parse_seconds(limit)
    return None if seconds is None else int(seconds // 60)


def parse_state(text: str) -> str:
    """Return the state of a job or a node without what follows it, as in `CANCELLED by 1000` or `MIXED+PLANNED`."""
    match = re.match(r"[A-Za-z_]+", text.strip())
    return match[0] if match else ""
