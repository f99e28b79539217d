"""Collect what each job used of each node from the intervals of its meters, in order and without impossible ones.

Where a meter was silent between two intervals, or had not started although Slurm's accounting has the job, the job is
taken to be as busy as it was before and after.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.core.archived_run_files import StoredFile
from pipeline.energy.readings import MOST_WATTS, Label, MeterInterval, Reading, read_intervals

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

SILENT_SECONDS = 1.0
"""A longer gap between two intervals of a meter means that it has missed something."""
OVERLAP_SECONDS = 0.05
"""Linux and meters round the start of a process: intervals that overlap by less follow one another."""
ZERO_SECONDS = 1.0
"""Nothing that is switched on uses 0 J for this long: the counter is stuck or was not read."""
UNCOUNTED_JOULES = 1e-9
"""Stands for 0 J in an interval shorter than a counter's period: the counter was read."""
MOST_BYTES = 1e15
"""More memory than any node has."""
MOST_JOULES_AT_ONCE = 100.0
"""A counter that is updated now and then may add this much in an instant."""
LONGEST_SECONDS = 86_400.0
"""Meters write an interval a minute: one longer than a day comes from a wrong clock."""
CPU_TOLERANCE = 1.05
"""CPU seconds may exceed processors × time by this factor, as both are rounded."""

JOB_NAMES = "{jobs}"

SeriesKey = tuple[str, str, str, str | None, Label, str, str]
"""Component, part, meter, plugin, label, method and architecture of a reading."""


class RateSeries(NamedTuple):
    """The readings of one meter of one part as rates per second, in intervals that do not overlap."""

    origin: str
    started: Floats
    ended: Floats
    rate: Floats

    @property
    def seconds(self) -> float:
        return float((self.ended - self.started).sum())


@dataclass(frozen=True)
class MeteredJob:
    """An attempt, or a process of Snakemake, with the intervals of its meters on all its nodes.

    Attributes:
        snakemake: the process of Snakemake whose tree the attempt is in, where that is known.
        last_seen: the last heartbeat of a lost attempt, in seconds of Unix time.
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
    """Collects problems of nodes, each once, with how often it occurred and for how long."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._times: dict[str, int] = defaultdict(int)
        self._jobs: dict[str, set[str]] = defaultdict(set)

    def add(self, sentence: str, seconds: float = 0.0, job: str | None = None) -> None:
        """Add a sentence without its full stop, with JOB_NAMES in the place of the jobs' names."""
        self._seconds[sentence] += seconds
        self._times[sentence] += 1
        if job is not None:
            self._jobs[sentence].add(job)

    def sentences(self) -> list[str]:
        sentences = []
        for sentence in sorted(self._times):
            times, seconds = self._times[sentence], self._seconds[sentence]
            words = [f"{times} times"] * (times > 1) + [f"{seconds:,.1f} s"] * (seconds > 0)
            text = sentence.replace(JOB_NAMES, format_names(self._jobs[sentence])) if self._jobs[sentence] else sentence
            sentences.append(f"{text} ({', '.join(words)})." if words else f"{text}.")
        return sentences


def format_names(names: Iterable[str], most: int = 3) -> str:
    """Return the first names in alphabetical order, and the number of the others."""
    names = sorted(names)
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class UseRow(NamedTuple):
    """A time in which a job was on a node.

    Attributes:
        job: its number.
        cpu: processors that it kept busy on average.
        node_cpu: the same of all processes of the node; NaN where no meter counted them.
        source: the row of the interval that this one is taken from: its own for an interval; -1 where none is known.
    """

    job: int
    started: float
    ended: float
    cpu: float
    node_cpu: float
    job_processors: int
    gigabytes: float
    boards: tuple[str, ...]
    source: int


