"""Account for the CPU seconds and the memory of a job's processes on this node; each CPU second goes to one meter."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from pipeline.energy.startup_counters import ATTEMPT_VARIABLE, monotonic_seconds

PROCESSES = Path("/proc")
SLURM_VARIABLES = ("SLURM_JOB_ID", "SLURMD_NODENAME")
ENVIRONMENT_CHECKS = 5  # of a new process: between fork and exec it still has the variables of its parent


class ObservedProcess(NamedTuple):
    """A process at one time: its start in ticks, parent, own CPU seconds, those of children it waited for, memory."""

    started: int
    parent: int
    own: float
    waited: float
    memory_bytes: int


def _read_process(process: int) -> ObservedProcess | None:
    """Read a process from proc_pid_stat(5); None if it has ended."""
    try:
        with open(f"{PROCESSES}/{process}/stat", "rb", buffering=0) as stream:
            words = stream.read().rpartition(b")")[2].split()
    except OSError:
        return None
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    own, waited = int(words[11]) + int(words[12]), int(words[13]) + int(words[14])
    return ObservedProcess(int(words[19]), int(words[1]), own / ticks, waited / ticks, int(words[21]) * page)


def _read_environment(process: int | str) -> bytes:
    """Return the variables that a process was started with, each between zero bytes; nothing for other users'."""
    with suppress(OSError), open(f"{PROCESSES}/{process}/environ", "rb", buffering=0) as stream:
        return b"\0" + stream.read() + b"\0"
    return b""


class JobProcesses:
    """This process, its descendants, and processes elsewhere on the node whose variables name the same attempt.

    The CPU seconds of a process stay counted when it ends: its parent waited and shows them, or their last sample
    is kept. Where the parent shows them later than the process disappears, the kept part shrinks by as much.
    """

    def __init__(self) -> None:
        self.root = os.getpid()
        self._names: set[bytes] = set()
        self._members: dict[int, ObservedProcess] = {}
        self._kept: dict[int, float] = {}  # by the process that should have waited for them; 0: none
        self._foreign: set[int] = set()
        self._young: dict[int, int] = {}
        self._named: set[int] = set()
        self._highest = 0.0
        self._is_linux = (PROCESSES / "self/stat").exists()
        if self._is_linux:
            for process in (self.root, *list_descendants(self.root)):
                if (seen := _read_process(process)) is not None:
                    self._members[process] = seen
            self._foreign = self._list_all_pids() - self._members.keys()

    @staticmethod
    def _list_all_pids() -> set[int]:
        return {int(name) for name in os.listdir(PROCESSES) if name.isdigit()}

    def include_attempt_processes(self, attempt: str) -> None:
        """Also count the processes whose variables name this attempt."""
        name = f"\0{ATTEMPT_VARIABLE}={attempt}\0".encode()
        if name in _read_environment("self"):  # then processes older than this one may have it too
            self._foreign.clear()
        self._names.add(name)

    def sample(self) -> tuple[float, int]:
        """Return the CPU seconds of all processes since each began, which never fall, and their resident bytes."""
        if not self._is_linux:
            self._highest = max(self._highest, cpu_seconds_of_process_tree())
            return self._highest, memory_bytes_of_process_tree()
        before = self._members
        now: dict[int, ObservedProcess] = {}
        # Read parents before children: one that ends in between is missed now and shown by its parent next time.
        for process, last in sorted(before.items(), key=lambda item: (item[1].started, item[0])):
            seen = _read_process(process)
            if seen is not None and seen.started == last.started:
                now[process] = seen
        self._keep_ended(before, now)
        self._add_new(now)
        self._members = now
        self._named &= now.keys()
        seconds = sum(seen.own + seen.waited for seen in now.values()) + sum(self._kept.values())
        return seconds, sum(seen.memory_bytes for seen in now.values())

    def sample_detached(self) -> bool:
        """Sample the processes under other parents, which show nothing after their end; return whether there are any.

        Their own seconds alone: only a full sample sees whose children they waited for.
        """
        for process in self._named:
            seen, last = _read_process(process), self._members[process]
            if seen is not None and seen.started == last.started:
                self._members[process] = last._replace(own=seen.own)
        return bool(self._named)

    def _keep_ended(self, before: Mapping[int, ObservedProcess], now: Mapping[int, ObservedProcess]) -> None:
        """Keep the CPU seconds of ended processes, as far as no parent shows them."""
        lost: dict[int, float] = {}
        for process, last in before.items():
            if process in now:
                continue
            parent = last.parent
            while parent in before and parent not in now:
                parent = before[parent].parent
            heir = parent if parent in now else 0
            lost[heir] = lost.get(heir, 0.0) + last.own + last.waited + self._kept.pop(process, 0.0)
        for heir in {*lost, *self._kept}:
            grown = now[heir].waited - before[heir].waited if heir else 0.0
            self._kept[heir] = max(0.0, self._kept.get(heir, 0.0) + lost.get(heir, 0.0) - grown)

    def _add_new(self, now: dict[int, ObservedProcess]) -> None:
        """Add new processes that belong to the job."""
        listed = self._list_all_pids()
        self._foreign &= listed
        fresh = {n: seen for n in listed - now.keys() - self._foreign if (seen := _read_process(n)) is not None}

        def belongs(process: int) -> bool:
            if process in now:
                return True
            if process not in fresh:
                return False
            if belongs(fresh[process].parent):
                return True
            if self._has_attempt_name(process):
                self._named.add(process)
                return True
            return False

        for process, seen in sorted(fresh.items(), key=lambda item: (item[1].started, item[0])):
            if belongs(process):
                now[process] = seen
        self._young = {process: self._young.get(process, 0) + 1 for process in fresh.keys() - now.keys()}
        self._foreign |= {
            process for process, looks in self._young.items() if looks >= ENVIRONMENT_CHECKS or not self._names
        }

    def _has_attempt_name(self, process: int) -> bool:
        if not self._names:
            return False
        variables = _read_environment(process)
        slurm = (f"\0{name}={os.environ[name]}\0".encode() for name in SLURM_VARIABLES if name in os.environ)
        return any(name in variables for name in self._names) and all(one in variables for one in slurm)


