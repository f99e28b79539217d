"""Meter a node once per job: read all meters of the node, and write one line per interval.

Meters know nothing of processes: `pipeline/energy/attribution/job_energy_attribution.py` divides the energy later,
from the intervals of all jobs. Durations come from a monotonic clock, and timestamps from one look at the calendar, so
that a calendar that jumps makes no interval negative or huge.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.energy.cpu_time_accounting import get_process_accounting
from pipeline.energy.gpu_meter import DEVICES, find_gpu_driver, find_gpu_meter
from pipeline.energy.rapl_and_cray_meters import (
    FIRST_READING,
    PM_COUNTERS,
    POWERCAP,
    Meter,
    find_pm_counters,
    find_rapl,
)
from pipeline.energy.readings import UNCHANGED_FIELDS, MeterInterval, Reading
from pipeline.energy.startup_counters import (
    ATTEMPT_VARIABLE,
    READINGS_VARIABLE,
    CounterSample,
    meters_additional_node,
    monotonic_seconds,
    node_name,
    pop_startup_sample,
    read_node_cpu_seconds,
)

SAMPLE_SECONDS = 2.0
POWER_SAMPLE_SECONDS = 0.5  # of a board without a counter: docs/results/energy.md has the error of 2 s
DETACHED_SAMPLE_SECONDS = 0.25  # for ranks of srun, whose last CPU seconds nothing reports afterwards
SHORTEST_START_SECONDS = 0.05
SHORTEST_WRITE_SECONDS = 5.0
LONGEST_WRITE_SECONDS = 60.0
LINES_PER_JOB = 360  # intervals get longer with the job, so that it has about this many
JOIN_SECONDS = 10.0  # a driver that no longer answers must not keep a job from its end
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BOARD_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "SLURM_STEP_GPUS",
    "SLURM_JOB_GPUS",
)


def find_meters(
    powercap: Path = POWERCAP, counters: Path = PM_COUNTERS, devices: Path = DEVICES, *, with_gpus: bool = True
) -> list[Meter]:
    """Find the meters of this node; those of a Cray node measure all its parts, so that no other one is read."""
    if (cray := find_pm_counters(counters)) is not None:
        return [cray]
    driver = find_gpu_driver(devices) if with_gpus else None
    meters: list[Meter | None] = [find_rapl(powercap), find_gpu_meter(driver)]
    return [meter for meter in meters if meter is not None]


def _find_meters_or_warn(*, with_gpus: bool = True) -> list[Meter]:
    try:
        return find_meters(with_gpus=with_gpus)
    except Exception as error:
        logging.getLogger(__name__).warning("no meter of this node can be read: %s", error)
        return []


def read_boot_id() -> str:
    """Return Linux's name of this machine since it was switched on, the same in all containers; else nothing."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def readings_file(folder: Path, name: str) -> Path:
    """Return the file for the intervals of an attempt, or of another process, on this node."""
    return folder / f"{name}@{node_name()}.jsonl"


