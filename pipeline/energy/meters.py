"""Meter the parts of a node, by RAPL or Cray's pm_counters: joules between two takes, or why they are not known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from pipeline.energy.readings import MOST_WATTS, Component, Reading

LIMIT_TOLERANCE = 1.2  # by which a true figure may be above the limit that its hardware states
STUCK_SECONDS = 0.5  # from which on a counter that has not moved at all is one that stands still
COUNTER_PERIOD_SECONDS = 0.2  # counters are renewed so seldom: in less time they may show what was used in this
STAMP_TOLERANCE_SECONDS = 2.0  # by which the stamps of a counter may go on otherwise than the clock between two looks


class Meter(Protocol):
    """Something that tells joules of the node; times are seconds of Unix time that never jump."""

    @property
    def gpus(self) -> Sequence[str]:
        """The part that tells the energy of each GPU, in the driver's order: the same for two dies of a card."""

    def read(self, now: float) -> None:
        """Look at it, between two takes."""

    def take(self, now: float) -> list[Reading]:
        """Return the readings since the last call."""


class MeteredPart:
    """What one part has used since the last take.

    What cannot be trusted makes the whole of an interval unknown, and says why: a counter that was reset, could not be
    read or stands still, and more than the hardware can use.
    """

    def __init__(
        self,
        meter: str,
        component: Component,
        name: str,
        *,
        most_watts: float | None = None,
        range_joules: float | None = None,
    ) -> None:
        self.meter, self.component, self.name = meter, component, name
        self.most_watts = (most_watts or MOST_WATTS[component]) * LIMIT_TOLERANCE
        self.range_joules = range_joules
        self._last: tuple[float, float, float] | None = None  # joules or watts, moment, clock
        self._joules = 0.0
        self._problem: str | None = None
        self._began: float | None = None

    def lost(self, problem: str) -> None:
        """Write down that a stretch of this interval is not known; what is counted begins anew."""
        self._problem, self._last = self._problem or problem, None

    def _note_gap(self) -> None:
        """Where there is nothing to count from, what came before in this interval is not known, except in the first."""
        if self._last is None and self._began is not None:
            self._problem = self._problem or "it could not be read when the interval began"

    def counter(self, joules: float, moment: float, clock: float | None = None) -> None:
        """Take what an energy counter shows at a moment, in seconds.

        Where the moment is a stamp of the counter's own, `clock` is when it was looked at: both must go on alike, for
        else a stamp that leaps or stands would make any number of joules look possible.
        """
        self._note_gap()
        clock = moment if clock is None else clock
        before, self._last = self._last, (joules, moment, clock)
        if before is None:
            return
        used, stamped, seconds = joules - before[0], moment - before[1], clock - before[2]
        if abs(stamped - seconds) > STAMP_TOLERANCE_SECONDS:
            self._problem = self._problem or f"its stamps went on by {stamped:,.1f} s in {seconds:,.1f} s"
            return
        seconds = max(stamped, seconds)
        if used < 0 and self.range_joules and used + self.range_joules <= self.most_watts * seconds:
            used += self.range_joules
        if used < 0:
            self.lost("its counter was reset")
            self._last = joules, moment, clock
        else:
            self._add(used, seconds)

    def power(self, watts: float, moment: float) -> None:
        """Take what a part draws at a moment; between two it is the mean of both."""
        self._note_gap()
        before, self._last = self._last, (watts, moment, moment)
        if before is not None:
            self._add((watts + before[0]) / 2 * (moment - before[1]), moment - before[1])

    def _add(self, joules: float, seconds: float) -> None:
        longest = max(seconds, COUNTER_PERIOD_SECONDS)
        if joules > self.most_watts * longest:
            self._problem = self._problem or (
                f"it shows {joules / longest:,.0f} W, and such a part can draw {self.most_watts / LIMIT_TOLERANCE:,.0f} W"
            )
        else:
            self._joules += joules

    def take(self, now: float, method: Literal["counter", "power"]) -> Reading:
        """Return the reading since the last take."""
        problem = self._problem
        if self._began is None:
            problem = "it has only now been looked at"
        elif problem is None and self._joules == 0 and now - self._began >= STUCK_SECONDS:
            problem = "it shows no energy at all: its counter stands still"
        reading = Reading(
            component=self.component,
            part=self.name,
            joules=self._joules if problem is None else None,
            label="measured",
            method=method,
            meter=self.meter,
            problem=problem and f"{self.meter}{f' {self.name}' if self.name else ''}: {problem}",
        )
        self._joules, self._problem, self._began = 0.0, None, now
        return reading


class UnreadableMeter:
    """A meter that is there and cannot be read: each interval says so."""

    gpus: Sequence[str] = ()

    def __init__(self, meter: str, component: Component, problem: str) -> None:
        self._reading = Reading(
            component=component, joules=None, label="measured", method="counter", meter=meter, problem=problem
        )

    def read(self, now: float) -> None:
        """Do nothing."""

    def take(self, now: float) -> list[Reading]:
        """Return that nothing was read."""
        return [self._reading]


