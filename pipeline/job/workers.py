"""Does pieces of work side by side, each in a process of its own that does not outlive this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from types import FrameType

from pipeline.core.errors import InputError, Stopped
from pipeline.core.parent_process import die_with_parent

ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}


@dataclass(frozen=True)
class WorkerTask:
    """One piece: what is called, what it is named in a message, and how large it is beside the others."""

    name: str
    size: int
    call: Callable[[], None]


def cores(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many cores this job has: by Slurm or, without it, by Snakemake, which tells a rule's `threads` so."""
    told = environment.get("SLURM_CPUS_PER_TASK") or environment.get("OMP_NUM_THREADS") or ""
    return int(told) if told.isdigit() and int(told) else 1


def _run(work: WorkerTask, problem: Connection, parent: int) -> None:
    """Do one piece in its own process: a refusal and a stop are told to the parent, all else ends in a traceback."""
    die_with_parent()
    if os.getppid() != parent:  # it has ended before this one was bound to it
        os.kill(os.getpid(), signal.SIGKILL)
    asked = signal.getsignal(signal.SIGTERM)

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm and the parent ask, each of them
        if callable(asked):
            asked(number, frame)

    if callable(asked):
        signal.signal(signal.SIGTERM, stop)
    # A board is not this piece's own: it would be counted once for each.
    os.environ |= {**ONE_THREAD, "CUDA_VISIBLE_DEVICES": ""}
    try:
        work.call()
    except (InputError, Stopped) as error:
        problem.send(error)


def side_by_side(works: Sequence[WorkerTask], processes: int) -> None:
    """Do all pieces, so many at once, the largest first.

    After a failure no other piece is begun, and those that are under way are finished.

    Raises:
        InputError: a piece was refused; of several the first in the order given.
        Stopped: a piece was stopped.
        RuntimeError: a piece failed; its traceback stands in the log.
    """
    context = multiprocessing.get_context("fork")
    waiting = sorted(range(len(works)), key=lambda number: (works[number].size, -number))
    running: dict[int, tuple[int, ForkProcess, Connection]] = {}
    problems: dict[int, Exception] = {}
    try:
        while running or (waiting and not problems):
            while waiting and not problems and len(running) < processes:
                number = waiting.pop()
                problem, ours = context.Pipe(duplex=False)
                process = context.Process(target=_run, args=(works[number], ours, os.getpid()), name=works[number].name)
                process.start()
                ours.close()
                running[process.sentinel] = number, process, problem
            for sentinel in wait([*running]):
                number, process, problem = running.pop(sentinel)  # type: ignore[arg-type]
                process.join()
                told = _told(problem)
                if told is None and process.exitcode:
                    told = RuntimeError(f"{process.name} ended with {process.exitcode}")
                if told is not None:
                    problems[number] = told
    except BaseException:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever asked asks again
        for _, process, _ in running.values():
            process.terminate()
        for _, process, _ in running.values():
            process.join()
        raise
    for number in sorted(problems):
        raise problems[number]


def _told(problem: Connection) -> Exception | None:
    try:
        told: Exception = problem.recv()
    except EOFError:
        return None
    finally:
        problem.close()
    return told
