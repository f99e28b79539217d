"""Divide the time of a node into bins within which nothing begins or ends, and find the jobs in each bin.

Long intervals are never listed bin by bin: a sum over an interval is a difference of cumulative sums, so that a million
intervals cost no more than sorting them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pipeline.energy.attribution.job_usage_intervals import (
    Flags,
    Floats,
    Integers,
    MeteredJob,
    NodeUseTable,
    Problems,
    RateSeries,
    format_names,
)
from pipeline.energy.readings import ExternalReading

LEAST_REMAINDER_SHARE = 0.1
"""If another meter leaves less than this share of an interval uncovered, the difference of both is mostly error."""


class TimeBins:
    """The times at which something changes (`edges`, in seconds of Unix time), and the bins between them."""

    def __init__(self, moments: Iterable[Floats]) -> None:
        self.edges: Floats = np.unique(np.concatenate([np.empty(0), *moments]))
        self.seconds: Floats = np.diff(self.edges)

    def __len__(self) -> int:
        return len(self.seconds)

    def find_bin_edges_at_times(self, moments: Floats) -> Integers:
        """Return the numbers of the edges at these times."""
        return np.searchsorted(self.edges, moments)

    def count_ranges(self, first: Integers, last: Integers) -> Integers:
        """Return, for each bin, the number of ranges of bins that contain it."""
        size = len(self.edges)
        return np.cumsum(np.bincount(first, minlength=size) - np.bincount(last, minlength=size))[: len(self)]

    def sum_range_values_per_bin(self, first: Integers, last: Integers, values: Floats) -> Floats:
        """Return, for each bin, the sum of the positive values of the ranges that contain it."""
        size, some = len(self.edges), values > 0
        if not some.any():
            return np.zeros(len(self))
        first, last, values = first[some], last[some], values[some]
        steps = np.bincount(first, values, size) - np.bincount(last, values, size)
        return np.where(self.count_ranges(first, last) > 0, np.maximum(np.cumsum(steps)[: len(self)], 0.0), 0.0)

    def cumulative_integral(self, rate: Floats | Flags) -> Floats:
        """Return the integral of a rate per second from the first edge to each edge."""
        return np.concatenate([[0.0], np.cumsum(rate * self.seconds)])

    def rate_by_bin(self, streams: Sequence[RateSeries], other: Floats | None = None) -> Floats:
        """Return the rate in each bin, NaN where no series covers it; of several series the longest counts.

        If a longer series, or another meter, covers a part of an interval, the rest of the interval gets the remaining
        amount. So a change at the end of a job, where its meter ends too, is not smeared over the time before. If the
        other meter covers nearly all, the remainder would be the error of both, and the rest gets the mean rate.

        Args:
            streams: of one part by one meter.
            other: the rate of another meter in each bin.
        """
        rate = np.full(len(self), np.nan) if other is None else other.copy()
        for stream in sorted(streams, key=lambda stream: (-stream.seconds, stream.origin)):
            first, last = self.find_bin_edges_at_times(stream.started), self.find_bin_edges_at_times(stream.ended)
            free = first[0] + np.flatnonzero(np.isnan(rate[first[0] : last[-1]]))
            number = np.searchsorted(first, free, side="right") - 1
            inside = free < last[number]
            free, number = free[inside], number[inside]
            if free.size:
                begin, end = first[number[0]], last[number[-1]]
                seconds, known = self.seconds[begin:end], rate[begin:end]
                counted = np.append(0.0, np.cumsum(np.nan_to_num(known) * seconds))
                open_ = np.append(0.0, np.cumsum(np.isnan(known) * seconds))
                some = np.unique(number)
                before, after = first[some] - begin, last[some] - begin
                amount = stream.rate[some] * (stream.ended[some] - stream.started[some])
                left = (amount - counted[after] + counted[before]) / (open_[after] - open_[before])
                least = 0.0 if other is None else LEAST_REMAINDER_SHARE
                enough = open_[after] - open_[before] >= least * (stream.ended - stream.started)[some]
                rate[free] = np.where((left >= 0) & enough, left, stream.rate[some])[np.searchsorted(some, number)]
        return rate

    def integral(self, rate: Floats, where: Flags | None = None) -> float:
        """Return the sum of rate × seconds over the bins in which it is known."""
        chosen: Any = slice(None) if where is None else where
        return float(np.nansum(rate[chosen] * self.seconds[chosen]))


FOREIGN_SHARE, FOREIGN_PROCESSORS = 0.02, 1.0
"""Foreign work up to this share of a node's processors, and up to one of them, is the system's own."""
LONG_INTERVAL_FACTOR = 4.0
"""An interval longer than this × the median counts by its overlap; a shorter one has an uncertainty."""


class NodeOccupancy:
    """The use of a node by jobs: rows of `NodeUseTable` as arrays, and their sums in each bin.

    Attributes:
        cpu: busy processors of each row; of Snakemake's rows, its tree's without those of the jobs in the tree.
        node_share: the share of the node's processors that each row may use.
        occupied, has_jobs, has_working_jobs: the bins with anybody, with jobs, and with jobs that use CPU time.
        busy, snakemake: busy processors in each bin, of all rows and of Snakemake.
        allocated: the bins in which a job has the whole node from Slurm.
        own_machine: the bins without a job that shares the node through Slurm.
        shared: the bins with foreign work on the node.
    """

    def __init__(
        self, uses: NodeUseTable, bins: TimeBins, jobs: Sequence[MeteredJob], external: Sequence[ExternalReading]
    ) -> None:
        self.uses, self.bins, self.jobs = uses, bins, jobs
        self.processors = uses.processors
        self.started, self.ended = uses.float_column("started"), uses.float_column("ended")
        self.job = uses.integer_column("job")
        self.first, self.last = bins.find_bin_edges_at_times(self.started), bins.find_bin_edges_at_times(self.ended)
        self.seconds: Floats = self.ended - self.started
        self.gigabytes = uses.float_column("gigabytes")
        boards = [row.boards for row in uses.rows]
        numbers = {some: number for number, some in enumerate(sorted(set(boards)))}
        self._board_sets, self._boards = [*numbers], np.array([numbers[some] for some in boards])
        self.is_snakemake: Flags = np.array([job.fate == "snakemake" for job in jobs], dtype=bool)[self.job]
        in_slurm: Flags = np.array([job.slurm_job is not None for job in jobs], dtype=bool)[self.job]
        in_slurm &= ~self.is_snakemake
        allowed = uses.integer_column("job_processors")
        self.node_share: Floats = np.where(allowed > 0, np.minimum(allowed / self.processors, 1.0), 1.0)
        self.cpu = self._subtract_jobs_from_snakemake(uses.float_column("cpu"))
        self.node_share = np.where(self.is_snakemake, np.minimum(self.cpu / self.processors, 1.0), self.node_share)
        self.occupied: Flags = bins.count_ranges(self.first, self.last) > 0
        self.has_jobs: Flags = self.count_per_bin(~self.is_snakemake) > 0
        self.has_working_jobs: Flags = self.count_per_bin(~self.is_snakemake & (self.cpu > 0)) > 0
        self.busy = self.sum_row_values_per_bin(self.cpu)
        self.snakemake = self.sum_row_values_per_bin(np.where(self.is_snakemake, self.cpu, 0.0))
        self.allocated: Flags = (
            self.count_per_bin(in_slurm & (allowed >= self.processors)) > 0
        ) | self._allocated_bins(external, whole=True)
        self.own_machine: Flags = self.allocated | ~(self.count_per_bin(in_slurm) > 0)
        unseen = ~(self.count_per_bin(~np.isnan(uses.float_column("node_cpu"))) > 0)
        foreign = (self.count_per_bin(self._find_foreign_work()) > 0) | (
            self._allocated_bins(external, whole=False) & unseen
        )
        self.shared: Flags = ~self.allocated & foreign & self.occupied

    def count_per_bin(self, rows: Flags) -> Integers:
        """Return the number of some rows in each bin."""
        return self.bins.count_ranges(self.first[rows], self.last[rows])

    def sum_row_values_per_bin(self, values: Floats) -> Floats:
        """Return the sum of the rows' values in each bin."""
        return self.bins.sum_range_values_per_bin(self.first, self.last, values)

    def rows_by_board(self) -> dict[str, Flags]:
        """Return, for each board that a job may use, the rows that may use it; Snakemake itself uses none."""
        parts = sorted({part for boards in self._board_sets for part in boards})
        has = {part: np.array([part in boards for boards in self._board_sets], dtype=bool) for part in parts}
        rows = {part: has[part][self._boards] & ~self.is_snakemake for part in parts}
        return {part: mine for part, mine in rows.items() if mine.any()}

    def _allocated_bins(self, external: Sequence[ExternalReading], *, whole: bool) -> Flags:
        some = [one for one in external if one.whole_node is whole]
        first, last = (
            self.bins.find_bin_edges_at_times(np.array([getattr(one, end) for one in some]))
            for end in ("started", "ended")
        )
        return self.bins.count_ranges(first.astype(np.int64), last.astype(np.int64)) > 0

    def _subtract_jobs_from_snakemake(self, cpu: Floats) -> Floats:
        """Return the rates with those of jobs taken off the Snakemake whose tree includes them.

        A job that outlives a killed Snakemake is in no tree of a later one.
        """
        own = cpu.copy()
        for number in np.unique(self.job[self.is_snakemake]):
            tree = self.jobs[number]
            inside = np.array(
                [
                    job.fate != "snakemake" and job.slurm_job == tree.slurm_job and job.snakemake in (None, tree.name)
                    for job in self.jobs
                ],
                dtype=bool,
            )[self.job]
            of_jobs = self.bins.cumulative_integral(self.sum_row_values_per_bin(np.where(inside, cpu, 0.0)))
            used = (of_jobs[self.last] - of_jobs[self.first]) / self.seconds
            own = np.where(self.job == number, np.maximum(cpu - used, 0.0), own)
        return own

    def _estimate_unevenness(self) -> Floats:
        """Return the CPU seconds by which the rate within an interval may vary: its job's change to the next interval.

        A single interval may vary by half.
        """
        order = np.lexsort((self.started, self.job))
        job, cpu = self.job[order], self.cpu[order]
        change = np.where(job[1:] == job[:-1], np.abs(np.diff(cpu)), np.nan)
        uneven = np.fmax(np.append(np.nan, change), np.append(change, np.nan))
        by_row = np.empty(len(cpu))
        by_row[order] = np.where(np.isnan(uneven), cpu / 2, uneven)
        return by_row * self.seconds

    def _find_foreign_work(self) -> Flags:
        """Return the rows during which others used 2 % of the node's processors, or one of them.

        The run's own use during an interval comes from intervals that begin and end at other times: foreign work must
        also exceed what these may vary within themselves.
        """
        node = np.nan_to_num(self.uses.float_column("node_cpu"), nan=-1.0)
        real = node >= 0
        if not real.any():
            return real
        own = self.bins.cumulative_integral(self.busy)
        foreign = node * self.seconds - (own[self.last] - own[self.first])
        short = self.seconds <= LONG_INTERVAL_FACTOR * np.median(self.seconds[real])
        uneven = np.where(short, self._estimate_unevenness(), 0.0)
        by_start, by_end = np.argsort(self.started), np.argsort(self.ended)
        begun, over = (np.append(0.0, np.cumsum(uneven[order])) for order in (by_start, by_end))
        moment = 1e-3 * self.seconds
        before = np.searchsorted(self.started[by_start], self.ended - moment, side="left")
        after = np.searchsorted(self.ended[by_end], self.started + moment, side="right")
        others = begun[before] - over[after] - uneven
        allowed = min(FOREIGN_SHARE * self.processors, FOREIGN_PROCESSORS) * self.seconds
        flags = real & (foreign > np.maximum(allowed, others))
        source = self.uses.integer_column("source")
        return np.where(source >= 0, flags[np.maximum(source, 0)], False)

    def report_foreign_work(self, node: str, problems: Problems) -> None:
        """Add a problem that names the jobs during which others worked on the node."""
        seconds = self.bins.cumulative_integral(self.shared)
        mine = (seconds[self.last] - seconds[self.first]) > 0
        names = {self.jobs[number].name for number in np.unique(self.job[mine])}
        if names:
            problems.add(
                f"node {node}: others worked on it during {format_names(names)}: the run's share is then an estimate "
                "by the power model, not a part of the node's energy",
                float(seconds[-1]),
            )
