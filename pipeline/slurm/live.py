"""A killed snakemake that is started again: its lock is cleared, its jobs are waited for before any is submitted.

Snakemake knows nothing of the jobs of a snakemake before it and would submit them a second time, beside the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

from pipeline.slurm import allocation, queue, starts
from pipeline.slurm.allocation import ALLOCATIONS
from pipeline.slurm.starts import Start
from pipeline.stale import file_of

Say = Callable[[str], None]
SECONDS_BETWEEN = 10.0
INCOMPLETE = Path(".snakemake/incomplete")
LATENCY_SECONDS = 5.0  # until a file that a node wrote is seen here


def local_jobs(run_directory: Path) -> list[psutil.Process]:
    """Return the steps of this run on this machine that are no jobs of Slurm: those of a snakemake that was killed."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if words[1:3] != ["-m", "pipeline"] or not any(word.startswith(f"{run_directory}/") for word in words):
                continue
            if Path(process.cwd()) == Path.cwd() and "SLURM_JOB_ID" not in process.environ():
                found.append(process)
        except psutil.Error:
            continue
    return found


def written_by(words: list[str]) -> list[str]:
    """Return the outputs in a step's command line, the record or the batch's file last: that one is written last."""
    options: dict[str, list[list[str]]] = {}
    for word in words:
        if word.startswith("--"):
            options.setdefault(word, []).append([])
        elif options:
            options[[*options][-1]][-1].append(word)
    outputs = [given[1] for given in options.get("--output", []) if len(given) == 2]
    last = options.get("--batch") or options.get("--record") or []
    return ([] if "--batch" in options else outputs) + [given[0] for given in last if given]


def complete(words: list[str]) -> None:
    """Take away Snakemake's mark that a step is incomplete, where it finished after its snakemake was killed."""
    outputs = written_by(words)
    if not all(Path(name).exists() for name in outputs):
        return
    for name in outputs:
        file_of(INCOMPLETE, name).unlink(missing_ok=True)


def wait_for_local_jobs(run_directory: Path, say: Say) -> None:
    """Wait for the steps that a killed snakemake left running here; those that finish are not run again."""
    left = [(process, process.cmdline()) for process in local_jobs(run_directory)]
    for process, words in left:
        say(f"process {process.pid} of the snakemake that was killed still runs ({' '.join(words[3:5])}): waiting")
    for process, words in left:
        process.wait()
        complete(words)


def wait_for_jobs(dead: list[Start], say: Say, seconds_between: float) -> int:
    """Wait until no job of these starts waits or runs, and return how many there were."""
    names, is_away = [start.name for start in dead], False
    known: dict[str, queue.Queued] = {}
    while True:
        found = queue.jobs(names)
        if found is None and not is_away:
            say("Slurm does not answer, and jobs of this run may live: waiting until it does")
        is_away = found is None
        if found == {}:
            return len(known)
        for number, job in (found or {}).items():
            if number not in known:
                what = f"{job.comment or 'job'}, {job.state.lower()}"
                say(f"job {number} ({what}) is of this run, whose snakemake was killed: waiting for it")
        known |= found or {}
        time.sleep(seconds_between)


def take_over(run_directory: Path, say: Say, seconds_between: float = SECONDS_BETWEEN) -> None:
    """Clear the lock of a killed snakemake of this run, and wait for its jobs.

    Called before the DAG is built, so that what the jobs have written is seen. A snakemake that lives, or that ran on
    another host and still holds its lock, keeps lock and jobs: Snakemake then says that the folder is locked.

    Args:
        run_directory: the results of the run, relative to the working directory.
        say: tells a person what is done.
    """
    open_starts = [start for start in starts.starts(run_directory) if start.ended is None and not start.is_alive]
    dead = [start for start in open_starts if start.is_here or not any(lock.is_there() for lock in start.locks)]
    for lock in (lock for start in dead for lock in start.locks if lock.is_there()):
        say(f"{lock.path} is of a snakemake of this run that was killed: it is cleared")
        Path(lock.path).unlink()
    if not dead:
        return
    wait_for_local_jobs(run_directory, say)
    if wait_for_jobs(dead, say, seconds_between):
        time.sleep(LATENCY_SECONDS)
    for start in dead:
        for name in allocation.finished_outputs(ALLOCATIONS / start.name):
            file_of(INCOMPLETE, name).unlink(missing_ok=True)
        start.end(run_directory)
