"""What nodes draw at present, by the last interval that their meters have written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pipeline.energy.readings import Component, Interval, Reading, read_intervals

LATELY_SECONDS = 150.0  # a meter writes once a minute, of a long job; one that is older tells of what is over
WORDS: dict[Component, str] = {"node": "whole", "package": "processors", "dram": "memory", "board": "devices"}


def power(files: Iterable[Path], now: float) -> str:
    """Return the measured power of the nodes of these files, `2.31 kW (processors, devices; 2 nodes)`; or nothing.

    Each node counts once, with its whole where a meter reads that, else with the parts that are read.

    Args:
        files: of `provenance/readings`.
        now: in Unix seconds.
    """
    last: dict[str, Interval] = {}
    for file in files:
        with suppress(OSError):
            for interval in deque(read_intervals(file, []), maxlen=1):
                if interval.node not in last or interval.ended > last[interval.node].ended:
                    last[interval.node] = interval
    watts, parts, nodes = 0.0, set[Component](), 0
    for interval in last.values():
        counted = _counted(interval.readings)
        if now - interval.ended <= LATELY_SECONDS and interval.seconds > 0 and counted:
            watts += sum(reading.joules or 0.0 for reading in counted) / interval.seconds
            parts |= {reading.component for reading in counted}
            nodes += 1
    if not nodes:
        return ""
    told = ", ".join(word for component, word in WORDS.items() if component in parts)
    return f"{watts / 1000:.2f} kW ({told}; {nodes} {'node' if nodes == 1 else 'nodes'})"


def _counted(readings: Iterable[Reading]) -> list[Reading]:
    measured = [one for one in readings if one.label == "measured" and one.joules is not None]
    once = {(one.component, one.part): one for one in reversed(measured)}  # of two meters of one part the first
    whole = [one for (component, _), one in once.items() if component == "node"]
    return whole[:1] or [*once.values()]
