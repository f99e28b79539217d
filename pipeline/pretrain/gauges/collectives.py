"""What processes were about to exchange when one hung: torch's flight recorder, which keeps the last collectives."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def dump(path: Path) -> None:
    """Write the last collectives of this process as JSON, with their group, kind, sizes and number, oldest first."""
    if "torch" not in sys.modules:
        return  # not yet, and not now
    from pipeline.model.torch_private import flight_recordings

    for content in flight_recordings():
        if json.loads(content).get("entries"):
            path.write_bytes(content)
            return


def counts(path: Path) -> dict[str, tuple[int, str]]:
    """Return how many collectives of each group a process has begun, and what the last one was."""
    entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["entries"]
    found: dict[str, tuple[int, str]] = {}
    for entry in entries:
        if not entry["is_p2p"]:
            found[entry["process_group"][1]] = entry["collective_seq_id"], entry["profiling_name"]
    return found


def behind(paths: dict[int, Path], processes: int) -> str | None:
    """Return which process a hang waited for, in words; None where all have begun the same.

    That is who has begun fewer collectives than the others of a group, else who has dumped nothing. Of a process that
    tells nothing of a group nothing follows: only its last collectives are kept.

    Args:
        paths: by process, what each has dumped.
    """
    of_processes = {process: counts(path) for process, path in paths.items()}
    for group in sorted({name for found in of_processes.values() for name in found}):
        known = {process: found[group] for process, found in of_processes.items() if group in found}
        least, most = min(known.values()), max(known.values())
        if least[0] < most[0]:
            late = [process for process, found in sorted(known.items()) if found[0] == least[0]]
            have = "has" if len(late) == 1 else "have"
            kind = most[1].rpartition(":")[2]
            begun = f"begun {least[0]} collectives of {group}, others {most[0]}, the last a {kind}"
            return f"{_named(late)} {have} {begun}"
    silent = [process for process in range(processes) if process not in paths]
    return f"{_named(silent)} did not answer" if silent else None


def _named(processes: list[int]) -> str:
    numbers = ", ".join(map(str, processes))
    return f"process {numbers}" if len(processes) == 1 else f"processes {numbers}"
