"""Every snakemake that submitted jobs of a run; a new one waits for the jobs that a killed one has left.

Snakemake knows nothing of the jobs of a snakemake before it and would submit them a second time, beside the first.
Each snakemake has a small file beside the accounting, which asks Slurm for the jobs of its name. All jobs of one have
the same name, which no other run, folder or user has. One without an end while nobody holds the run's lock was killed.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil
from pydantic import BaseModel, ValidationError

from pipeline import layout
from pipeline.core import atomic_files
from pipeline.core.errors import InputError
from pipeline.core.records import Attempt, read_each
from pipeline.job.attempt import HEARTBEAT_SECONDS
from pipeline.slurm.executor import allocation, slurm_commands
from pipeline.slurm.executor.allocation import ALLOCATIONS_FOLDER
from pipeline.slurm.executor.interface import SlurmError
from pipeline.workflow.snakemake_internals import file_of

Say = Callable[[str], None]
SECONDS_BETWEEN = 10.0
INCOMPLETE = Path(".snakemake/incomplete")
ATTEMPT_SECONDS = 3 * HEARTBEAT_SECONDS
LATENCY_SECONDS = 5.0  # until a file that a node wrote is seen here

current: SlurmInvocation | None = None  # of this process


class SlurmInvocation(BaseModel):
    """One snakemake: the name of its jobs in Slurm; `ended` when it said so itself, or none of its jobs lived any more.

    `cluster` is None where Slurm did not say, and of starts before it was asked.
    """

    name: str
    host: str
    process: int
    started: str
    ended: str | None = None
    cluster: str | None = None

    def path(self, run_directory: Path) -> Path:
        """Return the file of this start."""
        return layout.INVOCATION.path(run_directory, name=self.name)

    def write(self, run_directory: Path) -> None:
        """Write the file of this start."""
        atomic_files.write(self.path(run_directory), f"{self.model_dump_json(indent=1)}\n".encode())

    def end(self, run_directory: Path) -> None:
        """Write down that it submits no more and that none of its jobs lives."""
        self.model_copy(update={"ended": utc_timestamp()}).write(run_directory)


def utc_timestamp() -> str:
    """Return the time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def query_cluster_name() -> str | None:
    """Return the name of the Slurm cluster that the commands here speak to; None where there is none, or it is away."""
    try:
        done = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    rows = (line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    return next((value.strip() for key, value in rows if key.strip() == "ClusterName"), None)


def record_invocation(run_directory: Path, name: str) -> None:
    """Write down that this process submits jobs of that name from now on."""
    global current
    current = SlurmInvocation(
        name=name, host=platform.node(), process=os.getpid(), started=utc_timestamp(), cluster=query_cluster_name()
    )
    current.write(run_directory)


def load_invocations(run_directory: Path) -> list[SlurmInvocation]:
    """Return all starts of a run, the first one first; a file that is damaged is passed over."""
    found = []
    for path in layout.INVOCATION.glob(run_directory):
        try:
            found.append(SlurmInvocation.model_validate_json(path.read_text(encoding="utf-8")))
        except (OSError, ValidationError):
            continue
    return sorted(found, key=lambda start: (start.started, start.name))


def find_local_steps(run_directory: Path) -> list[tuple[psutil.Process, list[str]]]:
    """Return the steps of this run on this machine that are no jobs of Slurm: those of a snakemake that was killed.

    Of each the process and its command line, which nobody can ask for any more when it has ended.
    """
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if words[1:3] != ["-m", "pipeline"] or not step_outputs(words):
                continue
            if not any(word.startswith(f"{run_directory}/") for word in words):
                continue
            if Path(process.cwd()) == Path.cwd() and "SLURM_JOB_ID" not in process.environ():
                found.append((process, words))
        except psutil.Error:
            continue
    return found


def step_outputs(words: list[str]) -> list[str]:
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


def clear_incomplete_marks(words: list[str]) -> None:
    """Take away Snakemake's mark that a step is incomplete, where it finished after its snakemake was killed."""
    outputs = step_outputs(words)
    if not all(Path(name).exists() for name in outputs):
        return
    for name in outputs:
        file_of(INCOMPLETE, name).unlink(missing_ok=True)


def wait_for_local_steps(run_directory: Path, say: Say) -> None:
    """Wait for the steps that a killed snakemake left running here; those that finish are not run again."""
    left = find_local_steps(run_directory)
    for process, words in left:
        say(f"process {process.pid} of the snakemake that was killed still runs ({' '.join(words[3:5])}): waiting")
    for process, words in left:
        process.wait()
        clear_incomplete_marks(words)


def query_jobs(names: list[str], *, ended: bool = False) -> dict[str, slurm_commands.QueuedJob] | None:
    """Return what `slurm_commands.query_jobs` does; without squeue, an InputError."""
    try:
        return slurm_commands.query_jobs(names, ended=ended)
    except SlurmError as error:
        raise InputError(str(error)) from None


def wait_for_slurm_jobs(dead: list[SlurmInvocation], say: Say, seconds_between: float) -> int:
    """Wait until no job of these starts waits or runs, and return how many there were."""
    names, is_away = [start.name for start in dead], False
    known: dict[str, slurm_commands.QueuedJob] = {}
    while True:
        found = query_jobs(names)
        if found is None and not is_away:
            say(f"Slurm does not answer, and jobs of this run may live ({', '.join(names)}): waiting until it does")
        is_away = found is None
        if found == {}:
            return len(known)
        for number, job in (found or {}).items():
            if number not in known:
                what = f"{job.comment or 'job'}, {job.state.lower()}"
                say(f"job {number} ({what}) is of this run, whose snakemake was killed: waiting for it")
        known |= found or {}
        time.sleep(seconds_between)


def find_live_attempts(run_directory: Path, seconds: float) -> list[str]:
    """Return the attempts that are written on within some seconds, as those of steps that live are, wherever."""

    def running() -> dict[str, Attempt]:
        attempts, _ = read_each(Attempt, layout.ATTEMPT.glob(run_directory), strict=True)
        return {f"{attempt.name}.json": attempt for attempt in attempts if attempt.status == "running"}

    if not (before := running()):
        return []
    time.sleep(seconds)
    return sorted(name for name, attempt in running().items() if before.get(name) != attempt)


def wait_for_remote_steps(run_directory: Path, say: Say, seconds: float = ATTEMPT_SECONDS) -> None:
    """Wait for the steps of a snakemake whose processes cannot be seen from here, told by what they write."""
    while found := find_live_attempts(run_directory, seconds):
        say(f"steps of the snakemake that was killed still run ({', '.join(found)}): waiting")


def take_over(run_directory: Path, say: Say, seconds_between: float = SECONDS_BETWEEN) -> None:
    """Wait for the steps and jobs of the snakemakes of this run that did not come to their end.

    Called by the holder of the run's lock, whatever it runs its own jobs with, before the DAG is built, so that what
    the jobs have written is seen.

    Args:
        run_directory: the results of the run, relative to the working directory.
        say: tells a person what is done.

    Raises:
        InputError: a snakemake had its jobs on a cluster that cannot be asked here.
    """
    wait_for_local_steps(run_directory, say)
    dead = [start for start in load_invocations(run_directory) if start.ended is None]
    if not dead:
        return
    check_cluster(run_directory, dead, say, seconds_between)
    if wait_for_slurm_jobs(dead, say, seconds_between):
        time.sleep(LATENCY_SECONDS)
    for start in dead:
        for name in allocation.list_finished_outputs(ALLOCATIONS_FOLDER / start.name):
            file_of(INCOMPLETE, name).unlink(missing_ok=True)
        start.end(run_directory)


def _has_slurm() -> bool:
    """Return whether this machine is of a cluster, even where its controller is away."""
    if not all(map(shutil.which, ("squeue", "scontrol"))):
        return False
    # Where the commands are installed and no cluster is configured, they stop with this word.
    return "fatal:" not in subprocess.run(["scontrol", "ping"], capture_output=True, text=True).stderr


def check_cluster(run_directory: Path, dead: list[SlurmInvocation], say: Say, seconds_between: float) -> None:
    """Raise InputError where jobs of these starts may live and the Slurm here, if there is one, does not know them."""
    here, has_slurm = None, _has_slurm()
    if has_slurm and (here := query_cluster_name()) is None:
        say("Slurm does not answer, and jobs of this run may live: waiting until it does")
        while (here := query_cluster_name()) is None:
            time.sleep(seconds_between)
    for start in dead:
        if has_slurm and start.cluster in (None, here):
            continue
        where = f"the cluster {start.cluster}" if start.cluster else "a cluster whose name is not known"
        asked = f"and the Slurm here is that of {here}" if has_slurm else "and there is no Slurm here"
        raise InputError(
            f"jobs of a snakemake that was killed on {start.host} may live on {where}, {asked}: start there, which "
            f"waits for them; or, where `squeue --name={start.name}` shows none there, delete "
            f"{start.path(run_directory)}, which keeps them out of the books as well, and start again"
        )
