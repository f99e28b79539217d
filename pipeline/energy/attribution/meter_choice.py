"""Choose one reading of each part of a node among all meters, and check it with the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from pipeline.energy.attribution.job_usage_intervals import Flags, Floats, Problems, RateSeries, SeriesKey
from pipeline.energy.attribution.node_occupancy import TimeBins
from pipeline.energy.readings import Label

COMPONENTS = ("node", "package", "dram", "board")
METER_TOLERANCE = 0.05
"""Two meters of one part disagree if they differ by more than this share of the chosen one."""
CHECKED_SECONDS = 300.0
"""The least length of the periods in which meters are compared, so that opposite errors do not cancel out."""
CHECKED_SHARE = 0.98
"""An interval is compared if a second meter covers this share of it; a stated figure is verified if this share of its
time is compared."""

LABELS: tuple[Label, ...] = ("measured", "stated", "estimated")
METHODS = ("counter", "power", "table")


@dataclass(frozen=True)
class ChosenReading:
    """A series of readings in the bins in which it is chosen: watts there, 0 elsewhere."""

    component: str
    part: str
    meter: str
    label: Label
    sentence: str
    watts: Floats
    accuracy: Accuracy

    @property
    def shared_error_key(self) -> str:
        """The source of error: all meters of this kind on all nodes."""
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
        """Counters before powers, measured before stated; verified stated figures after all measured ones."""
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


def _interval_bounds(series: Iterable[_Series]) -> tuple[Floats, Floats]:
    """Return the starts and the ends of the intervals of some series."""
    streams = [stream for one in series for stream in one.streams]
    return (np.concatenate([one.started for one in streams]), np.concatenate([one.ended for one in streams]))


def _find_comparable_bins(bins: TimeBins, coarse: Iterable[_Series], both: Flags) -> Flags:
    """Return the bins within those intervals of a meter that another one covers nearly completely."""
    first, last = (bins.find_bin_edges_at_times(moments) for moments in _interval_bounds(coarse))
    covered = bins.cumulative_integral(both)
    known = covered[last] - covered[first] >= CHECKED_SHARE * (bins.edges[last] - bins.edges[first])
    return both & (bins.count_ranges(first[known], last[known]) > 0)


def _difference_joules(bins: TimeBins, watts: Floats, coarse: Iterable[_Series]) -> float:
    """Return the absolute difference of two meters in joules, summed over periods.

    A period consists of whole intervals of the meter with fewer intervals, which knows only a mean within each.
    """
    moments = np.unique(_interval_bounds(coarse)[1])
    grid = [bins.edges[0]]
    while (at := np.searchsorted(moments, grid[-1] + CHECKED_SECONDS)) < len(moments):
        grid.append(moments[at])
    running = np.interp([*grid, bins.edges[-1]], bins.edges, bins.cumulative_integral(watts))
    return float(np.abs(np.diff(running)).sum())


def _compare_meters(bins: TimeBins, series: list[_Series], node: str, problems: Problems) -> set[str]:
    """Report meters of one component that disagree; return the meters whose stated figures another one confirms."""
    component, meters = series[0].kind[0], {one.meter for one in series}
    agreed = set()
    for pair in combinations(sorted(meters), 2):
        ours, theirs = ([one for one in series if one.meter == meter] for meter in pair)
        ours, theirs = sorted((ours, theirs), key=lambda some: min(one.rank for one in some))
        shared = {one.part for one in ours} & {one.part for one in theirs}
        taken, other = (_sum_parts(some, sorted(shared or {one.part for one in some})) for some in (ours, theirs))
        coarse = min((ours, theirs), key=lambda some: len(_interval_bounds(some)[0]))
        both = _find_comparable_bins(bins, coarse, ~np.isnan(taken) & ~np.isnan(other))
        seconds = float(bins.seconds[both].sum())
        if seconds <= 0:
            continue
        first, second = bins.integral(taken, both), bins.integral(other, both)
        names = (ours[0].meter, theirs[0].meter)
        apart = _difference_joules(bins, np.where(both, other - taken, 0.0), coarse)
        if apart > METER_TOLERANCE * first:
            within = "" if np.isclose(apart, abs(first - second)) else " in periods"
            problems.add(
                f"{node}: two meters of {component} differ by {apart / first:.1%}{within}: {names[0]} measured "
                f"{first:,.0f} J and {names[1]} {second:,.0f} J in the same {seconds:,.0f} s; {names[0]} is used"
            )
            continue
        if "measured" not in {one.label for one in (*ours, *theirs)}:
            continue  # two unverified figures do not verify each other
        for name, watts in zip(names, (taken, other), strict=True):
            if seconds >= CHECKED_SHARE * float(bins.seconds[~np.isnan(watts)].sum()):
                agreed.add(name)
    return agreed


def _group_by_part_names(series: Sequence[_Series]) -> list[list[_Series]]:
    """Group the series by meters that use the same part names, the best group first.

    Meters with other names measure the same things, such as `package-0` and all packages together, or a board's UUID
    and `accel0`: only one group may count.
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
    bins: TimeBins, streams: Mapping[SeriesKey, Sequence[RateSeries]], node: str, problems: Problems
) -> list[ChosenReading]:
    """Choose a reading of each part in each bin: measured by a counter, else by power, else stated.

    Meters that differ are reported. A figure stated by Slurm or another system counts as measured only if a second
    meter agrees within 5 %.
    """
    chosen: list[ChosenReading] = []
    for component in COMPONENTS:
        kinds = sorted((kind for kind in streams if kind[0] == component), key=str)
        series = [_Series(kind, bins.rate_by_bin(streams[kind]), streams[kind], False) for kind in kinds]
        if not series:
            continue
        agreed = _compare_meters(bins, series, node, problems)
        series = [one._replace(checked=one.kind[4] == "stated" and one.meter in agreed) for one in series]
        taken = np.zeros(len(bins), dtype=bool)
        for family in _group_by_part_names(series):
            here = ~taken & np.any([~np.isnan(one.watts) for one in family], axis=0)
            taken |= here
            for part in sorted({one.part for one in family}):
                known = np.full(len(bins), np.nan)
                for one in sorted((one for one in family if one.part == part), key=lambda one: one.rank):
                    watts = bins.rate_by_bin(one.streams, known)
                    mine = here & np.isnan(known) & ~np.isnan(watts)
                    known = np.where(mine, watts, known)
                    if mine.any():
                        chosen.append(_make_chosen_reading(one, np.where(mine, watts, 0.0)))
    return chosen


