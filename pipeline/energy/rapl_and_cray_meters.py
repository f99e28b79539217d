"""Meter the parts of a node with RAPL or Cray's pm_counters.

Each call of `take_interval_readings` returns the joules since the last one, or the reason why they are unknown.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from pipeline.energy import startup_counters
from pipeline.energy.readings import MOST_WATTS, Component, Reading
from pipeline.energy.startup_counters import CounterSample

LIMIT_TOLERANCE = 1.2  # a true figure may exceed the limit that its hardware states by this factor
STUCK_SECONDS = 0.5  # a counter that does not move for this long is stuck
COUNTER_PERIOD_SECONDS = 0.2  # counters are updated this rarely: a shorter interval may hold one update
FIRST_READING = "this is its first reading"
STAMP_TOLERANCE_SECONDS = 2.0  # between two samples, a counter's timestamps may differ from the clock by this much


class Meter(Protocol):
    """A meter of a node; times are monotonic seconds of Unix time."""

    @property
    def gpus(self) -> Sequence[str]:
        """The part that measures each GPU, in the driver's order: the same for two dies of a card."""

    @property
    def reads_power(self) -> bool:
        """Whether a part has no energy counter, so that its power must be read often."""

    def begin(self, now: float, sample: CounterSample) -> None:
        """Begin with counters that were sampled before the meter was found, as far as they are this meter's."""

    def sample(self, now: float) -> None:
        """Read the counters between two readings."""

    def take_interval_readings(self, now: float) -> list[Reading]:
        """Return the readings since the last call."""


