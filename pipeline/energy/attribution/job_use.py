"""Collect what each job used of each node, from the lines of its meters, in order and without impossible lines.

A line that ends before it starts, lies over another line of its job or stands twice is left out. Where a meter was
silent between two of its lines, or had not started where Slurm's accounting has the job, the job is put there with
the processors that it used beside that time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from pipeline.energy.attribution.node_timeline import Floats, Integers, RateSeries
from pipeline.energy.readings import MOST_WATTS, Label, MeterInterval, Reading, read_intervals

SILENT_SECONDS = 1.0
"""A meter that says nothing for longer than this between two of its lines has missed something."""
OVERLAP_SECONDS = 0.05
"""Linux rounds the start of a process, and so may a meter: intervals that overlap by no more follow one another."""
ZERO_SECONDS = 1.0
"""Nothing that is switched on uses 0 J for as long as this: a counter that stands still was not read."""
UNCOUNTED_JOULES = 1e-9
MOST_BYTES = 1e15
"""More memory than any node has."""
MOST_JOULES_AT_ONCE = 100.0
"""A counter that is renewed now and then may count so much in an instant."""
LONGEST_SECONDS = 86_400.0
"""A meter writes a line a minute: a line longer than a day is of a clock that was wrong."""
CPU_SLACK = 1.05
"""What a counter counts for that has not yet moved on in an interval shorter than that: it was read."""

JOB_NAMES = "{jobs}"

SeriesKey = tuple[str, str, str, str | None, Label, str]
"""Component, part, meter, plugin, label and method of a reading."""


@dataclass(frozen=True)
class MeteredJob:
    """An attempt, or a process of Snakemake, and what its meters wrote: one interval a line, of any of its nodes.

    `snakemake` names the process of Snakemake in whose tree the attempt is, where that is known. `last_seen` is when an
    attempt that was lost last said that it ran, in seconds of Unix time.
    """

    name: str
    step: str
    instance: dict[str, str]
    fate: Literal["finished", "lost", "snakemake"]
    slurm_job: str | None = None
    intervals: Sequence[MeterInterval] = ()
    snakemake: str | None = None
    last_seen: float | None = None


class Problems:
    """Sentences about nodes, each once, with how often and how long it was so."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._times: dict[str, int] = defaultdict(int)
        self._jobs: dict[str, set[str]] = defaultdict(set)

    def add(self, sentence: str, seconds: float = 0.0, job: str | None = None) -> None:
        """Add what is wrong; the sentence has no full stop yet, and JOBS where the names of the jobs are to stand."""
        self._seconds[sentence] += seconds
        self._times[sentence] += 1
        if job is not None:
            self._jobs[sentence].add(job)

    def sentences(self) -> list[str]:
        """Return them in the order of the alphabet."""
        found = []
        for sentence in sorted(self._times):
            times, seconds = self._times[sentence], self._seconds[sentence]
            words = [f"{times} times"] * (times > 1) + [f"{seconds:,.1f} s"] * (seconds > 0)
            told = sentence.replace(JOB_NAMES, format_names(self._jobs[sentence])) if self._jobs[sentence] else sentence
            found.append(f"{told} ({', '.join(words)})." if words else f"{told}.")
        return found


def format_names(names: Iterable[str], most: int = 3) -> str:
    """Return the first names in the order of the alphabet, and how many more there are."""
    names = sorted(names)
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@dataclass
class NodeUseTable:
    """Of one node, a row for each time that a job was there; CPU is a rate: processors that it kept busy.

    `like` is the row of the line that a row without a line is told by, its own number for a line, -1 where no line of
    the job is known. `node_cpu` is NaN where nobody counted it.
    """

    job: list[int] = field(default_factory=list)
    started: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    node_cpu: list[float] = field(default_factory=list)
    job_processors: list[int] = field(default_factory=list)
    gigabytes: list[float] = field(default_factory=list)
    boards: list[tuple[str, ...]] = field(default_factory=list)
    like: list[int] = field(default_factory=list)
    processors: int = 1

    def add_line(self, job: int, line: MeterInterval) -> int:
        """Add what a meter said; return its row."""
        number, seconds = len(self.job), line.ended - line.started
        self.add(job, line.started, line.ended, line.job_cpu_seconds / seconds, number, line)
        if not line.is_shared_start:
            self.node_cpu[-1] = max(line.node_cpu_seconds, line.job_cpu_seconds) / seconds
        self.processors = max(self.processors, line.processors)
        return number

    def add(self, job: int, started: float, ended: float, cpu: float, like: int, line: MeterInterval | None) -> None:
        """Add a time in which a job was there; `line` is the one that tells of it, or that it is taken to be like."""
        self.job.append(job)
        self.started.append(started)
        self.ended.append(ended)
        self.cpu.append(cpu)
        self.node_cpu.append(math.nan)
        self.job_processors.append(line.job_processors if line else 0)
        self.gigabytes.append(line.job_memory_bytes / 1e9 if line else 0.0)
        self.boards.append(line.job_boards if line else ())
        self.like.append(like)

    def floats(self, name: str) -> Floats:
        """Return a column as an array."""
        return np.array(getattr(self, name), dtype=float)

    def integers(self, name: str) -> Integers:
        """Return a column as an array."""
        return np.array(getattr(self, name), dtype=np.int64)


