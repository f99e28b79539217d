"""Meter a node once per job: read all meters of the node, and write one line per interval.

Meters know nothing of processes: `pipeline/energy/attribution/run_attribution.py` divides the energy later, from the
intervals of all jobs. Durations come from a monotonic clock, and timestamps from one look at the calendar, so that a
calendar that jumps makes no interval negative or huge.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from pipeline.energy.cpu_time_accounting import ATTEMPT_VARIABLE, get_cpu_time_accounting, monotonic_seconds
from pipeline.energy.gpu_meter import DEVICES, find_gpu_driver, find_gpu_meter
from pipeline.energy.meters import PM_COUNTERS, POWERCAP, Meter, find_pm_counters, find_rapl
from pipeline.energy.readings import UNCHANGED_FIELDS, MeterInterval, Reading

READINGS_VARIABLE = "PIPELINE_READINGS"
"""The variable with the folder of an attempt's readings, for meters on its other nodes."""

NODE_VARIABLE = "PIPELINE_METERED_NODE"
"""The variable with the node that the attempt itself meters."""

SAMPLE_SECONDS = 2.0
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


def find_meters(powercap: Path = POWERCAP, counters: Path = PM_COUNTERS, devices: Path = DEVICES) -> list[Meter]:
    """Find the meters of this node; those of a Cray node measure all its parts, so that no other one is read."""
    if (cray := find_pm_counters(counters)) is not None:
        return [cray]
    meters: list[Meter | None] = [find_rapl(powercap), find_gpu_meter(find_gpu_driver(devices))]
    return [meter for meter in meters if meter is not None]


def _find_meters_or_warn() -> list[Meter]:
    try:
        return find_meters()
    except Exception as error:
        logging.getLogger(__name__).warning("no meter of this node can be read: %s", error)
        return []


def node_name(environment: Mapping[str, str] = os.environ) -> str:
    """Return Slurm's name of this node, or else its host name."""
    return environment.get("SLURMD_NODENAME") or platform.node()


def read_boot_id() -> str:
    """Return Linux's name of this machine since it was switched on, the same in all containers; else nothing."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def readings_file(folder: Path, name: str) -> Path:
    """Return the file for the intervals of an attempt, or of another process, on this node."""
    return folder / f"{name}@{node_name()}.jsonl"


def count_processors(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
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
        return tuple(found[0] for found in matches) if all(len(found) == 1 for found in matches) else every
    return every


class LineFile:
    """A file of complete lines; lines that a full disk refuses wait in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting = b""

    def add(self, line: str) -> None:
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


def _read_node_cpu_seconds() -> float:
    times = psutil.cpu_times()  # the time of guests is in `user` and `nice` already
    return float(times.user + times.nice + times.system)


# The meters of an ended NodeMeter, with its calendar: the next attempt of this process continues with them.
_reusable_meters: list[tuple[float, list[Meter]]] = []
os.register_at_fork(after_in_child=_reusable_meters.clear)