class MeteredPart:
    """Add up the joules of one part between readings.

    An interval is unknown, with the reason, after a counter was reset, unreadable or stuck, or exceeded the hardware's
    limit.
    """

    def __init__(
        self,
        meter: str,
        component: Component,
        name: str,
        *,
        most_watts: float | None = None,
        range_joules: float | None = None,
        method: Literal["counter", "power"] = "counter",
        architecture: str = "",
    ) -> None:
        self.meter, self.component, self.name, self.method = meter, component, name, method
        self.architecture = architecture
        self.most_watts = (most_watts or MOST_WATTS[component]) * LIMIT_TOLERANCE
        self.range_joules = range_joules
        self._last: tuple[float, float, float] | None = None  # joules or watts, time, clock
        self._joules = 0.0
        self._problem: str | None = None
        self._began: float | None = None

    def mark_unknown(self, problem: str) -> None:
        """Mark the current interval as unknown, and count from the next sample on."""
        self._problem, self._last = self._problem or problem, None

    def _note_gap(self) -> None:
        if self._last is None and self._began is not None:
            self._problem = self._problem or "it could not be read when the interval began"

    def add_counter_sample(self, joules: float, moment: float, clock: float | None = None) -> None:
        """Add a sample of an energy counter.

        Args:
            joules: the counter's value.
            moment: its time in seconds: a clock's, or the counter's own timestamp.
            clock: the clock's time, where `moment` is a timestamp. Both must advance alike: a timestamp that jumps
                would make any number of joules look possible.
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
            self.mark_unknown("its counter was reset")
            self._last = joules, moment, clock
        else:
            self._add(used, seconds)

    def add_power_sample(self, watts: float, moment: float) -> None:
        """Add a sample of a power; the power between two samples is their mean."""
        self._note_gap()
        before, self._last = self._last, (watts, moment, moment)
        if before is not None:
            self._add((watts + before[0]) / 2 * (moment - before[1]), moment - before[1])

    def _add(self, joules: float, seconds: float) -> None:
        longest = max(seconds, COUNTER_PERIOD_SECONDS)
        if joules > self.most_watts * longest:
            self._problem = self._problem or (
                f"it shows {joules / longest:,.0f} W, "
                f"and such a part can draw {self.most_watts / LIMIT_TOLERANCE:,.0f} W"
            )
        else:
            self._joules += joules

    def read_energy_since_last_call(self, now: float) -> Reading:
        """Return the reading since the last call."""
        problem = self._problem
        if self._began is None:
            problem = FIRST_READING
        elif problem is None and self._joules == 0 and now - self._began >= STUCK_SECONDS:
            problem = "it shows no energy at all: its counter is stuck"
        reading = Reading(
            component=self.component,
            part=self.name,
            joules=self._joules if problem is None else None,
            label="measured",
            method=self.method,
            meter=self.meter,
            architecture=self.architecture,
            problem=problem and f"{self.meter}{f' {self.name}' if self.name else ''}: {problem}",
        )
        self._joules, self._problem, self._began = 0.0, None, now
        return reading


class PartsMeter(ABC):
    gpus: Sequence[str] = ()

    def __init__(self, parts: Iterable[MeteredPart]) -> None:
        self.parts = [*parts]

    @property
    def reads_power(self) -> bool:
        return any(part.method == "power" for part in self.parts)

    @abstractmethod
    def begin(self, now: float, sample: CounterSample) -> None:
        """Begin with counters that were sampled before."""

    @abstractmethod
    def sample(self, now: float) -> None:
        """Read all counters."""

    def take_interval_readings(self, now: float) -> list[Reading]:
        """Return the readings since the last call."""
        self.sample(now)
        return self._take_parts(now)

    def _take_parts(self, now: float) -> list[Reading]:
        return [part.read_energy_since_last_call(now) for part in self.parts]


ReadText = Callable[[Path], str | None]
"""Reads a file; None where it cannot be read."""


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return None


class CounterFilesMeter(PartsMeter):
    """A meter whose parts each have a file of the kernel with their counter."""

    def __init__(self, parts: Iterable[MeteredPart], files: Sequence[Path]) -> None:
        super().__init__(parts)
        self._files = files

    @abstractmethod
    def _add_counters(self, now: float, read_text: ReadText) -> None:
        """Add the counter of each part, from its text."""

    def begin(self, now: float, sample: CounterSample) -> None:
        if any(str(path) in sample.files for path in self._files):
            self._add_counters(now, lambda path: sample.files.get(str(path)))
            self._take_parts(now)

    def sample(self, now: float) -> None:
        self._add_counters(now, _read_text)


class UnreadableMeter:
    """A meter that exists and cannot be read: each interval says so."""

    gpus: Sequence[str] = ()
    reads_power = False

    def __init__(self, meter: str, component: Component, problem: str) -> None:
        self._reading = Reading(
            component=component, joules=None, label="measured", method="counter", meter=meter, problem=problem
        )

    def begin(self, now: float, sample: CounterSample) -> None:
        """Do nothing."""

    def sample(self, now: float) -> None:
        """Do nothing."""

    def take_interval_readings(self, now: float) -> list[Reading]:
        """Return one reading that says why nothing was read."""
        return [self._reading]


# RAPL: the energy counters of processor packages and memory, as Linux shows them (Documentation/power/powercap).
#
# Packages include their cores, and a `psys` zone would count them again: both are left out. A counter goes back to
# zero at `max_energy_range_uj`, some within minutes.

POWERCAP = Path(startup_counters.POWERCAP)
MICROJOULES = 1e6
PEAK_FACTOR = 1.5  # short peaks are allowed above a package's long-term limit


def _read_number(path: Path, read_text: ReadText = _read_text) -> int | None:
    text = (read_text(path) or "").strip()
    return int(text) if text.isdecimal() else None


class Rapl(CounterFilesMeter):
    """The readable zones of a powercap folder, given with their names."""

    def __init__(self, zones: dict[Path, str]) -> None:
        parts = [self._make_part(zone, name) for zone, name in zones.items()]
        super().__init__(parts, [zone / "energy_uj" for zone in zones])

    @staticmethod
    def _make_part(zone: Path, name: str) -> MeteredPart:
        limit, maximum = _read_number(zone / "constraint_0_max_power_uw"), _read_number(zone / "max_energy_range_uj")
        return MeteredPart(
            "rapl",
            "dram" if name.startswith("dram") else "package",
            name,
            most_watts=limit / MICROJOULES * PEAK_FACTOR if limit else None,
            range_joules=maximum / MICROJOULES if maximum else None,
        )

    def _add_counters(self, now: float, read_text: ReadText) -> None:
        for path, part in zip(self._files, self.parts, strict=True):
            counter = _read_number(path, read_text)
            if counter is None:
                part.mark_unknown("its counter could not be read")
            else:
                part.add_counter_sample(counter / MICROJOULES, now)


def find_rapl(powercap: Path = POWERCAP) -> Rapl | UnreadableMeter | None:
    """Find RAPL; None where the kernel shows none, such as in a virtual machine."""
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
        # The name "dram" does not say which package the memory belongs to.
        zones[zone] = f"dram-{zone.name.split(':')[1]}" if name == "dram" else name
    if readable:  # including zones that cannot be read, so that no package is left out silently
        return Rapl(zones)
    # Since 2020 most systems let only root read the counters.
    return UnreadableMeter("rapl", "package", "rapl: only root may read its counters on this node") if zones else None


# Cray's pm_counters, as on LUMI: energy of the node and of its processors, memory and accelerators.
#
# Each file holds a value, its unit and its Unix time, such as `34283186 J 1460038098391936 us` (one Cray EX255a
# counted from another moment). `freshness` rises with every update of the node's controller, ten a second. The node
# includes its accelerators; the file of an absent one holds 0. Source: HPE, "User Access to Compute Node Power Data"
# (Cray-HPE/docs-csm), where a single accelerator has no number; file names are those of /sys/cray/pm_counters. Nodes of
# MI300A have no files of processors and memory.
#
# An accelerator is a card of two dies; the processors are one part, and so is the memory. AMD SMI and RAPL measure the
# same parts and are not read next to pm_counters.

PM_COUNTERS = Path(startup_counters.PM_COUNTERS)
KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
STALE_SECONDS = 1.0
PM_FILES: dict[str, tuple[Component, str]] = {
    "energy": ("node", ""),
    "cpu_energy": ("package", "processors"),
    "memory_energy": ("dram", "memory"),
}


def _read_counter(path: Path, read_text: ReadText = _read_text) -> tuple[float, float] | None:
    """Return joules and their time, in seconds of the controller's clock; None where the file has no such line."""
    match = re.fullmatch(r"(\d+) J (\d+) us\s*", read_text(path) or "")
    return (float(match[1]), int(match[2]) / 1e6) if match else None