def drop_impossible_intervals(
    job: str, node: str, lines: Sequence[MeterInterval], problems: Problems
) -> list[MeterInterval]:
    """Return the lines of a job on a node in the order of time, without those that cannot be."""
    kept: list[MeterInterval] = []
    known = [line for line in lines if math.isfinite(line.started) and math.isfinite(line.ended)]
    if len(known) < len(lines):
        problems.add(f"{node}: an interval of {JOB_NAMES} says no time: left out", job=job)
    for line in sorted(known, key=lambda line: (line.started, line.ended)):
        seconds = line.ended - line.started
        numbers = (line.job_cpu_seconds, line.node_cpu_seconds, seconds)
        most = line.processors * max(seconds, 1.0) * CPU_SLACK
        if seconds <= 0:
            problems.add(
                f"{node}: an interval of {JOB_NAMES} ends before it starts, as if the clock had jumped: left out",
                job=job,
            )
        elif seconds > LONGEST_SECONDS:
            problems.add(
                f"{node}: an interval of {JOB_NAMES} of {seconds:,.0f} s, as if the clock had been wrong: left out",
                job=job,
            )
        elif not all(map(math.isfinite, numbers)) or min(numbers[:2]) < 0 or line.job_cpu_seconds > most:
            problems.add(f"{node}: an interval of {JOB_NAMES} has a CPU time that cannot be and is left out", job=job)
        elif not 0 <= line.job_memory_bytes < MOST_BYTES:
            problems.add(f"{node}: an interval of {JOB_NAMES} has a memory that cannot be and is left out", job=job)
        elif kept and line.started == kept[-1].started and line == kept[-1]:
            problems.add(f"{node}: an interval of {JOB_NAMES} stands twice and counts once", seconds, job=job)
        elif kept and kept[-1].ended - line.started > min(OVERLAP_SECONDS, seconds / 2):
            sentence = (
                f"{node}: an interval of {JOB_NAMES} lies over the one before it, as if the clock had jumped: left out"
            )
            problems.add(sentence, seconds, job=job)
        elif kept and line.started < kept[-1].ended:
            kept.append(line.model_copy(update={"started": kept[-1].ended}))
        else:
            kept.append(line)
    return kept


def add_intervals(
    uses: NodeUseTable,
    job: int,
    lines: Sequence[MeterInterval],
    name: str,
    node: str,
    problems: Problems,
    last_seen: float | None,
) -> None:
    """Add the sensible lines of a job on a node, and the silences between them and until it was last seen."""
    before: MeterInterval | None = None
    for line in lines:
        gap = before is not None and line.started - before.ended > SILENT_SECONDS
        if before is not None and gap and not before.is_shared_start:
            busy = before.job_cpu_seconds + line.job_cpu_seconds
            cpu = busy / (before.ended - before.started + line.ended - line.started)
            uses.add(job, before.ended, line.started, cpu, len(uses.job) - 1, before)
            sentence = (
                f"{node}: the meter of {JOB_NAMES} was silent: not measured by it, taken as busy as before and after"
            )
            problems.add(sentence, line.started - before.ended, job=name)
        uses.add_line(job, line)
        before = line
    if before is not None and last_seen is not None and SILENT_SECONDS < last_seen - before.ended < LONGEST_SECONDS:
        cpu = before.job_cpu_seconds / (before.ended - before.started)
        uses.add(job, before.ended, last_seen, cpu, len(uses.job) - 1, before)
        sentence = f"{node}: what the meter of {JOB_NAMES} saw last was lost with it: taken as busy as before"
        problems.add(sentence, last_seen - before.ended, job=name)