# RAPL: the energy counters of processor packages and memory, as Linux shows them (Documentation/power/powercap).
#
# Packages include their cores, and a `psys` zone would count them again: both are left out. A counter goes back to
# zero at `max_energy_range_uj`, some within minutes.


POWERCAP = Path("/sys/class/powercap")
MICROJOULES = 1e6
PEAK_FACTOR = 1.5  # short peaks are allowed above a package's long-term limit


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


class Rapl:
    """The zones below a powercap folder that can be read."""

    gpus: Sequence[str] = ()

    def __init__(self, zones: dict[Path, str]) -> None:
        self._parts: dict[Path, MeteredPart] = {}
        for zone, name in zones.items():
            limit, whole = _read_number(zone / "constraint_0_max_power_uw"), _read_number(zone / "max_energy_range_uj")
            self._parts[zone] = MeteredPart(
                "rapl",
                "dram" if name.startswith("dram") else "package",
                name,
                most_watts=limit / MICROJOULES * PEAK_FACTOR if limit else None,
                range_joules=whole / MICROJOULES if whole else None,
            )

    def read(self, now: float) -> None:
        """Look at every counter."""
        for zone, part in self._parts.items():
            counter = _read_number(zone / "energy_uj")
            if counter is None:
                part.lost("its counter could not be read")
            else:
                part.counter(counter / MICROJOULES, now)

    def take(self, now: float) -> list[Reading]:
        """Return the readings since the last call."""
        self.read(now)
        return [part.take(now, "counter") for part in self._parts.values()]


def find_rapl(powercap: Path = POWERCAP) -> Rapl | UnreadableMeter | None:
    """Return the meter; None where the kernel shows none, such as in a virtual machine."""
    zones: dict[Path, str] = {}
    readable = False
    for zone in sorted(powercap.glob("intel-rapl:*")):  # AMD's processors are shown under this name too
        try:
            name = (zone / "name").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if not name.startswith(("package", "dram")):
            continue
        readable |= _read_number(zone / "energy_uj") is not None
        # Memory is told apart by the package that it belongs to.
        zones[zone] = f"dram-{zone.name.split(':')[1]}" if name == "dram" else name
    if readable:  # a zone that cannot be read is told of beside those that can, so that no package is left out silently
        return Rapl(zones)
    # Since 2020 most systems let only root read them.
    return UnreadableMeter("rapl", "package", "rapl: only root may read its counters on this node") if zones else None


# Cray's pm_counters, as on LUMI: energy of the node and of its processors, memory and accelerators.
#
# Each file holds a value, its unit and since when it is so, such as `34283186 J 1460038098391936 us`, which is Unix
# time (a Cray EX255a was seen to count from another moment); `freshness` goes up with every look of the node's
# controller, ten a second. The node includes its accelerators; where there is none its file holds 0. Source: HPE,
# "User Access to Compute Node Power Data" (Cray-HPE/docs-csm), whose one accelerator has no number; the names of the
# files are those of /sys/cray/pm_counters. Nodes of MI300A have no files of processors and memory.
#
# An accelerator is a card of two dies, and the processors and the memory are one part each: these are the same parts
# as those of AMD SMI and RAPL, which are not read where pm_counters are.


PM_COUNTERS = Path("/sys/cray/pm_counters")
KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
STALE_SECONDS = 1.0
PM_FILES: dict[str, tuple[Component, str]] = {
    "energy": ("node", ""),
    "cpu_energy": ("package", "processors"),
    "memory_energy": ("dram", "memory"),
}


def _read_counter(path: Path) -> tuple[float, float] | None:
    """Return joules and since when, in seconds of the controller's time; None where the file does not say."""
    try:
        found = re.fullmatch(r"(\d+) J (\d+) us\s*", path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return (float(found[1]), int(found[2]) / 1e6) if found else None


def _count_gpus(devices: Path) -> int:
    """Return how many GPUs AMD's driver shows, a die each; a processor is a device of it too, with the number 0."""
    shown = (path.read_text(encoding="ascii").strip() for path in devices.glob("*/gpu_id"))
    return sum(number not in ("", "0") for number in shown)


class PmCounters:
    """The counters of a node, by the stamps that they carry."""

    def __init__(self, folder: Path, devices: Path = KFD_NODES) -> None:
        self._folder = folder
        accelerators = sorted(folder.glob("accel[0-9]*_energy")) or [*folder.glob("accel_energy")]
        boards = [path for path in accelerators if (_read_counter(path) or (1.0,))[0] > 0]
        named = {**PM_FILES, **{path.name: ("board", path.name.removesuffix("_energy")) for path in boards}}
        self._parts: dict[Path, MeteredPart] = {
            folder / name: MeteredPart("pm_counters", component, part)
            for name, (component, part) in named.items()
            if (folder / name).exists()
        }
        dies = max(_count_gpus(devices) // len(boards), 1) if boards else 0
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
            found = _read_counter(path)
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


def find_pm_counters(folder: Path = PM_COUNTERS, devices: Path = KFD_NODES) -> PmCounters | None:
    """Return the meter; None on a node that has none."""
    return PmCounters(folder, devices) if _read_counter(folder / "energy") is not None else None
