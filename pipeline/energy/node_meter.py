"""Meter a node once per job: read every meter of the node and write intervals, a line each.

Energy is not told by processes: who used what is worked out afterwards from the intervals of all jobs, by
`pipeline/energy/attribution/run_attribution.py`. Durations are those of a clock that nobody sets; all stamps follow
from one look at the calendar, so that a clock that jumps makes no interval negative or huge.
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

import psutil

from pipeline.energy.gpu_meter import DEVICES, find_gpu_driver, find_gpu_meter
from pipeline.energy.meters import PM_COUNTERS, POWERCAP, Meter, find_pm_counters, find_rapl
from pipeline.energy.process_accounting import ATTEMPT_VARIABLE, get_process_accounting, monotonic_seconds
from pipeline.energy.readings import MeterInterval, Reading

READINGS_VARIABLE = "PIPELINE_READINGS"
"""The variable with the folder that the meters of an attempt write to, for those on its other nodes."""

NODE_VARIABLE = "PIPELINE_METERED_NODE"
"""The variable with the node that the attempt itself meters."""

SAMPLE_SECONDS = 2.0
DETACHED_SAMPLE_SECONDS = 0.25  # at ranks of srun, of which nobody tells afterwards what they used last
SHORTEST_START_SECONDS = 0.05
SHORTEST_WRITE_SECONDS = 5.0
LONGEST_WRITE_SECONDS = 60.0
LINES_PER_JOB = 360  # so many lines say how power went over time, however long the job is
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
    """Return the meters of this node. Those of a Cray node tell all its parts: beside them no other one is read."""
    if (cray := find_pm_counters(counters)) is not None:
        return [cray]
    meters: list[Meter | None] = [find_rapl(powercap), find_gpu_meter(find_gpu_driver(devices))]
    return [meter for meter in meters if meter is not None]


def _find_meters_or_warn() -> list[Meter]:
    """Return the meters that this node has; none where a driver does not let them be found."""
    try:
        return find_meters()
    except Exception as error:
        logging.getLogger(__name__).warning("no meter of this node can be read: %s", error)
        return []


def node_name(environment: Mapping[str, str] = os.environ) -> str:
    """Return what Slurm calls this node, or else its own name."""
    return environment.get("SLURMD_NODENAME") or platform.node()


def read_boot_id() -> str:
    """Return what Linux calls this machine since it was switched on, in all its containers; elsewhere nothing."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def readings_file(folder: Path, name: str) -> Path:
    """Return the file for the intervals of an attempt, or of another process, on this node."""
    return folder / f"{name}@{node_name()}.jsonl"