def is_plausible_reading(reading: Reading, node: str, origin: str, seconds: float, problems: Problems) -> bool:
    """Return whether a reading is one; a zero that lasts, like a number that cannot be, is none."""
    joules, what = reading.joules, f"{node}: {reading.meter} of {reading.component} {reading.part}".rstrip()
    if reading.problem:
        problems.add(f"{what}: {reading.problem.rstrip('.')}", seconds)
    if joules is None:
        if not reading.problem:
            problems.add(f"{what}: could not be read: not measured", seconds)
        return False
    if not math.isfinite(joules) or joules < 0:
        problems.add(f"{what}: {joules} J in {JOB_NAMES} cannot be: not measured", seconds, job=origin)
        return False
    if joules > MOST_WATTS["node"] * seconds + MOST_JOULES_AT_ONCE:
        problems.add(
            f"{what}: {joules / seconds:,.0f} W in {JOB_NAMES} is more than any node draws: not measured",
            seconds,
            job=origin,
        )
        return False
    if joules == 0 and seconds >= ZERO_SECONDS:
        problems.add(f"{what}: 0 J says that the meter is missing: not measured", seconds)
        return False
    return True


def series_key(reading: Reading) -> SeriesKey:
    """Return what tells one series of readings apart from another one of the same node."""
    return (reading.component, reading.part, reading.meter, reading.plugin, reading.label, reading.method)


def collect_rate_series(
    lines: Iterable[tuple[float, float, Sequence[Reading]]], node: str, origin: str, problems: Problems
) -> dict[SeriesKey, RateSeries]:
    """Return the readings of one origin, such as a job's meter on a node, by their kind; times do not overlap."""
    found: dict[SeriesKey, tuple[list[float], list[float], list[float]]] = {}
    for started, ended, readings in lines:
        seen = set()
        for reading in readings:
            kind = series_key(reading)
            if kind in seen:
                problems.add(
                    f"{node}: a reading of {JOB_NAMES} stands twice in one interval and counts once", job=origin
                )
                continue
            seen.add(kind)
            joules = reading.joules
            most = MOST_WATTS["node"] * (ended - started)
            plain = not reading.problem and joules is not None and 0 < joules < most
            if not plain and not is_plausible_reading(reading, node, origin, ended - started, problems):
                continue
            columns = found.setdefault(kind, ([], [], []))
            columns[0].append(started)
            columns[1].append(ended)
            columns[2].append(max(joules or 0.0, UNCOUNTED_JOULES) / (ended - started))
    return {kind: RateSeries(origin, *(np.array(column) for column in columns)) for kind, columns in found.items()}


def drop_stuck_counters(streams: Sequence[RateSeries], what: str, problems: Problems) -> list[RateSeries]:
    """Return streams of one part by one meter without what they say while its counter stands still.

    In an interval shorter than a counter's own, 0 J is true. In several of them, one after another, it is not.
    """
    started, ended, rate = (np.concatenate([getattr(one, name) for one in streams]) for name in RateSeries._fields[1:])
    order = np.lexsort((ended, started))
    still = (rate * (ended - started))[order] <= UNCOUNTED_JOULES
    started, ended = started[order], ended[order]
    before = np.append(-np.inf, np.maximum.accumulate(ended)[:-1])  # until when anybody has looked
    run = np.cumsum(np.append(True, still[1:] != still[:-1]) | (started > before + ZERO_SECONDS))
    seconds = np.bincount(run, np.where(still, np.maximum(ended - np.maximum(started, before), 0.0), 0.0))
    wrong = np.empty(len(order), dtype=bool)
    wrong[order] = still & (seconds[run] >= ZERO_SECONDS)
    if not wrong.any():
        return [*streams]
    sentence = f"{what}: it shows no energy for longer than a counter may: not measured"
    problems.add(sentence, float(seconds[np.unique(run[wrong[order]])].sum()))
    found, at = [], 0
    for one in streams:
        kept = ~wrong[at : at + len(one.rate)]
        at += len(one.rate)
        if kept.any():
            found.append(RateSeries(one.origin, one.started[kept], one.ended[kept], one.rate[kept]))
    return found


def read_job_intervals(files: Iterable[Path], problems: list[str]) -> dict[str, list[MeterInterval]]:
    """Return the intervals of each attempt, by the attempt's name, of all its nodes, from files of readings.

    A line or a file that cannot be read is a sentence in `problems`; all others are kept.
    """
    uses: dict[str, list[MeterInterval]] = {}
    for path in files:
        lines = uses.setdefault(path.stem.rpartition("@")[0] or path.stem, [])
        try:
            lines += read_intervals(path, problems)
        except OSError as error:
            problems.append(f"{path} cannot be read ({error.strerror}): what the meter wrote is not in the account.")
    return uses
