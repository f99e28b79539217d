"""Cut the time line of a node wherever something begins or ends: between two cuts nothing changes.

What holds over many cuts is never listed cut by cut: sums over an interval are differences of running sums, so that an
account of a million intervals costs their sorting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.energy.attribution.job_use import MeteredJob, NodeUseTable, Problems, format_names
from pipeline.energy.readings import ExternalReading

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


LEAST_REMAINDER_SHARE = 0.1
"""Of an interval, from which on what another meter leaves of it is told by the difference of both."""


class RateSeries(NamedTuple):
    """What one meter said of one thing, in intervals that do not overlap: a rate per second in each."""

    origin: str
    started: Floats
    ended: Floats
    rate: Floats

    @property
    def seconds(self) -> float:
        """How long it covers."""
        return float((self.ended - self.started).sum())


class TimeBins:
    """The moments at which something changes, in seconds of Unix time, and what lies between them."""

    def __init__(self, moments: Iterable[Floats]) -> None:
        self.edges: Floats = np.unique(np.concatenate([np.empty(0), *moments]))
        self.seconds: Floats = np.diff(self.edges)

    def __len__(self) -> int:
        return len(self.seconds)

    def at(self, moments: Floats) -> Integers:
        """Return the numbers of the edges at these moments."""
        return np.searchsorted(self.edges, moments)

    def count(self, first: Integers, last: Integers) -> Integers:
        """Return, for each cut, in how many ranges of cuts it lies."""
        size = len(self.edges)
        return np.cumsum(np.bincount(first, minlength=size) - np.bincount(last, minlength=size))[: len(self)]

    def sum(self, first: Integers, last: Integers, values: Floats) -> Floats:
        """Return, for each cut, the sum of the values, none below zero, of the ranges in which it lies."""
        size, some = len(self.edges), values > 0
        if not some.any():
            return np.zeros(len(self))
        first, last, values = first[some], last[some], values[some]
        steps = np.bincount(first, values, size) - np.bincount(last, values, size)
        return np.where(self.count(first, last) > 0, np.maximum(np.cumsum(steps)[: len(self)], 0.0), 0.0)

    def running(self, rate: Floats | Flags) -> Floats:
        """Return the integral of a rate per second from the first edge to each edge."""
        return np.concatenate([[0.0], np.cumsum(rate * self.seconds)])

    def painted(self, streams: Sequence[RateSeries], beside: Floats | None = None) -> Floats:
        """Return the rate in each cut, NaN where no stream covers it; of several streams the longest is taken.

        Where a part of an interval is covered by a longer stream, or by another meter (`beside`), the part that is not
        has what is left of it: what changes when a job ends, and its meter with it, is then not spread over the time
        before. Where another meter covers nearly all, what is left would be the error of both: the rate is taken.
        """
        rate = np.full(len(self), np.nan) if beside is None else beside.copy()
        for stream in sorted(streams, key=lambda stream: (-stream.seconds, stream.origin)):
            first, last = self.at(stream.started), self.at(stream.ended)
            free = first[0] + np.flatnonzero(np.isnan(rate[first[0] : last[-1]]))
            number = np.searchsorted(first, free, side="right") - 1
            inside = free < last[number]
            free, number = free[inside], number[inside]
            if free.size:
                begin, end = first[number[0]], last[number[-1]]
                seconds, known = self.seconds[begin:end], rate[begin:end]
                told = np.append(0.0, np.cumsum(np.nan_to_num(known) * seconds))
                open_ = np.append(0.0, np.cumsum(np.isnan(known) * seconds))
                some = np.unique(number)
                before, after = first[some] - begin, last[some] - begin
                amount = stream.rate[some] * (stream.ended[some] - stream.started[some])
                left = (amount - told[after] + told[before]) / (open_[after] - open_[before])
                least = 0.0 if beside is None else LEAST_REMAINDER_SHARE
                enough = open_[after] - open_[before] >= least * (stream.ended - stream.started)[some]
                rate[free] = np.where((left >= 0) & enough, left, stream.rate[some])[np.searchsorted(some, number)]
        return rate

    def integral(self, rate: Floats, where: Flags | None = None) -> float:
        """Return the sum of rate × seconds, where it is known."""
        chosen: Any = slice(None) if where is None else where
        return float(np.nansum(rate[chosen] * self.seconds[chosen]))


FOREIGN_SHARE, FOREIGN_PROCESSORS = 0.02, 1.0
"""Work of strangers up to this share of a node's processors, and up to one of them, is the system's own."""
LONG_INTERVAL_FACTOR = 4.0
"""Intervals so many times as long as the middle one count by the time that they overlap, shorter ones with a doubt."""


class NodeOccupancy:
    """The rows of a node's uses as arrays, and per cut what they add up to.

    `cpu` of a row is in processors kept busy. Snakemake's own rows hold what its tree used less what the jobs in the
    tree did, not below zero.
    """

    def __init__(
        self, uses: NodeUseTable, cuts: TimeBins, jobs: Sequence[MeteredJob], external: Sequence[ExternalReading]
    ) -> None:
        self.uses, self.cuts, self.jobs = uses, cuts, jobs
        self.processors = uses.processors
        self.started, self.ended = uses.floats("started"), uses.floats("ended")
        self.job = uses.integers("job")
        self.first, self.last = cuts.at(self.started), cuts.at(self.ended)
        self.seconds: Floats = self.ended - self.started
        self.gigabytes = uses.floats("gigabytes")
        numbers = {boards: number for number, boards in enumerate(sorted(set(uses.boards)))}
        self._board_sets, self._boards = [*numbers], np.array([numbers[boards] for boards in uses.boards])
        self.is_snakemake: Flags = np.array([job.fate == "snakemake" for job in jobs], dtype=bool)[self.job]
        self.in_slurm: Flags = np.array([job.slurm_job is not None for job in jobs], dtype=bool)[self.job]
        self.in_slurm &= ~self.is_snakemake
        some = uses.integers("job_processors")
        self.node_share: Floats = np.where(some > 0, np.minimum(some / self.processors, 1.0), 1.0)
        self.cpu = self._own_cpu(uses.floats("cpu"))
        self.node_share = np.where(self.is_snakemake, np.minimum(self.cpu / self.processors, 1.0), self.node_share)
        there, work = ~self.is_snakemake, self.cpu > 0
        self.there: Flags = cuts.count(self.first, self.last) > 0
        self.jobs_there: Flags = self.count(there) > 0
        self.jobs_work: Flags = self.count(there & work) > 0
        self.busy = self.sum(self.cpu)
        self.snakemake = self.sum(np.where(self.is_snakemake, self.cpu, 0.0))
        held = self.in_slurm & (some >= self.processors)
        shared = self._cuts_held(external, whole=False)
        self.held: Flags = (self.count(held) > 0) | self._cuts_held(external, whole=True)
        self.own_machine: Flags = self.held | ~(self.count(self.in_slurm) > 0)
        self.seen: Flags = self.count(~np.isnan(uses.floats("node_cpu"))) > 0
        foreign = self.count(self._beside_strangers()) > 0
        self.contaminated: Flags = ~self.held & (foreign | (shared & ~self.seen)) & self.there

    def count(self, rows: Flags) -> Integers:
        """Return, for each cut, how many of some rows lie over it."""
        return self.cuts.count(self.first[rows], self.last[rows])

    def sum(self, values: Floats) -> Floats:
        """Return, for each cut, the sum of the values of the rows that lie over it."""
        return self.cuts.sum(self.first, self.last, values)

    def holders(self) -> dict[str, Flags]:
        """Return, for each board that any job may use, the rows of those that may; Snakemake itself uses none."""
        parts = sorted({part for boards in self._board_sets for part in boards})
        has = {part: np.array([part in boards for boards in self._board_sets], dtype=bool) for part in parts}
        rows = {part: has[part][self._boards] & ~self.is_snakemake for part in parts}
        return {part: mine for part, mine in rows.items() if mine.any()}

    def _cuts_held(self, external: Sequence[ExternalReading], *, whole: bool) -> Flags:
        some = [one for one in external if one.whole_node is whole]
        first, last = (self.cuts.at(np.array([getattr(one, end) for one in some])) for end in ("started", "ended"))
        return self.cuts.count(first.astype(np.int64), last.astype(np.int64)) > 0

    def _own_cpu(self, cpu: Floats) -> Floats:
        """Return the rates without those of jobs within the tree of a Snakemake, which says its whole tree's.

        A job that outlives a Snakemake that was killed is in no tree of a later one.
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
            of_jobs = self.cuts.running(self.sum(np.where(inside, cpu, 0.0)))
            used = (of_jobs[self.last] - of_jobs[self.first]) / self.seconds
            own = np.where(self.job == number, np.maximum(cpu - used, 0.0), own)
        return own

    def _doubt(self) -> Floats:
        """Return by how many CPU seconds an interval may be uneven in itself: as its job's change from one to another.

        An interval alone tells nothing of that: half of it is taken.
        """
        order = np.lexsort((self.started, self.job))
        job, cpu = self.job[order], self.cpu[order]
        change = np.where(job[1:] == job[:-1], np.abs(np.diff(cpu)), np.nan)
        doubt = np.fmax(np.append(np.nan, change), np.append(change, np.nan))
        found = np.empty(len(cpu))
        found[order] = np.where(np.isnan(doubt), cpu / 2, doubt)
        return found * self.seconds

    def _beside_strangers(self) -> Flags:
        """Return which rows saw 2 % of the node's processors, or one, at work for somebody who is not of the run.

        What the run's own jobs used while an interval lasted is told from theirs, which begin and end at other moments:
        the foreign work must also be more than what these may be uneven.
        """
        node = np.nan_to_num(self.uses.floats("node_cpu"), nan=-1.0)
        real = node >= 0
        if not real.any():
            return real
        own = self.cuts.running(self.busy)
        foreign = node * self.seconds - (own[self.last] - own[self.first])
        short = self.seconds <= LONG_INTERVAL_FACTOR * np.median(self.seconds[real])
        doubt = np.where(short, self._doubt(), 0.0)
        by_start, by_end = np.argsort(self.started), np.argsort(self.ended)
        begun, over = (np.append(0.0, np.cumsum(doubt[order])) for order in (by_start, by_end))
        moment = 1e-3 * self.seconds
        before = np.searchsorted(self.started[by_start], self.ended - moment, side="left")
        after = np.searchsorted(self.ended[by_end], self.started + moment, side="right")
        others = begun[before] - over[after] - doubt
        flags = real & (
            foreign > np.maximum(min(FOREIGN_SHARE * self.processors, FOREIGN_PROCESSORS) * self.seconds, others)
        )
        like = self.uses.integers("like")
        return np.where(like >= 0, flags[np.maximum(like, 0)], False)

    def explain(self, node: str, problems: Problems) -> None:
        """Say where strangers worked on the node, and beside whom."""
        seconds = self.cuts.running(self.contaminated)
        mine = (seconds[self.last] - seconds[self.first]) > 0
        names = {self.jobs[number].name for number in np.unique(self.job[mine])}
        if not names:
            return
        problems.add(
            f"{node}: work of others ran beside {format_names(names)}: there the run's share is time × the "
            "power of the model for what it used, an estimate, and not the node's energy",
            float(seconds[-1]),
        )