class CpuTimeAccounting:
    """Assign each CPU second of the processes to one open meter, or to several in equal parts.

    Seconds that are used while no meter is open go to the next one.
    """

    def __init__(self, since: float) -> None:
        self.processes = JobProcesses()
        self._lock = threading.Lock()
        self._since = since
        self._seen = 0.0
        self._unclaimed = 0.0
        self._open: dict[Hashable, float] = {}

    def _advance(self) -> int:
        seconds, memory_bytes = self.processes.sample()
        grown, self._seen = seconds - self._seen, seconds
        for meter in self._open:
            self._open[meter] += grown / len(self._open)
        self._unclaimed += 0.0 if self._open else grown
        return memory_bytes

    def open_meter(self, meter: Hashable, attempt: str | None) -> float:
        """Open a meter; return the time from which it gets all CPU seconds."""
        with self._lock:
            if attempt:
                self.processes.include_attempt_processes(attempt)
            self._advance()
            since = monotonic_seconds() if self._open else self._since
            self._open[meter], self._unclaimed = self._unclaimed, 0.0
            return since

    def update_and_read_memory(self) -> int:
        """Count up to now; return the resident bytes of the processes."""
        with self._lock:
            return self._advance()

    def sample_detached(self) -> bool:
        """Sample the processes under other parents; return whether there are any."""
        with self._lock:
            return self.processes.sample_detached()

    def take_cpu_seconds(self, meter: Hashable, last: bool = False) -> float:
        """Return the CPU seconds of a meter since its last call; `last` closes it."""
        with self._lock:
            self._advance()
            seconds = self._open[meter]
            self._open[meter] = 0.0
            if last:
                del self._open[meter]
                self._since = monotonic_seconds()
            return seconds

    def take_unclaimed(self) -> tuple[float, float]:
        """Return the time from which no meter got CPU seconds, and these CPU seconds; they are then forgotten."""
        with self._lock:
            self._advance()
            since, seconds = self._since, self._unclaimed
            self._since, self._unclaimed = monotonic_seconds(), 0.0
            return since, seconds


def process_age_seconds() -> float:
    """Return the age of this process, from ticks where possible: psutil rounds the start to a second."""
    if hasattr(time, "CLOCK_BOOTTIME") and (seen := _read_process(os.getpid())) is not None:
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - seen.started / os.sysconf("SC_CLK_TCK")
    else:
        age = time.time() - psutil.Process().create_time()
    return max(0.0, age)


_accounting: CpuTimeAccounting | None = None


def get_process_accounting() -> CpuTimeAccounting:
    """Return the accounting of this process since its start."""
    global _accounting
    if _accounting is None:
        _accounting = CpuTimeAccounting(monotonic_seconds() - process_age_seconds())
    return _accounting


def _reset_in_child() -> None:
    global _accounting
    _accounting = None


os.register_at_fork(after_in_child=_reset_in_child)


MAXRSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def _read_children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task")
    shown = [(thread / "children").read_text(encoding="ascii") for thread in tasks.iterdir()]
    return [int(child) for children in shown for child in children.split()]


def list_descendants(process: int) -> Iterator[int]:
    """Yield the process numbers of all descendants, as Linux lists them.

    Raises:
        OSError: the process has ended, or this system has no such lists.
    """
    try:
        children = _read_children(process)
    except OSError:  # a thread has just ended, and another one has its children
        children = _read_children(process)
    for child in children:
        yield child
        with suppress(OSError):
            yield from list_descendants(child)


def _list_descendant_processes() -> list[psutil.Process]:
    """List the descendants of this process; psutil itself would read every process of the machine."""
    processes: list[psutil.Process] = []
    try:
        for number in list_descendants(os.getpid()):
            with suppress(psutil.Error):
                processes.append(psutil.Process(number))
    except OSError:
        return [*psutil.Process().children(recursive=True)]
    return processes


def cpu_seconds_of_process_tree() -> float:
    """Return user and system CPU seconds of this process, its finished children and its running descendants.

    A running child is not yet in RUSAGE_CHILDREN; its own time and that of the children it waited for are added.
    """
    finished = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in finished)
    for child in _list_descendant_processes():
        with suppress(psutil.Error):
            times = child.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def memory_bytes_of_process_tree() -> int:
    """Return the resident memory of this process and its running descendants; shared pages count in each."""
    resident: int = psutil.Process().memory_info().rss
    for child in _list_descendant_processes():
        with suppress(psutil.Error):
            resident += child.memory_info().rss
    return resident


def peak_memory_bytes_of_process_tree() -> int:
    """Return the most resident memory known now: of the tree at this moment, or of any one process so far.

    The caller samples it during the work and keeps the maximum; the system's own record of each process covers short
    peaks between two samples.
    """
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(memory_bytes_of_process_tree(), *(peak * MAXRSS_UNIT_BYTES for peak in peaks))