def count_logical_cpus(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return the logical processors of the node, and how many of them the job may use.

    Slurm's number covers all tasks of a job on the node; the affinity of one process may cover one task.
    """
    every = os.cpu_count() or 1
    allocated = environment.get("SLURM_CPUS_ON_NODE", "") if "SLURM_JOB_ID" in environment else ""
    if allocated.isdigit() and int(allocated):
        return every, min(int(allocated), every)
    return every, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else every


def find_job_boards(boards: Sequence[str], environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the boards that the job may use, each once; all of them where that is unknown.

    Args:
        boards: the board of each GPU, in the order of their numbers. A number beyond them means that the job sees its
            own GPUs alone.
        environment: the variables of the job.
    """
    every = tuple(dict.fromkeys(boards))
    for name in BOARD_VARIABLES:
        if (value := environment.get(name)) is None:
            continue
        words = [word.strip() for word in value.split(",")]
        if words[0] in ("", "-1", "NoDevFiles"):
            return ()
        if all(word.isdigit() and int(word) < len(boards) for word in words):
            return tuple(dict.fromkeys(boards[int(word)] for word in words))
        # CUDA allows abbreviated UUIDs.
        matches = [[board for board in every if board.startswith(word)] for word in words]
        is_unique = all(len(candidates) == 1 for candidates in matches)
        return tuple(candidates[0] for candidates in matches) if is_unique else every
    return every


class LineFile:
    """A file of complete lines; lines that a full disk refuses wait in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting = b""

    def append_line(self, line: str) -> None:
        """Append a line in one write, after removing a line that a kill has truncated."""
        self._waiting += line.encode() + b"\n"
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                length = os.fstat(file).st_size
                if length and os.pread(file, 1, length - 1) != b"\n":
                    length = self._path.read_bytes().rfind(b"\n") + 1
                    os.ftruncate(file, length)
                if os.write(file, self._waiting) < len(self._waiting):
                    os.ftruncate(file, length)
                else:
                    self._waiting = b""
            finally:
                os.close(file)


def monotonic_clock_origin() -> float:
    """Return what Unix time was, by the clock of now, when the monotonic clock began."""
    return time.time() - monotonic_seconds()


class MeterSet:
    """The meters of a node, read by one calendar."""

    def __init__(self, meters: Sequence[Meter], calendar: float) -> None:
        self.meters, self.calendar = meters, calendar
        self._warned = False

    def to_unix_time(self, moment: float) -> float:
        """Return the Unix time of a time of the monotonic clock."""
        return self.calendar + moment

    def _call(self, action: Callable[[Meter], object], meters: Sequence[Meter] | None = None) -> None:
        for meter in self.meters if meters is None else meters:
            try:
                action(meter)
            except Exception as error:  # a broken meter must not stop the job that it measures
                if not self._warned:
                    logging.getLogger(__name__).warning("a meter cannot be read: %s", error)
                self._warned = True

    def begin(self, sample: CounterSample) -> None:
        """Begin with counters that were sampled before the meters were found."""
        self._call(lambda meter: meter.begin(self.to_unix_time(sample.moment), sample))

    def sample(self) -> None:
        """Read the counters between two readings."""
        now = self.to_unix_time(monotonic_seconds())
        self._call(lambda meter: meter.sample(now))

    def sample_powers(self) -> bool:
        """Read the meters that have parts without an energy counter; return whether there are any."""
        often = [meter for meter in self.meters if meter.reads_power]
        now = self.to_unix_time(monotonic_seconds())
        self._call(lambda meter: meter.sample(now), often)
        return bool(often)

    def take_interval_readings(self) -> tuple[Reading, ...]:
        """Return the readings since the last call."""
        readings: list[Reading] = []
        now = self.to_unix_time(monotonic_seconds())
        self._call(lambda meter: readings.extend(meter.take_interval_readings(now)))
        return tuple(readings)


class StartupInterval(NamedTuple):
    """A part of the time before a process found its meters, in monotonic seconds."""

    started: float
    ended: float
    cpu_seconds: float
    node_cpu_seconds: float = 0.0
    readings: tuple[Reading, ...] = ()


def _begin_meters(
    meters: MeterSet, since: float, take_cpu_seconds: Callable[[], float]
) -> tuple[list[StartupInterval], float]:
    """Begin the readings of meters that were just found.

    Args:
        meters: the meters.
        since: when this process began, or the last meter in it ended.
        take_cpu_seconds: returns the CPU seconds since then.

    Returns:
        The intervals before now and the CPU seconds of the node now. The first interval has no readings; where counters
        were sampled when the process began, it ends there, and the second one has readings. There are none if the
        meters were found at once.
    """
    sample = pop_startup_sample()
    if sample is None:
        meters.take_interval_readings()
        now, node_cpu_seconds = monotonic_seconds(), read_node_cpu_seconds()
        is_short = now - since <= SHORTEST_START_SECONDS
        return [] if is_short else [StartupInterval(since, now, take_cpu_seconds())], node_cpu_seconds
    meters.begin(sample)
    readings = tuple(one for one in meters.take_interval_readings() if not (one.problem or "").endswith(FIRST_READING))
    now, cpu_seconds, node_cpu_seconds = monotonic_seconds(), take_cpu_seconds(), read_node_cpu_seconds()
    early = min(sample.cpu_seconds, cpu_seconds)
    node_seconds = node_cpu_seconds - sample.node_cpu_seconds
    later = StartupInterval(sample.moment, now, cpu_seconds - early, node_seconds, readings)
    return [StartupInterval(since, sample.moment, early), later], node_cpu_seconds


# The meters of an ended NodeMeter: the next attempt of this process continues with them.
_reusable_meters: list[MeterSet] = []
os.register_at_fork(after_in_child=_reusable_meters.clear)

# What each forked process has of the start of the one that forked it, and the number of that one.
_shared_startup: tuple[int, list[StartupInterval]] = (0, [])


def divide_startup_among_jobs(parts: int) -> None:
    """Share the time and CPU seconds of this process so far among jobs, for each of which it will fork a process."""
    global _shared_startup
    since, cpu_seconds = get_process_accounting().take_unclaimed()
    meters = MeterSet(_find_meters_or_warn(with_gpus=False), monotonic_clock_origin())
    intervals, _ = _begin_meters(meters, since, lambda: cpu_seconds)
    _shared_startup = os.getpid(), [one._replace(cpu_seconds=one.cpu_seconds / parts) for one in intervals]


def _take_shared_startup() -> list[StartupInterval]:
    global _shared_startup
    process, intervals = _shared_startup
    if process == os.getpid():
        return []
    _shared_startup = 0, []
    return intervals


class NodeMeter:
    """Read the node's meters from creation to `end`, and write their readings with what the job used.

    The job is this process, its descendants and, where PIPELINE_ATTEMPT is set, processes of the same attempt on this
    node under other parents. The intervals hold all that they used since this process began, also before its meters
    were found: see `startup_counters`. Each NodeMeter of a process begins where the one before it ended; two at once
    share equally.

    Args:
        path: the file to append to.
        meters: those of the node; None to find them.
    """

    def __init__(self, path: Path, meters: Sequence[Meter] | None = None) -> None:
        self.path = path
        self._process = os.getpid()
        self._lines = LineFile(path)
        self._accounting = get_process_accounting()
        self._since = self._accounting.open_meter(self, os.environ.get(ATTEMPT_VARIABLE))
        self._began = monotonic_seconds()
        self._node, self._boot_id = node_name(), read_boot_id()
        self._node_cpu_seconds = read_node_cpu_seconds()
        self._memory = [self._accounting.update_and_read_memory()]
        self._past: list[str] = []
        self._unchanged: dict[str, Any] = {}
        self._pooled = meters is None
        known = _reusable_meters.pop() if self._pooled and _reusable_meters else MeterSet([], calendar=0.0)
        clock_offset = monotonic_clock_origin()
        is_known = abs(known.calendar - clock_offset) <= 1.0
        if not is_known and meters is None:
            meters = _find_meters_or_warn()
        self._meters = MeterSet(known.meters if is_known else meters or [], clock_offset)
        for one in _take_shared_startup():
            self._past.append(self._format_interval(*one, is_shared_start=True))
            self._since = max(self._since, one.ended)
        if not is_known:
            self._begin_readings()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="node meter", daemon=True)
        self._thread.start()

    def _begin_readings(self) -> None:
        """Begin the first interval; the time before it becomes intervals of its own, unless it is too short."""
        take_cpu_seconds = partial(self._accounting.take_cpu_seconds, self)
        intervals, node_cpu_seconds = _begin_meters(self._meters, self._since, take_cpu_seconds)
        for one in intervals:
            self._past.append(self._format_interval(*one))
            self._since, self._node_cpu_seconds = one.ended, node_cpu_seconds

    def _format_interval(
        self,
        started: float,
        ended: float,
        cpu_seconds: float,
        node_cpu_seconds: float = 0.0,
        readings: tuple[Reading, ...] = (),
        is_shared_start: bool = False,
    ) -> str:
        """Return the line of an interval; the node used at least what the job did, the only known part before us."""
        all_processors, own_processors = count_logical_cpus()
        from_moment = round(self._meters.to_unix_time(started), 3)
        interval = MeterInterval(
            node=self._node,
            started=from_moment,
            ended=max(round(self._meters.to_unix_time(ended), 3), round(from_moment + 0.001, 3)),
            job_cpu_seconds=round(cpu_seconds, 4),
            node_cpu_seconds=round(max(node_cpu_seconds, cpu_seconds), 4),
            processors=all_processors,
            job_processors=own_processors,
            job_memory_bytes=round(sum(self._memory) / len(self._memory)),
            job_boards=find_job_boards([part for meter in self._meters.meters for part in meter.gpus]),
            readings=readings,
            boot_id=self._boot_id,
            booted=round(self._meters.calendar, 3) if self._boot_id else None,
            is_shared_start=is_shared_start,
        )
        before, self._unchanged = self._unchanged, interval.model_dump(include=UNCHANGED_FIELDS)
        left_out = UNCHANGED_FIELDS if self._unchanged == before else None
        return interval.model_dump_json(exclude_defaults=True, exclude=left_out)

    def _write_interval(self, last: bool = False) -> None:
        readings, ended, node_cpu_seconds = (
            self._meters.take_interval_readings(),
            monotonic_seconds(),
            read_node_cpu_seconds(),
        )
        cpu_seconds = self._accounting.take_cpu_seconds(self, last)
        used = node_cpu_seconds - self._node_cpu_seconds
        line = self._format_interval(self._since, ended, cpu_seconds, used, readings)
        self._lines.append_line("\n".join([*self._past, line]))
        self._since, self._node_cpu_seconds = ended, node_cpu_seconds
        self._memory, self._past = self._memory[-1:], []

    def _sample(self) -> None:
        self._meters.sample()
        self._memory.append(self._accounting.update_and_read_memory())

    def _work(self) -> None:
        write_at, sample_at = self._began + SHORTEST_WRITE_SECONDS, self._began + SAMPLE_SECONDS
        while True:
            next_at = min(write_at, sample_at)
            if self._accounting.sample_detached():
                next_at = min(next_at, monotonic_seconds() + DETACHED_SAMPLE_SECONDS)
            if self._meters.sample_powers():
                next_at = min(next_at, monotonic_seconds() + POWER_SAMPLE_SECONDS)
            if self._stop.wait(max(0.0, next_at - monotonic_seconds())):
                return
            if (now := monotonic_seconds()) >= write_at:
                self._write_interval()
                longest = min(LONGEST_WRITE_SECONDS, (now - self._began) / LINES_PER_JOB)
                write_at, sample_at = now + max(SHORTEST_WRITE_SECONDS, longest), now + SAMPLE_SECONDS
            elif now >= sample_at:
                self._sample()
                sample_at = now + SAMPLE_SECONDS

    def end(self) -> None:
        """Write the last interval; a second call, or one in a forked process, does nothing."""
        if os.getpid() != self._process or self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            self._accounting.take_cpu_seconds(self, last=True)
            return
        self._memory.append(self._accounting.update_and_read_memory())
        self._write_interval(last=True)
        if self._pooled:
            _reusable_meters.append(self._meters)

    def __enter__(self) -> NodeMeter:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@contextmanager
def meter_additional_node(environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Meter this node during the block, in the first process here of an attempt whose own meter is on another node."""
    if not meters_additional_node(environment):
        yield
        return
    with NodeMeter(readings_file(Path(environment[READINGS_VARIABLE]), environment[ATTEMPT_VARIABLE])):
        yield
