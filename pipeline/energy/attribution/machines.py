"""One machine is one node, whatever it is called, and has one clock, whoever sets it in the middle of a run.

A machine that was switched on once is known by Linux's boot id: in containers and under the names of several slurmd it
is the same one. Each meter looks at the calendar once, when it begins. Where somebody has set the clock between two of
them, they tell different times for the moment at which the machine was switched on, and by that difference one of them
is moved.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pipeline.energy.attribution.job_use import JOBS, JobUse, Problems
from pipeline.energy.readings import Interval

SET_SECONDS = 1.0
"""A clock that differs by no more from the next one has been kept in step, not set."""


def names_of_machines(jobs: Sequence[JobUse], problems: Problems) -> dict[str, str]:
    """Return for each node the name that its machine goes by: its own, or, of several, one that Slurm calls it."""
    names: dict[str, set[str]] = defaultdict(set)
    in_slurm: set[str] = set()
    for job in jobs:
        for line in job.intervals:
            names[line.boot_id].add(line.node)
            if job.slurm_job is not None and job.fate != "snakemake":
                in_slurm.add(line.node)
    same = {name: {name} for some in names.values() for name in some}
    for boot_id, some in names.items():
        if boot_id:
            everyone = set().union(*(same[name] for name in some))
            same |= dict.fromkeys(everyone, everyone)
    found = {name: min(some, key=lambda one: (one not in in_slurm, one)) for name, some in same.items()}
    for name in sorted(set(found.values())):
        if len(same[name]) > 1:
            others = ", ".join(sorted(same[name] - {name}))
            problems.add(f"{name} and {others} are names of one machine, which counts once")
    return found


def by_one_clock(jobs: Sequence[JobUse], problems: Problems) -> list[JobUse]:
    """Return the jobs with the times of a machine by the calendar that most of its lines go by."""
    seconds: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for job in jobs:
        for line in job.intervals:
            if line.boot_id and line.booted is not None:
                seconds[line.boot_id][line.booted] += line.seconds
    kept = {boot_id: max(some, key=lambda booted: (some[booted], booted)) for boot_id, some in seconds.items()}
    wrong = {boot_id: {*some} - _in_step(sorted(some), kept[boot_id]) for boot_id, some in seconds.items()}
    if not any(wrong.values()):
        return [*jobs]
    return [_moved(job, kept, wrong, problems) for job in jobs]


def _in_step(calendars: Sequence[float], kept: float) -> set[float]:
    """Return those of the calendars, in order, that are kept in step with one of them."""
    jumps = np.cumsum(np.append(0, np.diff(calendars) > SET_SECONDS))
    return {one for one, jump in zip(calendars, jumps, strict=True) if jump == jumps[calendars.index(kept)]}


def _moved(job: JobUse, kept: Mapping[str, float], wrong: Mapping[str, set[float]], problems: Problems) -> JobUse:
    found: list[Interval] = []
    last, last_seen = -math.inf, job.last_seen
    for line in job.intervals:
        if line.booted is not None and line.booted in wrong.get(line.boot_id, ()):
            by = kept[line.boot_id] - line.booted
            problems.add(
                f"{line.node}: the clock was set by {abs(by):,.1f} s during the run: the times of {JOBS} are moved "
                "by as much",
                line.seconds,
                job=job.name,
            )
            line = line.model_copy(update={"started": line.started + by, "ended": line.ended + by})
            if job.last_seen is not None and line.ended > last:
                last, last_seen = line.ended, job.last_seen + by
        found.append(line)
    return replace(job, intervals=found, last_seen=last_seen)
