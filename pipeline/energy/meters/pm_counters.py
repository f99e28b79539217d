"""Cray's pm_counters, as on LUMI: energy of the node and of its processors, memory and accelerators.

Each file holds a value, its unit and since when it is so, such as `34283186 J 1460038098391936 us`, which is Unix time
(a Cray EX255a was seen to count from another moment); `freshness` goes up with every look of the node's controller, ten
a second. The node includes its accelerators; where there is none its file holds 0. Source: HPE, "User Access to Compute
Node Power Data" (Cray-HPE/docs-csm), whose one accelerator has no number; the names of the files are those of
/sys/cray/pm_counters. Nodes of MI300A have no files of processors and memory.

An accelerator is a card of two dies, and the processors and the memory are one part each: these are the same parts as
those of AMD SMI and RAPL, which are not read where pm_counters are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pipeline.energy.meters.part import Part
from pipeline.energy.readings import Component, Reading

COUNTERS = Path("/sys/cray/pm_counters")
DEVICES = Path("/sys/class/kfd/kfd/topology/nodes")
STALE_SECONDS = 1.0
FILES: dict[str, tuple[Component, str]] = {
    "energy": ("node", ""),
    "cpu_energy": ("package", "processors"),
    "memory_energy": ("dram", "memory"),
}


def _value(path: Path) -> tuple[float, float] | None:
    """Return joules and since when, in seconds of the controller's time; None where the file does not say."""
    try:
        found = re.fullmatch(r"(\d+) J (\d+) us\s*", path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return (float(found[1]), int(found[2]) / 1e6) if found else None


def _gpus(devices: Path) -> int:
    """Return how many GPUs AMD's driver shows, a die each; a processor is a device of it too, with the number 0."""
    shown = (path.read_text(encoding="ascii").strip() for path in devices.glob("*/gpu_id"))
    return sum(number not in ("", "0") for number in shown)


class PmCounters:
    """The counters of a node, by the stamps that they carry."""

    def __init__(self, folder: Path, devices: Path = DEVICES) -> None:
        self._folder = folder
        accelerators = sorted(folder.glob("accel[0-9]*_energy")) or [*folder.glob("accel_energy")]
        boards = [path for path in accelerators if (_value(path) or (1.0,))[0] > 0]
        named = {**FILES, **{path.name: ("board", path.name.removesuffix("_energy")) for path in boards}}
        self._parts: dict[Path, Part] = {
            folder / name: Part("pm_counters", component, part)
            for name, (component, part) in named.items()
            if (folder / name).exists()
        }
        dies = max(_gpus(devices) // len(boards), 1) if boards else 0
        self.gpus: Sequence[str] = [path.name.removesuffix("_energy") for path in boards for _ in range(dies)]
        self._fresh: tuple[str, float] | None = None

    def _is_stale(self, now: float) -> bool:
        """Return whether the controller has not looked since a second and more."""
        try:
            freshness = (self._folder / "freshness").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return False
        before = self._fresh
        if before is None or before[0] != freshness:
            self._fresh = freshness, now
        return before is not None and before[0] == freshness and now - before[1] >= STALE_SECONDS

    def read(self, now: float) -> None:
        """Look at every counter."""
        stale = self._is_stale(now)
        for path, part in self._parts.items():
            found = _value(path)
            if stale:
                part.lost("the counters are stale, freshness does not go up")
            elif found is None:
                part.lost("its counter could not be read")
            else:
                part.counter(*found, now)

    def take(self, now: float) -> list[Reading]:
        """Return the readings since the last call."""
        self.read(now)
        return [part.take(now, "counter") for part in self._parts.values()]


def find(folder: Path = COUNTERS, devices: Path = DEVICES) -> PmCounters | None:
    """Return the meter; None on a node that has none."""
    return PmCounters(folder, devices) if _value(folder / "energy") is not None else None
