"""CPU time and memory of this process and everything it started."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

MAXRSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def _children_of(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task")
    shown = [(thread / "children").read_text(encoding="ascii") for thread in tasks.iterdir()]
    return [int(child) for children in shown for child in children.split()]


def descendants(process: int) -> Iterator[int]:
    """Yield the numbers of the processes below one, as Linux lists them.

    Raises:
        OSError: it has ended, or this system has no such lists.
    """
    try:
        children = _children_of(process)
    except OSError:  # where a thread has just ended, another one has its children
        children = _children_of(process)
    for child in children:
        yield child
        with contextlib.suppress(OSError):
            yield from descendants(child)


def _children() -> list[psutil.Process]:
    """Return the processes below this one; psutil itself would read the state of each process of the machine."""
    found: list[psutil.Process] = []
    try:
        for number in descendants(os.getpid()):
            with contextlib.suppress(psutil.Error):
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
    for child in _children():
        with contextlib.suppress(psutil.Error):
            times = child.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def memory_bytes_of_process_tree() -> int:
    """Resident memory now, summed over this process and its running descendants (pages they share count in each)."""
    resident: int = psutil.Process().memory_info().rss
    for child in _children():
        with contextlib.suppress(psutil.Error):
            resident += child.memory_info().rss
    return resident


def peak_memory_bytes_of_process_tree() -> int:
    """The most resident memory known now: of the tree at this moment, or of any one process so far.

    The caller samples it while the work runs and keeps the greatest; the system's own record of each process's
    peak makes a short peak between two samples count as well.
    """
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(memory_bytes_of_process_tree(), *(peak * MAXRSS_UNIT_BYTES for peak in peaks))
