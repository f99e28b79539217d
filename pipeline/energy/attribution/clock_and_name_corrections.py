"""Correct the intervals of meters: names and clocks of machines, and jobs that only Slurm's accounting knows.

Linux's boot id identifies a machine since it was switched on, also in containers and under the names of several slurmd.
Each meter looks at the calendar once, when it begins. If somebody sets the clock between two meters, they disagree on
when the machine was switched on; the times of one are shifted by the difference.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pipeline.energy.attribution.job_usage_intervals import JOB_NAMES, MeteredJob, NodeUseTable, Problems
from pipeline.energy.readings import ExternalReading, MeterInterval

CLOCK_DRIFT_SECONDS = 1.0
"""Calendars that differ by less from the next one drift; they were not set."""


def resolve_machine_names(jobs: Sequence[MeteredJob], problems: Problems) -> dict[str, str]:
    """Return the name of each node's machine: its own, or, of several names, one that Slurm uses."""
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
    machine_names = {name: min(some, key=lambda one: (one not in in_slurm, one)) for name, some in same.items()}
    for name in sorted(set(machine_names.values())):
        if len(same[name]) > 1:
            others = ", ".join(sorted(same[name] - {name}))
            problems.add(f"{name} and {others} are names of one machine, which counts once")
    return machine_names


def align_clocks(jobs: Sequence[MeteredJob], problems: Problems) -> list[MeteredJob]:
    """Return the jobs with all times of a machine by the calendar that most of its intervals use."""
    seconds: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for job in jobs:
        for line in job.intervals:
            if line.boot_id and line.booted is not None:
                seconds[line.boot_id][line.booted] += line.seconds
    kept = {boot_id: max(some, key=lambda booted: (some[booted], booted)) for boot_id, some in seconds.items()}
    wrong = {
        boot_id: {*some} - _boot_times_within_drift(sorted(some), kept[boot_id]) for boot_id, some in seconds.items()
    }
    if not any(wrong.values()):
        return [*jobs]
    return [_shift_times(job, kept, wrong, problems) for job in jobs]


def _boot_times_within_drift(calendars: Sequence[float], kept: float) -> set[float]:
    """Return those of the sorted calendars that differ from one of them by drift alone."""
    jumps = np.cumsum(np.append(0, np.diff(calendars) > CLOCK_DRIFT_SECONDS))
    return {one for one, jump in zip(calendars, jumps, strict=True) if jump == jumps[calendars.index(kept)]}


def _shift_times(
    job: MeteredJob, kept: Mapping[str, float], wrong: Mapping[str, set[float]], problems: Problems
) -> MeteredJob:
    shifted: list[MeterInterval] = []
    last, last_seen = -math.inf, job.last_seen
    for line in job.intervals:
        if line.booted is not None and line.booted in wrong.get(line.boot_id, ()):
            by = kept[line.boot_id] - line.booted
            sentence = (
                f"{line.node}: the clock was set by {abs(by):,.1f} s during the run: the times of {JOB_NAMES} are "
                "moved by as much"
            )
            problems.add(sentence, line.seconds, job=job.name)
            line = line.model_copy(update={"started": line.started + by, "ended": line.ended + by})
            if job.last_seen is not None and line.ended > last:
                last, last_seen = line.ended, job.last_seen + by
        shifted.append(line)
    return replace(job, intervals=shifted, last_seen=last_seen)


# Jobs that Slurm's accounting has on a node without a meter of ours: at their start, at their end, or throughout.


SHORTEST_SPAN_SECONDS = 0.001
UNKNOWN_CPU = 1.0
"""Busy processors of a job without any interval, for its share of a node."""

Span = tuple[float, float]


def merge_spans(spans: Sequence[Span]) -> list[Span]:
    """Return disjoint spans of time that cover the same, in order."""
    merged: list[Span] = []
    for started, ended in sorted(spans):
        if merged and started <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended))
        else:
            merged.append((started, ended))
    return merged