def _make_chosen_reading(one: _Series, watts: Floats) -> ChosenReading:
    component, part, meter, plugin, _, method, architecture = one.kind
    how = f"{method}, stated by it and confirmed by a second meter" if one.checked else method
    known = find_accuracy(meter, component=component, architecture=architecture, label=one.label, plugin=plugin)
    if known.gain != 1:
        how += f" × {known.gain:g}"
    if architecture:
        how += f", ±{known.above:.0%} ({architecture} boards: {known.source})"
    return ChosenReading(
        component=component,
        part=part,
        meter=meter,
        label=one.label,
        sentence=f"{meter}, {one.label}: {how}" + (f", read by {plugin}" if plugin else ""),
        watts=watts * known.gain,
        accuracy=known,
    )


# The accuracy of meters: the half-width of the 95 % interval as a share of the reading, each with a source.
#
# No source says whether meters of one kind err together. They are assumed to: the error of a kind of meter is one
# source over all nodes and adds up linearly, which can only make an interval too wide.


UNDOCUMENTED = "no maker states it: a conservative figure of this program"


class Accuracy(NamedTuple):
    """The known error of a meter.

    Attributes:
        below: how far the true value may be below `gain` × a reading, as a share of it.
        above: the same above it.
        source: of these figures.
        gain: what its readings are multiplied by, where they err to one side.
    """

    below: float
    above: float
    source: str
    gain: float = 1.0


YANG = "Yang et al., SC24, arXiv 2312.02741, against a meter in the board's supply"
READS_LOW = Accuracy(0.07, 0.07, f"nine boards of five models read 1 to 6 % low, {YANG}", gain=1.04)

ACCURACIES = {
    ("nvml", "ampere"): READS_LOW,
    ("nvml", "ada"): READS_LOW,
    ("nvml", ""): Accuracy(
        0.13, 0.13, f"ten models from Kepler to Turing read 9 % low to 13 % high, none after Ada is known, {YANG}"
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
    ("slurm", "rapl"): Accuracy(0.50, 0.10, f"{UNDOCUMENTED}; this plugin of Slurm is known to overcount"),
    ("slurm", ""): Accuracy(0.10, 0.10, UNDOCUMENTED),
}
"""By the name of the meter, and its plugin, the component or a board's architecture where they matter.

How the figures of NVML follow from the published ones, and that gains of other architectures do not help:
`benchmarks/energy_meters.py`. Energy counters count what the same sensor reads.
"""

UNKNOWN_METER = Accuracy(0.10, 0.10, UNDOCUMENTED)
STATED_FIGURE = Accuracy(0.20, 0.20, f"{UNDOCUMENTED}; nothing here could verify the figure")


def find_accuracy(meter: str, *, component: str, architecture: str, label: str, plugin: str | None) -> Accuracy:
    words = [word for word in ("rapl",) if word in (plugin or "")]
    for detail in (*words, component, architecture, ""):
        known = ACCURACIES.get((meter, detail))
        if known:
            return known if label == "measured" or known.below > STATED_FIGURE.below else STATED_FIGURE
    return UNKNOWN_METER if label == "measured" else STATED_FIGURE
