"""Record each snakemake that submits jobs of a run, and wait for the jobs of killed ones.

A new snakemake does not know the jobs of an earlier one and would submit them a second time. Each invocation therefore
has a file next to the accounting. All its jobs have one name in Slurm, which no other run, folder or user has. An
invocation without an end was killed if nobody has the lock of the run.
"""

from __future__ import annotations

import os
import platform
import re
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
from pipeline.core.job_command_lines import command_option, command_options
from pipeline.core.job_records import Attempt, read_job_files
from pipeline.job.attempt import HEARTBEAT_SECONDS
from pipeline.slurm.executor import allocation_runner, slurm_commands
from pipeline.slurm.executor.allocation_runner import ALLOCATIONS_FOLDER
from pipeline.slurm.executor.host_interface import SlurmError
from pipeline.workflow.snakemake_internals import metadata_file

Warn = Callable[[str], None]
SECONDS_BETWEEN = 10.0
INCOMPLETE = Path(".snakemake/incomplete")
ATTEMPT_SECONDS = 3 * HEARTBEAT_SECONDS
LATENCY_SECONDS = 5.0  # until a file that a node wrote is seen here

current_invocation: SlurmInvocation | None = None  # of this process


class SlurmInvocation(BaseModel):
    """One snakemake: the name of its jobs in Slurm, and when it ended or none of its jobs was left.

    `cluster` is None if Slurm did not answer, and in files of earlier versions.
    """

    name: str
    host: str
    process: int
    started: str
    ended: str | None = None
    cluster: str | None = None

    def path(self, run_directory: Path) -> Path:
        return layout.INVOCATION.path(run_directory, name=self.name)

    def write(self, run_directory: Path) -> None:
        atomic_files.write_atomically(self.path(run_directory), f"{self.model_dump_json(indent=1)}\n".encode())

    def end(self, run_directory: Path) -> None:
        """Record that it submits no more jobs and that none of them is left."""
        self.model_copy(update={"ended": utc_timestamp()}).write(run_directory)


def utc_timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def query_cluster_name() -> str | None:
    """Return the name of the local Slurm cluster; None if there is none, or it does not answer."""
    match = re.search(r"^ClusterName\s*=\s*(\S+)", slurm_commands.query_configuration(), re.MULTILINE)
    return match[1] if match else None


def record_invocation(run_directory: Path, name: str) -> None:
    """Record that this process submits jobs of that name from now on."""
    global current_invocation
    current_invocation = SlurmInvocation(
        name=name, host=platform.node(), process=os.getpid(), started=utc_timestamp(), cluster=query_cluster_name()
    )
    current_invocation.write(run_directory)


def load_invocations(run_directory: Path) -> list[SlurmInvocation]:
    """Return all invocations of a run, the first one first; damaged files are skipped."""
    invocations = []
    for path in layout.INVOCATION.glob(run_directory):
        try:
            invocations.append(SlurmInvocation.model_validate_json(path.read_text(encoding="utf-8")))
        except (OSError, ValidationError):
            continue
    return sorted(invocations, key=lambda start: (start.started, start.name))


def list_waiting_jobs(run_directory: Path) -> list[str]:
    """Return a sentence about each job of a run that waits in Slurm's queue; none if Slurm does not answer."""
    names = [start.name for start in load_invocations(run_directory) if start.ended is None]
    try:
        queue = slurm_commands.query_jobs(names) if names else None
    except SlurmError:
        queue = None
    return [
        f"job {number} ({job.comment}) waits in the queue: {slurm_commands.explain_wait([number], job.reason)}"
        for number, job in sorted((queue or {}).items())
        if job.state == "PENDING"
    ]


def find_leftover_processes(run_directory: Path) -> list[tuple[psutil.Process, list[str]]]:
    """Return the steps of a killed snakemake of this run that still run on this machine, outside of Slurm.

    Each is its process and its command line, which is not available after its end.
    """
    steps = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if words[1:3] != ["-m", "pipeline"] or not parse_output_paths(words):
                continue
            if not any(word.startswith(f"{run_directory}/") for word in words):
                continue
            if Path(process.cwd()) == Path.cwd() and "SLURM_JOB_ID" not in process.environ():
                steps.append((process, words))
        except psutil.Error:
            continue
    return steps


def parse_output_paths(words: list[str]) -> list[str]:
    """Return the outputs in a step's command line; the last is the record or the file of the batch."""
    outputs = [values[1] for name, values in command_options(words) if name == "--output" and len(values) == 2]
    batch, record = (command_option(words, name) for name in ("--batch", "--record"))
    return [batch] if batch else [*outputs, *([record] if record else [])]


def clear_incomplete_marks(words: list[str]) -> None:
    """Remove Snakemake's mark of incomplete outputs if the step finished after its snakemake was killed."""
    outputs = parse_output_paths(words)
    if not all(Path(name).exists() for name in outputs):
        return
    for name in outputs:
        metadata_file(INCOMPLETE, name).unlink(missing_ok=True)


