"""Which process computes slower than the others, by what their probes tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

UNKNOWN = -1.0  # between processes, where every figure has to be a number
SLOW = 1.3
"""From this many times the median of all processes on, a process is told by name."""


def told(seconds: Sequence[float]) -> dict[str, float]:
    """Return what a step's line tells of the processes' probes; nothing where one is not known."""
    if min(seconds) < 0:
        return {}
    most = max(seconds)
    return {
        "probe_seconds": median(seconds),
        "slowest_process": seconds.index(most),
        "slowest_process_ratio": most / median(seconds),
    }


def sentence(line: Mapping[str, Any], nodes: Sequence[str]) -> str | None:
    """Return who is slow by the line of a step, in a sentence; `nodes` are those of the processes in their order."""
    if line.get("slowest_process_ratio", 0.0) < SLOW:
        return None
    process = int(line["slowest_process"])
    return (
        f"process {process} on {nodes[process]} takes {line['slowest_process_ratio']:.2f} times as long as the median "
        "of all for the same work, and all wait for it"
    )