def count_processors(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return the logical processors of the node, and how many of them the job may use.

    Slurm says it for all tasks of a job on the node; what one process may run on can be the part of one task.
    """
    all_of_them = os.cpu_count() or 1
    told = environment.get("SLURM_CPUS_ON_NODE", "") if "SLURM_JOB_ID" in environment else ""
    if told.isdigit() and int(told):
        return all_of_them, min(int(told), all_of_them)
    return all_of_them, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else all_of_them


def find_job_boards(boards: Sequence[str], environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the boards that the job may use, each once; all of them where that is not known.

    `boards` are those of the GPUs in their order, by which numbers count, unless one is too large: then the job sees
    its own GPUs alone.
    """
    every = tuple(dict.fromkeys(boards))
    for name in BOARD_VARIABLES:
        if (told := environment.get(name)) is None:
            continue
        words = [word.strip() for word in told.split(",")]
        if words[0] in ("", "-1", "NoDevFiles"):
            return ()
        if all(word.isdigit() and int(word) < len(boards) for word in words):
            return tuple(dict.fromkeys(boards[int(word)] for word in words))
        # A UUID may be shortened, as CUDA allows.
        meant = [[board for board in every if board.startswith(word)] for word in words]
        return tuple(found[0] for found in meant) if all(len(found) == 1 for found in meant) else every
    return every


class LineFile:
    """A file of whole lines, whatever happens; what finds no room on the disk waits in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting = b""

    def add(self, line: str) -> None:
        """Append a line in one stroke; a line that a kill has cut off before is taken away first."""
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


# What a meter that has ended has read, for the next attempt of this process, which goes on from there; and by which
# calendar.
_reusable_meters: list[tuple[float, list[Meter]]] = []
os.register_at_fork(after_in_child=_reusable_meters.clear)


class NodeMeter:
    """Reads the node's meters from its making to its `end`, and writes what they say and what the job used.

    The job are this process, those below it and, where PIPELINE_ATTEMPT is set, those of the same attempt on this node
    under other parents. All that they have used since this process began is in the intervals: what came before the
    meters were found is an interval of its own, without readings. Of several in one process each begins where the one
    before it has ended; of two at once each has half.

    Args:
        path: the file to write to; of an earlier process that was killed it may hold lines already.
        meters: those of the node, if not those that are found.
    """

    def __init__(self, path: Path, meters: Sequence[Meter] | None = None) -> None:
        self.path = path
        self._process = os.getpid()
        self._lines = LineFile(path)
        self._warned = False
        self._accounting = get_process_accounting()
        self._since = self._accounting.open(self, os.environ.get(ATTEMPT_VARIABLE))
        self._began = monotonic_seconds()
        self._calendar = time.time() - self._began
        self._node, self._boot_id = node_name(), read_boot_id()
        self._node_cpu_seconds = _read_node_cpu_seconds()
        self._memory = [self._accounting.look()]
        self._past: list[str] = []
        self._pooled = meters is None
        calendar, known = _reusable_meters.pop() if self._pooled and _reusable_meters else (0.0, [])
        self._meters: list[Meter] = known
        if (past := self._accounting.handed_down) is not None:
            self._past.append(self._line(past.started, past.ended, past.cpu_seconds, is_shared_start=True))
            self._accounting.handed_down = None
            self._since = max(self._since, past.ended)
        if abs(calendar - self._calendar) > 1.0:
            self._meters = list(_find_meters_or_warn() if meters is None else meters)
            self._take()
            self._begin()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="node meter", daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        """Let the readings begin now; what came before, if it is worth a line, is an interval without."""
        now = monotonic_seconds()
        if now - self._since > SHORTEST_START_SECONDS:
            self._past.append(self._line(self._since, now, self._accounting.take(self)))
            self._since, self._node_cpu_seconds = now, _read_node_cpu_seconds()

    def _stamp(self, when: float) -> float:
        """Return a moment as seconds of Unix time."""
        return self._calendar + when

    def _each(self, ask: Callable[[Meter], object]) -> None:
        for meter in self._meters:
            try:
                ask(meter)
            except Exception as error:  # a meter that does not work must not stop the job that it measures
                if not self._warned:
                    logging.getLogger(__name__).warning("a meter cannot be read: %s", error)
                self._warned = True

    def _take(self) -> tuple[Reading, ...]:
        """Return what all meters say since the last time."""
        found: list[Reading] = []
        now = self._stamp(monotonic_seconds())
        self._each(lambda meter: found.extend(meter.take(now)))
        return tuple(found)

    def _line(
        self,
        started: float,
        ended: float,
        cpu_seconds: float,
        node_cpu_seconds: float = 0.0,
        readings: tuple[Reading, ...] = (),
        is_shared_start: bool = False,
    ) -> str:
        """Return the line of an interval between two moments.

        What the node used is at least what the job did; before the meter began no more than that is known.
        """
        all_processors, own_processors = count_processors()
        from_moment = round(self._stamp(started), 3)
        return MeterInterval(
            node=self._node,
            started=from_moment,
            ended=max(round(self._stamp(ended), 3), round(from_moment + 0.001, 3)),
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
        ).model_dump_json(exclude_defaults=True)

    def _write(self, last: bool = False) -> None:
        """Write the interval that ends now."""
        readings, ended, node_cpu_seconds = self._take(), monotonic_seconds(), _read_node_cpu_seconds()
        cpu_seconds = self._accounting.take(self, last)
        used = node_cpu_seconds - self._node_cpu_seconds
        line = self._line(self._since, ended, cpu_seconds, used, readings)
        self._lines.add("\n".join([*self._past, line]))
        self._since, self._node_cpu_seconds = ended, node_cpu_seconds
        self._memory, self._past = self._memory[-1:], []

    def _sample(self) -> None:
        now = self._stamp(monotonic_seconds())
        self._each(lambda meter: meter.read(now))
        self._memory.append(self._accounting.look())

    def _work(self) -> None:
        write_at, sample_at = self._began + SHORTEST_WRITE_SECONDS, self._began + SAMPLE_SECONDS
        while True:
            next_at = min(write_at, sample_at)
            if self._accounting.glance():
                next_at = min(next_at, monotonic_seconds() + DETACHED_SAMPLE_SECONDS)
            if self._stop.wait(max(0.0, next_at - monotonic_seconds())):
                return
            if (now := monotonic_seconds()) >= write_at:
                self._write()
                write_at = now + max(
                    SHORTEST_WRITE_SECONDS, min(LONGEST_WRITE_SECONDS, (now - self._began) / LINES_PER_JOB)
                )
                sample_at = now + SAMPLE_SECONDS
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
            self._accounting.take(self, last=True)
            return
        self._memory.append(self._accounting.look())
        self._write(last=True)
        if self._pooled:
            _reusable_meters.append((self._calendar, self._meters))

    def __enter__(self) -> NodeMeter:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@contextmanager
def meter_other_node(environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Meter this node while the block runs, where this is its first process of an attempt that meters another node."""
    folder, attempt = environment.get(READINGS_VARIABLE), environment.get(ATTEMPT_VARIABLE)
    first = (environment.get("LOCAL_RANK") or environment.get("SLURM_LOCALID") or "0") == "0"
    if not (folder and attempt and first) or environment.get(NODE_VARIABLE) == node_name(environment):
        yield
        return
    with NodeMeter(readings_file(Path(folder), attempt)):
        yield
