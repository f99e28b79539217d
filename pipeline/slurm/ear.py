"""What EAR measured of jobs: the power of their nodes, read from what `eacct` prints or from its files.

EAR reads the power of whole nodes: on a node that a job shares with others, theirs is in it (2.4 times too much in a
published measurement). Its manuals do not agree on the unit of its energies, so joules are power × time here.
"""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel


class NodeEnergy(BaseModel):
    """The energy of one node while a job ran on it, all that runs on the node included."""

    node: str
    seconds: float
    watts: float
    gpu_watts: float

    @property
    def joules(self) -> float:
        """Power × time."""
        return self.watts * self.seconds


def _number(row: dict[str, Any], *names: str) -> float:
    return sum(float(row.get(name) or 0) for name in names)


def _together(rows: list[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    """Return the rows of a node in groups that overlap in time: each of a group has read the same node."""
    group: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (_number(row, "JOB_EARL_START_TIME"), _number(row, "STEPID"))):
        if group and _number(row, "JOB_EARL_START_TIME") >= max(_number(r, "JOB_EARL_END_TIME") for r in group):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _node(name: str, rows: list[dict[str, Any]]) -> NodeEnergy | None:
    """Return the energy of a node, each moment counted once however many steps or tasks have read it."""
    seconds = joules = gpu_joules = 0.0
    for group in _together(rows):
        first = min(_number(row, "JOB_EARL_START_TIME") for row in group)
        last = max(_number(row, "JOB_EARL_END_TIME") for row in group)
        longest = max(_number(row, "TIME_SEC") for row in group)  # the times of start and end are whole seconds
        lasted = longest if len(group) == 1 else max(longest, last - first)
        weights = sum(_number(row, "TIME_SEC") for row in group)
        if weights <= 0:
            continue
        power = sum(_number(row, "DC_NODE_POWER_W") * _number(row, "TIME_SEC") for row in group) / weights
        gpus = [f"GPU{number}_POWER_W" for number in range(8)]
        gpu_power = sum(_number(row, *gpus) * _number(row, "TIME_SEC") for row in group) / weights
        seconds, joules, gpu_joules = seconds + lasted, joules + power * lasted, gpu_joules + gpu_power * lasted
    if joules <= 0:
        return None
    return NodeEnergy(node=name, seconds=seconds, watts=joules / seconds, gpu_watts=gpu_joules / seconds)


def parse(lines: Iterable[str]) -> dict[str, list[NodeEnergy]]:
    """Return the energy of the nodes of each job from EAR's table: semicolons, a row per job, step, task and node.

    A node without a reading is left out: it was not measured.
    """
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in csv.DictReader(lines, delimiter=";"):
        rows.setdefault((str(row["JOBID"]), str(row["NODENAME"])), []).append(row)
    found: dict[str, list[NodeEnergy]] = {}
    for (job, name), group in sorted(rows.items()):
        node = _node(name, group)
        if node is not None:
            found.setdefault(job, []).append(node)
    return found


def ask(jobs: list[str]) -> dict[str, list[NodeEnergy]]:
    """Return the energy of the nodes of some jobs, by EAR's `eacct`; nothing where there is no EAR or no answer."""
    words = ["eacct", "-j", ",".join(jobs), "-l", "-n", "all", "-c", "no_file"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return {}
    lines = done.stdout.splitlines()
    header = next((number for number, line in enumerate(lines) if line.startswith("JOBID;")), None)
    return parse(lines[header:]) if done.returncode == 0 and header is not None else {}
