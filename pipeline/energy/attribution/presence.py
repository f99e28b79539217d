"""Find the jobs on a node in each cut of its time line, what they kept busy, and strangers next to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.energy.attribution.job_use import JobUse, Problems, Uses, list_some
from pipeline.energy.attribution.node_timeline import Cuts, Flags, Floats, Integers
from pipeline.energy.readings import ExternalReading

FOREIGN_SHARE, FOREIGN_PROCESSORS = 0.02, 1.0
"""Work of strangers up to this share of a node's processors, and up to one of them, is the system's own."""
LONG = 4.0
"""Intervals so many times as long as the middle one count by the time that they overlap, shorter ones with a doubt."""


class Presence:
    """The rows of a node's uses as arrays, and per cut what they add up to.

    `cpu` of a row is in processors kept busy. Snakemake's own rows hold what its tree used less what the jobs in the
    tree did, not below zero.
    """

    def __init__(self, uses: Uses, cuts: Cuts, jobs: Sequence[JobUse], external: Sequence[ExternalReading]) -> None:
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
        short = self.seconds <= LONG * np.median(self.seconds[real])
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
            f"{node}: work of others ran beside {list_some(names)}: there the run's share is time × the "
            "power of the model for what it used, an estimate, and not the node's energy",
            float(seconds[-1]),
        )
