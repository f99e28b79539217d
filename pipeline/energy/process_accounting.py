"""Account for what the processes of a job used of this node: CPU seconds, each in one meter, and memory."""

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

PROCESSES = Path("/proc")
ATTEMPT_VARIABLE = "PIPELINE_ATTEMPT"
"""The variable with the name of the attempt, by which its processes under other parents are found, as those of srun."""

SLURM_VARIABLES = ("SLURM_JOB_ID", "SLURMD_NODENAME")
ENVIRONMENT_CHECKS = 5  # at a new process: between fork and exec it still has the variables of its parent


def monotonic_seconds() -> float:
    """Return the seconds of a clock that nobody sets, and that goes on while the machine sleeps where there is one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class ObservedProcess(NamedTuple):
    """A process at one moment: its start in ticks, its parent, CPU seconds of its own and of children it waited for."""

    started: int
    parent: int
    own: float
    waited: float
    memory_bytes: int


def _read_process(process: int) -> ObservedProcess | None:
    """Return what Linux tells of a process (proc_pid_stat(5)); None of one that has ended."""
    try:
        with open(f"{PROCESSES}/{process}/stat", "rb", buffering=0) as stream:
            words = stream.read().rpartition(b")")[2].split()
    except OSError:
        return None
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    own, waited = int(words[11]) + int(words[12]), int(words[13]) + int(words[14])
    return ObservedProcess(int(words[19]), int(words[1]), own / ticks, waited / ticks, int(words[21]) * page)


def _read_environment(process: int | str) -> bytes:
    """Return the variables that a process was started with, each between zero bytes; none of somebody else's."""
    with suppress(OSError), open(f"{PROCESSES}/{process}/environ", "rb", buffering=0) as stream:
        return b"\0" + stream.read() + b"\0"
    return b""


class JobProcesses:
    """This process, all below it, and those elsewhere on the node that the variables tell to be of the same attempt.

    What a process has used stays counted when it ends: its parent has waited for it and shows it, or what was last
    seen of it is kept. Where a parent shows it later than the process disappears, what is kept goes back by as much.
    """

    def __init__(self) -> None:
        self.root = os.getpid()
        self._names: set[bytes] = set()
        self._members: dict[int, ObservedProcess] = {}
        self._kept: dict[int, float] = {}  # by the process that should have waited for them; 0: nobody does
        self._foreign: set[int] = set()
        self._young: dict[int, int] = {}
        self._named: set[int] = set()
        self._highest = 0.0
        self._is_linux = (PROCESSES / "self/stat").exists()
        if self._is_linux:
            for process in (self.root, *list_descendants(self.root)):
                if (seen := _read_process(process)) is not None:
                    self._members[process] = seen
            self._foreign = self._listed() - self._members.keys()

    @staticmethod
    def _listed() -> set[int]:
        return {int(name) for name in os.listdir(PROCESSES) if name.isdigit()}

    def claim(self, attempt: str) -> None:
        """Count the processes that were started with this attempt's name in their variables."""
        name = f"\0{ATTEMPT_VARIABLE}={attempt}\0".encode()
        if name in _read_environment("self"):  # then others may have been started with it as well, before this one
            self._foreign.clear()
        self._names.add(name)

    def look(self) -> tuple[float, int]:
        """Return the CPU seconds of all of them since each began, which never falls, and their resident bytes now."""
        if not self._is_linux:
            self._highest = max(self._highest, cpu_seconds_of_process_tree())
            return self._highest, memory_bytes_of_process_tree()
        before = self._members
        now: dict[int, ObservedProcess] = {}
        # Parents are read before their children: what ends in between is missed now and shown by its parent next time.
        for process, last in sorted(before.items(), key=lambda item: (item[1].started, item[0])):
            seen = _read_process(process)
            if seen is not None and seen.started == last.started:
                now[process] = seen
        self._keep(before, now)
        self._join(now)
        self._members = now
        self._named &= now.keys()
        seconds = sum(seen.own + seen.waited for seen in now.values()) + sum(self._kept.values())
        return seconds, sum(seen.memory_bytes for seen in now.values())

    def glance(self) -> bool:
        """Look at those alone that have other parents, which show nothing when they end; return whether there are any.

        What they have waited for is not taken over: only a whole look sees of whom that was.
        """
        for process in self._named:
            seen, last = _read_process(process), self._members[process]
            if seen is not None and seen.started == last.started:
                self._members[process] = last._replace(own=seen.own)
        return bool(self._named)

    def _keep(self, before: Mapping[int, ObservedProcess], now: Mapping[int, ObservedProcess]) -> None:
        """Keep what the processes that have ended used, as far as no parent shows it."""
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

    def _join(self, now: dict[int, ObservedProcess]) -> None:
        """Add the processes that are new and belong to the job."""
        listed = self._listed()
        self._foreign &= listed
        fresh = {n: seen for n in listed - now.keys() - self._foreign if (seen := _read_process(n)) is not None}

        def belongs(process: int) -> bool:
            if process in now:
                return True
            if process not in fresh:
                return False
            if belongs(fresh[process].parent):
                return True
            if self._is_named(process):
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

    def _is_named(self, process: int) -> bool:
        if not self._names:
            return False
        variables = _read_environment(process)
        place = (f"\0{name}={os.environ[name]}\0".encode() for name in SLURM_VARIABLES if name in os.environ)
        return any(name in variables for name in self._names) and all(one in variables for one in place)