def subtract_spans(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return the parts of merged spans outside other merged spans."""
    remaining, number = [], 0
    for started, ended in spans:
        while number < len(others) and others[number][1] <= started:
            number += 1
        here = number
        while here < len(others) and others[here][0] < ended:
            if others[here][0] > started:
                remaining.append((started, others[here][0]))
            started = max(started, others[here][1])
            here += 1
        if started < ended:
            remaining.append((started, ended))
    return [span for span in remaining if span[1] - span[0] > SHORTEST_SPAN_SECONDS]


def slurm_job_number(job: str) -> str:
    """Return Slurm's job number without that of a job step."""
    return job.partition(".")[0]


def add_unmetered_jobs(
    jobs: Sequence[MeteredJob],
    uses: Mapping[str, NodeUseTable],
    external: Mapping[str, list[ExternalReading]],
    problems: Problems,
) -> None:
    """Add each Slurm job of the external readings where no meter saw it, as its attempt that is nearest in time.

    An attempt without any interval gets the readings in which no other attempt at the same Slurm job was seen, such as
    one that Slurm requeued. The job is taken to be as busy as the attempt was on average.
    """
    attempts: dict[str, list[int]] = defaultdict(list)
    for number, job in enumerate(jobs):
        if job.slurm_job is not None and job.fate != "snakemake":
            attempts[slurm_job_number(job.slurm_job)].append(number)
    for node in sorted(external):
        spans: dict[str, list[Span]] = defaultdict(list)
        for one in external[node]:
            if one.job is not None:
                spans[slurm_job_number(one.job)].append((one.started, one.ended))
        seen: dict[int, list[Span]] = defaultdict(list)
        metered: dict[int, list[int]] = defaultdict(list)
        for number, row in enumerate(uses[node].rows if spans and node in uses else ()):
            seen[row.job].append((row.started, row.ended))
            if row.source == number:
                metered[row.job].append(number)
        for slurm_job, allocated in sorted(spans.items()):
            whole = merge_spans(allocated)
            if slurm_job not in attempts:
                problems.add(
                    f"{node}: external meters have Slurm job {slurm_job}, which is no attempt of this run: left out",
                    sum(ended - started for started, ended in whole),
                )
                continue
            mine = attempts[slurm_job]
            seen_spans = merge_spans([span for number in mine for span in seen[number]])
            for span in subtract_spans(whole, seen_spans):
                _add_unmetered_span(span, mine, jobs, uses[node], metered, node, whole=span in whole)


def _add_unmetered_span(
    span: Span,
    mine: list[int],
    jobs: Sequence[MeteredJob],
    uses: NodeUseTable,
    metered: Mapping[int, list[int]],
    node: str,
    *,
    whole: bool,
) -> None:
    silent = [number for number in mine if not jobs[number].intervals]
    if whole and silent:
        uses.add(silent[0], *span, UNKNOWN_CPU, -1, None)
        return
    known = [number for number in mine if jobs[number].intervals] or mine

    def seconds_from_span(number: int) -> tuple[float, str]:
        lines = jobs[number].intervals
        ends = (min(line.started for line in lines), max(line.ended for line in lines)) if lines else span
        return max(ends[0] - span[1], span[0] - ends[1], 0.0), jobs[number].name

    nearest = min(known, key=seconds_from_span)
    lines = [line for line in jobs[nearest].intervals if line.ended > line.started]
    here = [line for line in lines if line.node == node] or lines
    seconds = sum(line.ended - line.started for line in here)
    cpu = sum(line.job_cpu_seconds for line in here) / seconds if seconds else UNKNOWN_CPU
    line: MeterInterval | None = min(here, key=lambda line: abs(line.started - span[1])) if here else None
    rows = uses.rows
    source = min(metered.get(nearest, ()), key=lambda number: abs(rows[number].started - span[1]), default=-1)
    uses.add(nearest, *span, cpu, source, line)