class NodeMeter:
    """Read the node's meters from creation to `end`, and write their readings with what the job used.

    The job is this process, its descendants and, where PIPELINE_ATTEMPT is set, processes of the same attempt on this
    node under other parents. The intervals hold all that they used since this process began: the time before the meters
    were found is an interval of its own, without readings. Each NodeMeter of a process begins where the one before it
    ended; two at once share equally.

    Args:
        path: the file to append to.
        meters: those of the node; None to find them.
    """

    def __init__(self, path: Path, meters: Sequence[Meter] | None = None) -> None:
        self.path = path
        self._process = os.getpid()
        self._lines = LineFile(path)
        self._warned = False
        self._accounting = get_cpu_time_accounting()
        self._since = self._accounting.open_meter(self, os.environ.get(ATTEMPT_VARIABLE))
        self._began = monotonic_seconds()
        self._calendar = time.time() - self._began
        self._node, self._boot_id = node_name(), read_boot_id()
        self._node_cpu_seconds = _read_node_cpu_seconds()
        self._memory = [self._accounting.sample()]
        self._past: list[str] = []
        self._unchanged: dict[str, Any] = {}
        self._pooled = meters is None
        calendar, known = _reusable_meters.pop() if self._pooled and _reusable_meters else (0.0, [])
        self._meters: list[Meter] = known
        if (past := self._accounting.inherited) is not None:
            self._past.append(self._format_interval(past.started, past.ended, past.cpu_seconds, is_shared_start=True))
            self._accounting.inherited = None
            self._since = max(self._since, past.ended)
        if abs(calendar - self._calendar) > 1.0:
            self._meters = list(_find_meters_or_warn() if meters is None else meters)
            self._take_readings()
            self._begin_readings()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="node meter", daemon=True)
        self._thread.start()

    def _begin_readings(self) -> None:
        """Begin the first interval with readings; a longer time before it becomes an interval without."""
        now = monotonic_seconds()
        if now - self._since > SHORTEST_START_SECONDS:
            self._past.append(self._format_interval(self._since, now, self._accounting.take_cpu_seconds(self)))
            self._since, self._node_cpu_seconds = now, _read_node_cpu_seconds()

    def _to_unix_time(self, moment: float) -> float:
        return self._calendar + moment

    def _call_meters(self, action: Callable[[Meter], object]) -> None:
        for meter in self._meters:
            try:
                action(meter)
            except Exception as error:  # a broken meter must not stop the job that it measures
                if not self._warned:
                    logging.getLogger(__name__).warning("a meter cannot be read: %s", error)
                self._warned = True

    def _take_readings(self) -> tuple[Reading, ...]:
        readings: list[Reading] = []
        now = self._to_unix_time(monotonic_seconds())
        self._call_meters(lambda meter: readings.extend(meter.take_readings(now)))
        return tuple(readings)

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
        all_processors, own_processors = count_processors()
        from_moment = round(self._to_unix_time(started), 3)
        interval = MeterInterval(
            node=self._node,
            started=from_moment,
            ended=max(round(self._to_unix_time(ended), 3), round(from_moment + 0.001, 3)),
            job_cpu_seconds=round(cpu_seconds, 4),
            node_cpu_seconds=round(max(node_cpu_seconds, cpu_seconds), 4),
            processors=all_processors,
            job_processors=own_processors,
            job_memory_bytes=round(sum(self._memory) / len(self._memory)),
            job_boards=find_job_boards([part for meter in self._meters for part in meter.gpus]),
            readings=readings,
            boot_id=self._boot_id,
            booted=round(self._calendar, 3) if self._boot_id else None,
            is_shared_start=is_shared_start,
        )
        before, self._unchanged = self._unchanged, interval.model_dump(include=UNCHANGED_FIELDS)
        left_out = UNCHANGED_FIELDS if self._unchanged == before else None
        return interval.model_dump_json(exclude_defaults=True, exclude=left_out)

    def _write_interval(self, last: bool = False) -> None:
        readings, ended, node_cpu_seconds = self._take_readings(), monotonic_seconds(), _read_node_cpu_seconds()
        cpu_seconds = self._accounting.take_cpu_seconds(self, last)
        used = node_cpu_seconds - self._node_cpu_seconds
        line = self._format_interval(self._since, ended, cpu_seconds, used, readings)
        self._lines.add("\n".join([*self._past, line]))
        self._since, self._node_cpu_seconds = ended, node_cpu_seconds
        self._memory, self._past = self._memory[-1:], []

    def _sample(self) -> None:
        now = self._to_unix_time(monotonic_seconds())
        self._call_meters(lambda meter: meter.sample(now))
        self._memory.append(self._accounting.sample())

    def _work(self) -> None:
        write_at, sample_at = self._began + SHORTEST_WRITE_SECONDS, self._began + SAMPLE_SECONDS
        while True:
            next_at = min(write_at, sample_at)
            if self._accounting.sample_detached():
                next_at = min(next_at, monotonic_seconds() + DETACHED_SAMPLE_SECONDS)
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
        self._memory.append(self._accounting.sample())
        self._write_interval(last=True)
        if self._pooled:
            _reusable_meters.append((self._calendar, self._meters))

    def __enter__(self) -> NodeMeter:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@contextmanager
def meter_additional_node(environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Meter this node during the block, in the first process here of an attempt whose own meter is on another node."""
    folder, attempt = environment.get(READINGS_VARIABLE), environment.get(ATTEMPT_VARIABLE)
    first = (environment.get("LOCAL_RANK") or environment.get("SLURM_LOCALID") or "0") == "0"
    if not (folder and attempt and first) or environment.get(NODE_VARIABLE) == node_name(environment):
        yield
        return
    with NodeMeter(readings_file(Path(folder), attempt)):
        yield
