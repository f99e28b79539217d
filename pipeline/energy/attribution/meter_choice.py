"""Choose one reading of each part of a node from all of its meters; the others check it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from pipeline.energy.attribution.job_use import Problems, SeriesKey
from pipeline.energy.attribution.node_timeline import Flags, Floats, RateSeries, TimeBins
from pipeline.energy.readings import Label

COMPONENTS = ("node", "package", "dram", "board")
METER_TOLERANCE = 0.05
"""Two meters of one thing that differ by more than this share of the one that is taken do not agree."""
CHECKED_SECONDS = 300.0
"""So long at least are the stretches in which they are compared: errors of opposite signs are errors none the less."""
CHECKED_SHARE = 0.98
"""An interval is compared where a second meter covers at least this share of it; a stated figure is checked where as
much of its time is."""

LABELS: tuple[Label, ...] = ("measured", "stated", "estimated")
METHODS = ("counter", "power", "table")


@dataclass(frozen=True)
class ChosenReading:
    """A series of readings where it is the one that is taken: watts in each cut, 0 where it is not."""

    component: str
    part: str
    meter: str
    label: Label
    sentence: str
    watts: Floats
    accuracy: Accuracy

    @property
    def source(self) -> str:
        """The source of error: all meters of this kind, wherever they are."""
        return f"{self.meter}, {self.component}"


class _Series(NamedTuple):
    kind: SeriesKey
    watts: Floats
    streams: Sequence[RateSeries]
    checked: bool

    @property
    def part(self) -> str:
        return self.kind[1]

    @property
    def meter(self) -> str:
        return self.kind[2]

    @property
    def label(self) -> Label:
        return "measured" if self.checked else self.kind[4]

    @property
    def rank(self) -> tuple[object, ...]:
        """Counters before powers, measured before stated, and a stated one that was checked after all measured."""
        method = len(METHODS) if self.checked else METHODS.index(self.kind[5])
        return (LABELS.index(self.label), method, self.meter, self.kind[3] or "", self.part)


def _sum_parts(series: Iterable[_Series], parts: Iterable[str]) -> Floats:
    """Return the sum of some parts by one meter, NaN where it does not cover all of them."""
    sums: list[Floats] = []
    for part in parts:
        watts = None
        for one in sorted((one for one in series if one.part == part), key=lambda one: one.rank):
            watts = one.watts if watts is None else np.where(np.isnan(watts), one.watts, watts)
        if watts is not None:
            sums.append(watts)
    return sum(sums[1:], sums[0])


def _interval_ends(series: Iterable[_Series]) -> tuple[Floats, Floats]:
    """Return when the intervals of some series started and ended."""
    streams = [stream for one in series for stream in one.streams]
    return (np.concatenate([one.started for one in streams]), np.concatenate([one.ended for one in streams]))


def _fully_covered(cuts: TimeBins, coarse: Iterable[_Series], both: Flags) -> Flags:
    """Return the cuts in those intervals of a meter in which the other one was nearly always there."""
    first, last = (cuts.at(moments) for moments in _interval_ends(coarse))
    covered = cuts.running(both)
    known = covered[last] - covered[first] >= CHECKED_SHARE * (cuts.edges[last] - cuts.edges[first])
    return both & (cuts.count(first[known], last[known]) > 0)


def _difference_joules(cuts: TimeBins, watts: Floats, coarse: Iterable[_Series]) -> float:
    """Return by how many joules two meters are apart, added up over stretches.

    A stretch is made of whole intervals of the meter that has fewer of them, as within one it says a mean alone.
    """
    moments = np.unique(_interval_ends(coarse)[1])
    grid = [cuts.edges[0]]
    while (at := np.searchsorted(moments, grid[-1] + CHECKED_SECONDS)) < len(moments):
        grid.append(moments[at])
    running = np.interp([*grid, cuts.edges[-1]], cuts.edges, cuts.running(watts))
    return float(np.abs(np.diff(running)).sum())


def _compare_meters(cuts: TimeBins, series: list[_Series], node: str, problems: Problems) -> set[str]:
    """Name meters of one component that do not agree; return those whose stated figures another meter bears out."""
    component, meters = series[0].kind[0], {one.meter for one in series}
    agreed = set()
    for pair in combinations(sorted(meters), 2):
        ours, theirs = ([one for one in series if one.meter == meter] for meter in pair)
        ours, theirs = sorted((ours, theirs), key=lambda some: min(one.rank for one in some))
        shared = {one.part for one in ours} & {one.part for one in theirs}
        taken, other = (_sum_parts(some, sorted(shared or {one.part for one in some})) for some in (ours, theirs))
        coarse = min((ours, theirs), key=lambda some: len(_interval_ends(some)[0]))
        both = _fully_covered(cuts, coarse, ~np.isnan(taken) & ~np.isnan(other))
        seconds = float(cuts.seconds[both].sum())
        if seconds <= 0:
            continue
        first, second = cuts.integral(taken, both), cuts.integral(other, both)
        names = (ours[0].meter, theirs[0].meter)
        apart = _difference_joules(cuts, np.where(both, other - taken, 0.0), coarse)
        if apart > METER_TOLERANCE * first:
            within = "" if np.isclose(apart, abs(first - second)) else " in stretches of time"
            problems.add(
                f"{node}: two meters of {component} differ by {apart / first:.1%}{within}: {names[0]} says "
                f"{first:,.0f} J and {names[1]} {second:,.0f} J of the same {seconds:,.0f} s; {names[0]} is taken"
            )
            continue
        if "measured" not in {one.label for one in (*ours, *theirs)}:
            continue  # two figures that nobody here could check do not check each other
        for name, watts in zip(names, (taken, other), strict=True):
            if seconds >= CHECKED_SHARE * float(cuts.seconds[~np.isnan(watts)].sum()):
                agreed.add(name)
    return agreed


def _group_by_part_names(series: Sequence[_Series]) -> list[list[_Series]]:
    """Return the series by meters that call parts by the same names, the best first.

    Two meters that call them otherwise, such as `package-0` and all packages together, or a board's UUID and
    `accel0`, speak of the same things: only one of them may count.
    """
    families: list[list[_Series]] = []
    for meter in sorted({one.meter for one in series}):
        mine = [one for one in series if one.meter == meter]
        parts = {one.part for one in mine}
        same = [family for family in families if parts & {one.part for one in family}]
        families = [family for family in families if family not in same]
        families.append([*mine, *(one for family in same for one in family)])

    def order(family: list[_Series]) -> tuple[object, ...]:
        rank = min(one.rank for one in family)
        return (rank[:2], -len({one.part for one in family}), rank)

    return sorted(families, key=order)


def choose_readings(
    cuts: TimeBins, streams: Mapping[SeriesKey, Sequence[RateSeries]], node: str, problems: Problems
) -> list[ChosenReading]:
    """Return what is taken of each part in each cut: measured by a counter, else by power, else what is stated.

    Meters that differ are named. What Slurm or somebody else states is called measured only where a second meter of
    the same thing agrees within 5 %.
    """
    chosen: list[ChosenReading] = []
    for component in COMPONENTS:
        kinds = sorted((kind for kind in streams if kind[0] == component), key=str)
        series = [_Series(kind, cuts.painted(streams[kind]), streams[kind], False) for kind in kinds]
        if not series:
            continue
        agreed = _compare_meters(cuts, series, node, problems)
        series = [one._replace(checked=one.kind[4] == "stated" and one.meter in agreed) for one in series]
        taken = np.zeros(len(cuts), dtype=bool)
        for family in _group_by_part_names(series):
            here = ~taken & np.any([~np.isnan(one.watts) for one in family], axis=0)
            taken |= here
            for part in sorted({one.part for one in family}):
                known = np.full(len(cuts), np.nan)
                for one in sorted((one for one in family if one.part == part), key=lambda one: one.rank):
                    watts = cuts.painted(one.streams, known)
                    mine = here & np.isnan(known) & ~np.isnan(watts)
                    known = np.where(mine, watts, known)
                    if mine.any():
                        chosen.append(_make_chosen_reading(one, np.where(mine, watts, 0.0)))
    return chosen


def _make_chosen_reading(one: _Series, watts: Floats) -> ChosenReading:
    component, part, meter, plugin, _, method = one.kind
    how = f"{method}, stated by it and borne out by a second meter" if one.checked else method
    known = find_accuracy(meter, component=component, method=method, label=one.label, plugin=plugin)
    return ChosenReading(
        component=component,
        part=part,
        meter=meter,
        label=one.label,
        sentence=f"{meter}, {one.label}: {how}" + (f", read by {plugin}" if plugin else ""),
        watts=watts,
        accuracy=known,
    )


# How far a meter may be off: the half-width of its 95 % interval, as a share of what it says, each with a source.
#
# Nobody tells whether meters of one kind err together. They are taken to do so: the error of a kind of meter is one
# source over all nodes and adds up linearly, which can only make an interval too wide.


UNDOCUMENTED = "no maker states it: a careful figure of this program"


class Accuracy(NamedTuple):
    """What the true value may be below and above the reading, as shares of the reading, and who says so."""

    below: float
    above: float
    source: str


ACCURACIES = {
    ("nvml", "counter"): Accuracy(
        0.05, 0.05, "NVIDIA's NVML documentation, nvmlDeviceGetPowerUsage: ±5 %, stated for Fermi and Kepler boards"
    ),
    ("nvml", "power"): Accuracy(
        0.10, 0.10, "twice NVML's ±5 %, as A100 and H100 sample a quarter of the time (Yang et al., SC24, 2312.02741)"
    ),
    ("amd_smi", ""): Accuracy(0.10, 0.10, UNDOCUMENTED),
    ("rapl", "package"): Accuracy(
        0.10, 0.10, f"{UNDOCUMENTED}; a model in the processor on AMD and on older Intel processors"
    ),
    ("rapl", "dram"): Accuracy(
        0.20, 0.20, f"{UNDOCUMENTED}; offsets were found by Desrochers et al., MEMSYS 2016, doi 10.1145/2989081.2989088"
    ),
    ("pm_counters", ""): Accuracy(0.05, 0.05, UNDOCUMENTED),
    ("ear", ""): Accuracy(0.05, 0.05, UNDOCUMENTED),
    ("smart_meter", ""): Accuracy(0.02, 0.02, "twice the ±1 % of a meter of class 1 (IEC 62053-21)"),
    ("slurm", "rapl"): Accuracy(0.50, 0.10, f"{UNDOCUMENTED}; this plugin of Slurm is known to say too much"),
    ("slurm", ""): Accuracy(0.10, 0.10, UNDOCUMENTED),
}
"""By the name of the meter, and its plugin, the component or the method where they matter."""

UNKNOWN_METER = Accuracy(0.10, 0.10, UNDOCUMENTED)
STATED_FIGURE = Accuracy(0.20, 0.20, f"{UNDOCUMENTED}; nobody here could check the figure")


def find_accuracy(meter: str, *, component: str, method: str, label: str, plugin: str | None) -> Accuracy:
    """Return how far a reading may be off."""
    words = [word for word in ("rapl",) if word in (plugin or "")]
    for detail in (*words, component, method, ""):
        known = ACCURACIES.get((meter, detail))
        if known:
            return known if label == "measured" or known.below > STATED_FIGURE.below else STATED_FIGURE
    return UNKNOWN_METER if label == "measured" else STATED_FIGURE