class StartupUse(NamedTuple):
    """CPU seconds of a time that is over, between two moments."""

    started: float
    ended: float
    cpu_seconds: float


class ProcessAccounting:
    """Tells each CPU second of the processes to one meter: to whoever is open, to several in equal parts.

    What is used while none is open goes to the next one.
    """

    def __init__(self, since: float, handed_down: StartupUse | None = None) -> None:
        self.processes = JobProcesses()
        self.handed_down = handed_down
        self._lock = threading.Lock()
        self._since = since
        self._seen = 0.0
        self._unclaimed = 0.0
        self._open: dict[Hashable, float] = {}

    def _advance(self) -> int:
        seconds, memory_bytes = self.processes.look()
        grown, self._seen = seconds - self._seen, seconds
        for meter in self._open:
            self._open[meter] += grown / len(self._open)
        self._unclaimed += 0.0 if self._open else grown
        return memory_bytes

    def open(self, meter: Hashable, attempt: str | None) -> float:
        """Begin to tell a meter; return from which moment on it has all."""
        with self._lock:
            if attempt:
                self.processes.claim(attempt)
            self._advance()
            since = monotonic_seconds() if self._open else self._since
            self._open[meter], self._unclaimed = self._unclaimed, 0.0
            return since

    def look(self) -> int:
        """Count up to now; return the resident bytes of the processes."""
        with self._lock:
            return self._advance()

    def glance(self) -> bool:
        """Look at what would be lost at its end; return whether there is any such process."""
        with self._lock:
            return self.processes.glance()

    def take(self, meter: Hashable, last: bool = False) -> float:
        """Return the CPU seconds of a meter since it took them last."""
        with self._lock:
            self._advance()
            seconds = self._open[meter]
            self._open[meter] = 0.0
            if last:
                del self._open[meter]
                self._since = monotonic_seconds()
            return seconds

    def share(self, parts: int) -> StartupUse:
        """Return what no meter has been told, a part of it, and forget it."""
        with self._lock:
            self._advance()
            past = StartupUse(self._since, monotonic_seconds(), self._unclaimed / parts)
            self._since, self._unclaimed = past.ended, 0.0
            return past


def process_age_seconds() -> float:
    """Return how long ago this process began; psutil alone knows it to the second, as Linux rounds its own start."""
    if hasattr(time, "CLOCK_BOOTTIME") and (seen := _read_process(os.getpid())) is not None:
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - seen.started / os.sysconf("SC_CLK_TCK")
    else:
        age = time.time() - psutil.Process().create_time()
    return max(0.0, age)


_accounting: ProcessAccounting | None = None
_startup_share: StartupUse | None = None


def get_process_accounting() -> ProcessAccounting:
    """Return the accounting of this process, which begins with the process."""
    global _accounting
    if _accounting is None:
        _accounting = ProcessAccounting(monotonic_seconds() - process_age_seconds(), _startup_share)
    return _accounting


def share_startup(parts: int) -> None:
    """Share what this process has used so far among so many jobs, for each of which it is about to fork a process."""
    global _startup_share
    _startup_share = get_process_accounting().share(parts)


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
    """Yield the numbers of the processes below one, as Linux lists them.

    Raises:
        OSError: it has ended, or this system has no such lists.
    """
    try:
        children = _read_children(process)
    except OSError:  # where a thread has just ended, another one has its children
        children = _read_children(process)
    for child in children:
        yield child
        with suppress(OSError):
            yield from list_descendants(child)


def _list_child_processes() -> list[psutil.Process]:
    """Return the processes below this one; psutil itself would read the state of each process of the machine."""
    found: list[psutil.Process] = []
    try:
        for number in list_descendants(os.getpid()):
            with suppress(psutil.Error):
                found.append(psutil.Process(number))
    except OSError:
        return [*psutil.Process().children(recursive=True)]
    return found


def cpu_seconds_of_process_tree() -> float:
    """User and system CPU seconds of this process, its finished children and its running descendants.

    A running child is not yet in RUSAGE_CHILDREN; its own time and that of the children it waited for are added.
    """
    finished = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in finished)
    for child in _list_child_processes():
        with suppress(psutil.Error):
            times = child.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def memory_bytes_of_process_tree() -> int:
    """Resident memory now, summed over this process and its running descendants (pages they share count in each)."""
    resident: int = psutil.Process().memory_info().rss
    for child in _list_child_processes():
        with suppress(psutil.Error):
            resident += child.memory_info().rss
    return resident


def peak_memory_bytes_of_process_tree() -> int:
    """The most resident memory known now: of the tree at this moment, or of any one process so far.

    The caller samples it while the work runs and keeps the greatest; the system's own record of each process's
    peak makes a short peak between two samples count as well.
    """
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(memory_bytes_of_process_tree(), *(peak * MAXRSS_UNIT_BYTES for peak in peaks))