def wait_for_leftover_processes(run_directory: Path, warn: Warn) -> None:
    """Wait for the steps of a killed snakemake on this machine, so that finished ones do not run again."""
    left = find_leftover_processes(run_directory)
    for process, words in left:
        warn(f"process {process.pid} of a killed snakemake still runs ({' '.join(words[3:5])}): waiting")
    for process, words in left:
        process.wait()
        clear_incomplete_marks(words)


def query_jobs(names: list[str], *, ended: bool = False) -> dict[str, slurm_commands.QueuedJob] | None:
    """Return the answer of `slurm_commands.query_jobs`.

    Raises:
        InputError: there is no squeue.
    """
    try:
        return slurm_commands.query_jobs(names, ended=ended)
    except SlurmError as error:
        raise InputError(str(error)) from None


def wait_for_slurm_jobs(dead: list[SlurmInvocation], warn: Warn, seconds_between: float) -> int:
    """Wait until no job of these invocations waits or runs, and return how many there were."""
    names, is_away = [start.name for start in dead], False
    known: dict[str, slurm_commands.QueuedJob] = {}
    while True:
        jobs = query_jobs(names)
        if jobs is None and not is_away:
            warn(f"Slurm does not answer, and jobs of this run may exist ({', '.join(names)}): waiting until it does")
        is_away = jobs is None
        if jobs == {}:
            return len(known)
        for number, job in (jobs or {}).items():
            if number not in known:
                what = f"{job.comment or 'job'}, {job.state.lower()}"
                warn(f"job {number} ({what}) belongs to a killed snakemake of this run: waiting for it")
        known |= jobs or {}
        time.sleep(seconds_between)


def find_live_attempts(run_directory: Path, seconds: float) -> list[str]:
    """Return the attempts whose heartbeat advances within some seconds: their steps run, on whatever host."""

    def read_running_attempts() -> dict[str, Attempt]:
        attempts, _ = read_job_files(Attempt, layout.ATTEMPT.glob(run_directory), strict=True)
        return {f"{attempt.name}.json": attempt for attempt in attempts if attempt.status == "running"}

    if not (before := read_running_attempts()):
        return []
    time.sleep(seconds)
    return sorted(name for name, attempt in read_running_attempts().items() if before.get(name) != attempt)


def wait_for_orphaned_steps(run_directory: Path, warn: Warn, seconds: float = ATTEMPT_SECONDS) -> None:
    """Wait for the steps of a killed snakemake on other hosts, by the heartbeats of their attempts."""
    while running := find_live_attempts(run_directory, seconds):
        warn(f"steps of a killed snakemake still run ({', '.join(running)}): waiting")


def wait_for_killed_invocations(run_directory: Path, warn: Warn, seconds_between: float = SECONDS_BETWEEN) -> None:
    """Wait for the steps and jobs of killed invocations of this run.

    The owner of the run's lock calls it, with every executor, before the DAG is built, so that the outputs of these
    jobs are seen.

    Args:
        run_directory: the results of the run, relative to the working directory.
        warn: prints a sentence.
        seconds_between: seconds between two queries.

    Raises:
        InputError: an invocation has jobs on a cluster that cannot be queried here.
    """
    wait_for_leftover_processes(run_directory, warn)
    dead = [start for start in load_invocations(run_directory) if start.ended is None]
    if not dead:
        return
    check_cluster(run_directory, dead, warn, seconds_between)
    if wait_for_slurm_jobs(dead, warn, seconds_between):
        time.sleep(LATENCY_SECONDS)
    for start in dead:
        for name in allocation_runner.list_finished_outputs(ALLOCATIONS_FOLDER / start.name):
            metadata_file(INCOMPLETE, name).unlink(missing_ok=True)
        start.end(run_directory)


def _has_slurm() -> bool:
    """Return whether this machine belongs to a cluster, even if its controller is down."""
    if not all(map(shutil.which, ("squeue", "scontrol"))):
        return False
    try:  # Commands that are installed without a configured cluster stop with this word.
        said = slurm_commands.run_slurm_command(["scontrol", "ping"], slurm_commands.QUERY_SECONDS).stderr
    except (OSError, subprocess.TimeoutExpired):
        return True
    return "fatal:" not in said


def check_cluster(run_directory: Path, dead: list[SlurmInvocation], warn: Warn, seconds_between: float) -> None:
    """Check that the local Slurm knows the jobs of these invocations.

    Raises:
        InputError: jobs may exist on another cluster.
    """
    here, has_slurm = None, _has_slurm()
    if has_slurm and (here := query_cluster_name()) is None:
        warn("Slurm does not answer, and jobs of this run may exist: waiting until it does")
        while (here := query_cluster_name()) is None:
            time.sleep(seconds_between)
    for start in dead:
        if has_slurm and start.cluster in (None, here):
            continue
        where = f"the cluster {start.cluster}" if start.cluster else "a cluster whose name is not known"
        local = f"and the Slurm here is that of {here}" if has_slurm else "and there is no Slurm here"
        raise InputError(
            f"jobs of a snakemake that was killed on {start.host} may exist on {where}, {local}: run snakemake there, "
            f"which waits for them; or, if `squeue --name={start.name}` shows none there, delete "
            f"{start.path(run_directory)}, which also omits them from the accounting, and run snakemake again"
        )