class NodeUseTable:
    """The times in which jobs were on one node."""

    def __init__(self) -> None:
        self.rows: list[UseRow] = []
        self.processors = 1

    def add_interval(self, job: int, line: MeterInterval) -> None:
        seconds, node_cpu = line.ended - line.started, math.nan
        if line.readings or not line.is_shared_start:  # without readings nobody looked at the node when it began
            node_cpu = max(line.node_cpu_seconds, line.job_cpu_seconds) / seconds
        self.add(job, line.started, line.ended, line.job_cpu_seconds / seconds, len(self.rows), line, node_cpu)
        self.processors = max(self.processors, line.processors)

    def add(
        self,
        job: int,
        started: float,
        ended: float,
        cpu: float,
        source: int,
        line: MeterInterval | None,
        node_cpu: float = math.nan,
    ) -> None:
        """Add a time in which a job was there, with processors, memory and boards of `line`."""
        processors, gigabytes, boards = 0, 0.0, tuple[str, ...]()
        if line:
            processors, gigabytes, boards = line.job_processors, line.job_memory_bytes / 1e9, line.job_boards
        self.rows.append(UseRow(job, started, ended, cpu, node_cpu, processors, gigabytes, boards, source))

    def float_column(self, name: str, first: int = 0) -> Floats:
        """Return a column, from a row on, as an array."""
        return np.array([getattr(row, name) for row in self.rows[first:]], dtype=float)

    def integer_column(self, name: str) -> Integers:
        return np.array([getattr(row, name) for row in self.rows], dtype=np.int64)


def drop_impossible_intervals(
    job: str, node: str, lines: Sequence[MeterInterval], problems: Problems
) -> list[MeterInterval]:
    """Return the intervals of a job on a node in order of time, without impossible ones."""
    kept: list[MeterInterval] = []
    known = [line for line in lines if math.isfinite(line.started) and math.isfinite(line.ended)]
    what = f"{node}: an interval of {JOB_NAMES}"
    if len(known) < len(lines):
        problems.add(f"{what} has no time: left out", job=job)
    for line in sorted(known, key=lambda line: (line.started, line.ended)):
        seconds = line.ended - line.started
        numbers = (line.job_cpu_seconds, line.node_cpu_seconds, seconds)
        most = line.processors * max(seconds, 1.0) * CPU_TOLERANCE
        if seconds <= 0:
            problems.add(f"{what} ends before it starts, as if the clock had jumped: left out", job=job)
        elif seconds > LONGEST_SECONDS:
            problems.add(f"{what} lasts {seconds:,.0f} s, as if the clock had been wrong: left out", job=job)
        elif not all(map(math.isfinite, numbers)) or min(numbers[:2]) < 0 or line.job_cpu_seconds > most:
            problems.add(f"{what} has an impossible CPU time: left out", job=job)
        elif not 0 <= line.job_memory_bytes < MOST_BYTES:
            problems.add(f"{what} has an impossible memory: left out", job=job)
        elif kept and line.started == kept[-1].started and line == kept[-1]:
            problems.add(f"{what} occurs twice and counts once", seconds, job=job)
        elif kept and kept[-1].ended - line.started > min(OVERLAP_SECONDS, seconds / 2):
            problems.add(f"{what} overlaps the one before it, as if the clock had jumped: left out", seconds, job=job)
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
    """Add the intervals of a job on a node, the gaps between them, and the time until it was last seen."""
    before: MeterInterval | None = None
    for line in lines:
        gap = before is not None and line.started - before.ended > SILENT_SECONDS
        if before is not None and gap and not before.is_shared_start:
            busy = before.job_cpu_seconds + line.job_cpu_seconds
            cpu = busy / (before.ended - before.started + line.ended - line.started)
            uses.add(job, before.ended, line.started, cpu, len(uses.rows) - 1, before)
            sentence = f"{node}: the meter of {JOB_NAMES} was silent: not measured, taken as busy as before and after"
            problems.add(sentence, line.started - before.ended, job=name)
        uses.add_interval(job, line)
        before = line
    if before is not None and last_seen is not None and SILENT_SECONDS < last_seen - before.ended < LONGEST_SECONDS:
        cpu = before.job_cpu_seconds / (before.ended - before.started)
        uses.add(job, before.ended, last_seen, cpu, len(uses.rows) - 1, before)
        sentence = f"{node}: the last interval of the meter of {JOB_NAMES} was lost: taken as busy as before"
        problems.add(sentence, last_seen - before.ended, job=name)