def _count_gpus(devices: Path) -> int:
    """Return the number of GPU dies that AMD's driver shows; processors are in its list too, with the number 0."""
    shown = (path.read_text(encoding="ascii").strip() for path in devices.glob("*/gpu_id"))
    return sum(number not in ("", "0") for number in shown)


class PmCounters(CounterFilesMeter):
    """The counters of a node, with their own timestamps."""

    def __init__(self, folder: Path, devices: Path = KFD_NODES) -> None:
        self._folder = folder
        accelerators = sorted(folder.glob("accel[0-9]*_energy")) or [*folder.glob("accel_energy")]
        boards = [path for path in accelerators if (_read_counter(path) or (1.0,))[0] > 0]
        named = {**PM_FILES, **{path.name: ("board", path.name.removesuffix("_energy")) for path in boards}}
        files = {folder / name: kind for name, kind in named.items() if (folder / name).exists()}
        super().__init__([MeteredPart("pm_counters", component, part) for component, part in files.values()], [*files])
        dies = max(_count_gpus(devices) // len(boards), 1) if boards else 0
        self.gpus = [path.name.removesuffix("_energy") for path in boards for _ in range(dies)]
        self._fresh: tuple[str, float] | None = None

    def _is_stale(self, now: float, read_text: ReadText) -> bool:
        """Return whether the controller has not updated its counters for STALE_SECONDS."""
        if (freshness := read_text(self._folder / "freshness")) is None:
            return False
        freshness = freshness.strip()
        before = self._fresh
        if before is None or before[0] != freshness:
            self._fresh = freshness, now
        return before is not None and before[0] == freshness and now - before[1] >= STALE_SECONDS

    def _add_counters(self, now: float, read_text: ReadText) -> None:
        stale = self._is_stale(now, read_text)
        for path, part in zip(self._files, self.parts, strict=True):
            counter = _read_counter(path, read_text)
            if stale:
                part.mark_unknown("the counters are stale, freshness does not rise")
            elif counter is None:
                part.mark_unknown("its counter could not be read")
            else:
                part.add_counter_sample(*counter, now)


def find_pm_counters(folder: Path = PM_COUNTERS, devices: Path = KFD_NODES) -> PmCounters | None:
    """Find pm_counters; None on a node that has none."""
    return PmCounters(folder, devices) if _read_counter(folder / "energy") is not None else None
