"""Where Slurm's books say that a job had a node and no meter of ours was there: its start, its end, its whole life."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pipeline.energy.attribution.job_use import JobUse, Problems, Uses
from pipeline.energy.readings import Book, Interval

LEAST_SECONDS = 0.001
UNKNOWN_CPU = 1.0
"""Processors kept busy by a job of which no line is known, by which it shares a node with others."""

Span = tuple[float, float]


def joined(spans: Sequence[Span]) -> list[Span]:
    """Return spans of time that do not overlap and cover the same."""
    found: list[Span] = []
    for started, ended in sorted(spans):
        if found and started <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ended))
        else:
            found.append((started, ended))
    return found


def without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return what is left of joined spans outside other joined ones."""
    found, number = [], 0
    for started, ended in spans:
        while number < len(others) and others[number][1] <= started:
            number += 1
        here = number
        while here < len(others) and others[here][0] < ended:
            if others[here][0] > started:
                found.append((started, others[here][0]))
            started = max(started, others[here][1])
            here += 1
        if started < ended:
            found.append((started, ended))
    return [span for span in found if span[1] - span[0] > LEAST_SECONDS]


def slurm_number(job: str) -> str:
    """Return Slurm's number of a job, without that of a step."""
    return job.partition(".")[0]


def add_unwatched(
    jobs: Sequence[JobUse], uses: Mapping[str, Uses], books: Mapping[str, list[Book]], problems: Problems
) -> None:
    """Put each Slurm job of the books where no meter saw it, as its attempt that is nearest in time.

    An attempt without any line gets the books in which no other attempt at the same Slurm job was seen, such as one
    that Slurm put back into the queue. It is taken to be as busy as the attempt was on average where it was seen.
    """
    attempts: dict[str, list[int]] = defaultdict(list)
    for number, job in enumerate(jobs):
        if job.slurm_job is not None and job.fate != "snakemake":
            attempts[slurm_number(job.slurm_job)].append(number)
    for node in sorted(books):
        spans: dict[str, list[Span]] = defaultdict(list)
        for book in books[node]:
            if book.job is not None:
                spans[slurm_number(book.job)].append((book.started, book.ended))
        seen: dict[int, list[Span]] = defaultdict(list)
        rows: dict[int, list[int]] = defaultdict(list)
        for row, of in enumerate(uses[node].job if spans and node in uses else ()):
            seen[of].append((uses[node].started[row], uses[node].ended[row]))
            if uses[node].like[row] == row:
                rows[of].append(row)
        for slurm_job, told in sorted(spans.items()):
            if slurm_job not in attempts:
                problems.add(
                    f"{node}: the books tell of Slurm's job {slurm_job}, of which the run has no attempt: left out",
                    sum(ended - started for started, ended in joined(told)),
                )
                continue
            whole, mine = joined(told), attempts[slurm_job]
            found = joined([span for number in mine for span in seen[number]])
            for span in without(whole, found):
                _add(span, mine, jobs, uses[node], rows, node, whole=span in whole)


def _add(
    span: Span,
    mine: list[int],
    jobs: Sequence[JobUse],
    uses: Uses,
    rows: Mapping[int, list[int]],
    node: str,
    *,
    whole: bool,
) -> None:
    silent = [number for number in mine if not jobs[number].intervals]
    if whole and silent:
        uses.add_silence(silent[0], *span, UNKNOWN_CPU, -1, None)
        return
    known = [number for number in mine if jobs[number].intervals] or mine

    def distance(number: int) -> tuple[float, str]:
        lines = jobs[number].intervals
        ends = (min(line.started for line in lines), max(line.ended for line in lines)) if lines else span
        return max(ends[0] - span[1], span[0] - ends[1], 0.0), jobs[number].name

    nearest = min(known, key=distance)
    lines = [line for line in jobs[nearest].intervals if line.ended > line.started]
    here = [line for line in lines if line.node == node] or lines
    seconds = sum(line.ended - line.started for line in here)
    cpu = sum(line.job_cpu_seconds for line in here) / seconds if seconds else UNKNOWN_CPU
    line: Interval | None = min(here, key=lambda line: abs(line.started - span[1])) if here else None
    like = min(rows.get(nearest, ()), key=lambda row: abs(uses.started[row] - span[1]), default=-1)
    uses.add_silence(nearest, *span, cpu, like, line)