def is_plausible_reading(reading: Reading, node: str, origin: str, seconds: float, problems: Problems) -> bool:
    """Return whether a reading can be true; a lasting zero cannot, nor can a number beyond the hardware."""
    joules, what = reading.joules, f"{node}: {reading.meter} of {reading.component} {reading.part}".rstrip()
    if reading.problem:
        problems.add(f"{what}: {reading.problem.rstrip('.')}", seconds)
    if joules is None:
        if not reading.problem:
            problems.add(f"{what}: could not be read: not measured", seconds)
        return False
    if not math.isfinite(joules) or joules < 0:
        problems.add(f"{what}: {joules} J in {JOB_NAMES} is impossible: not measured", seconds, job=origin)
        return False
    if joules > MOST_WATTS["node"] * seconds + MOST_JOULES_AT_ONCE:
        watts = f"{joules / seconds:,.0f} W in {JOB_NAMES}"
        problems.add(f"{what}: {watts} is more than any node draws: not measured", seconds, job=origin)
        return False
    if joules == 0 and seconds >= ZERO_SECONDS:
        problems.add(f"{what}: 0 J means that the meter is missing: not measured", seconds)
        return False
    return True


def collect_meter_power_series(
    lines: Iterable[tuple[float, float, Sequence[Reading]]], node: str, origin: str, problems: Problems
) -> dict[SeriesKey, RateSeries]:
    """Return the readings of one origin, such as a job's meter on a node, by series; intervals do not overlap."""
    columns_by_kind: dict[SeriesKey, tuple[list[float], list[float], list[float]]] = {}
    for started, ended, readings in lines:
        seen = set()
        for reading in readings:
            kind = (
                *(reading.component, reading.part, reading.meter),
                *(reading.plugin, reading.label, reading.method, reading.architecture),
            )
            if kind in seen:
                problems.add(f"{node}: a reading of {JOB_NAMES} occurs twice in an interval, counts once", job=origin)
                continue
            seen.add(kind)
            joules = reading.joules
            most = MOST_WATTS["node"] * (ended - started)
            plain = not reading.problem and joules is not None and 0 < joules < most
            if not plain and not is_plausible_reading(reading, node, origin, ended - started, problems):
                continue
            columns = columns_by_kind.setdefault(kind, ([], [], []))
            columns[0].append(started)
            columns[1].append(ended)
            columns[2].append(max(joules or 0.0, UNCOUNTED_JOULES) / (ended - started))
    return {
        kind: RateSeries(origin, *(np.array(column) for column in columns)) for kind, columns in columns_by_kind.items()
    }


def drop_stuck_intervals(streams: Sequence[RateSeries], what: str, problems: Problems) -> list[RateSeries]:
    """Return the series of one part by one meter without the times in which its counter is stuck.

    In one interval shorter than the counter's period 0 J is true; in several consecutive ones it is not.
    """
    started, ended, rate = (np.concatenate([getattr(one, name) for one in streams]) for name in RateSeries._fields[1:])
    order = np.lexsort((ended, started))
    still = (rate * (ended - started))[order] <= UNCOUNTED_JOULES
    started, ended = started[order], ended[order]
    before = np.append(-np.inf, np.maximum.accumulate(ended)[:-1])  # the end of all earlier intervals
    run = np.cumsum(np.append(True, still[1:] != still[:-1]) | (started > before + ZERO_SECONDS))
    seconds = np.bincount(run, np.where(still, np.maximum(ended - np.maximum(started, before), 0.0), 0.0))
    wrong = np.empty(len(order), dtype=bool)
    wrong[order] = still & (seconds[run] >= ZERO_SECONDS)
    if not wrong.any():
        return [*streams]
    sentence = f"{what}: it shows no energy for longer than a counter may: not measured"
    problems.add(sentence, float(seconds[np.unique(run[wrong[order]])].sum()))
    kept_series, at = [], 0
    for one in streams:
        kept = ~wrong[at : at + len(one.rate)]
        at += len(one.rate)
        if kept.any():
            kept_series.append(RateSeries(one.origin, one.started[kept], one.ended[kept], one.rate[kept]))
    return kept_series


def read_job_intervals(files: Iterable[StoredFile], problems: list[str]) -> dict[str, list[MeterInterval]]:
    """Read files of readings; return the intervals of each attempt on all its nodes, by the attempt's name.

    A line or a file that cannot be read becomes a sentence in `problems`; all others are kept.
    """
    uses: dict[str, list[MeterInterval]] = {}
    for path in files:
        lines = uses.setdefault(path.stem.rpartition("@")[0] or path.stem, [])
        try:
            lines += read_intervals(path, problems)
        except OSError as error:
            problems.append(f"{path} cannot be read ({error.strerror}): the energy accounting ignores it.")
    return uses
