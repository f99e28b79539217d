"""Call Slurm's commands: submit an allocation, query the queue, explain why jobs wait, and cancel them.

The answer of `sbatch` is one of four outcomes: taken, full, silent or refused. One query returns the states of all jobs
of an invocation, because the controller serves many users.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pipeline.slurm.executor.interface import SlurmError

SBATCH_SECONDS = 300
# slurm_errno.c: the messages of sbatch when its request may not have arrived.
NO_ANSWER = re.compile(
    r"unable to contact|timed out|zero bytes|communication|connection|not connected|unexpected m|authentica", re.I
)
# Limits of a QOS, an association or the controller on the number of jobs: they pass.
QUEUE_FULL = re.compile(
    r"MaxSubmit|GrpSubmit|MaxJobs|GrpJobs|job submit limit|temporarily un|try again|too many jobs", re.I
)
# The reasons that sbatch adds when one job is too large: they do not pass.
PERMANENT_LIMIT = re.compile(r"PerJob|MaxWall|TimeLimit|NodeLimit|MaxNode|MaxCpu|MaxMem", re.I)

QUERY_SECONDS = 120
CANCEL_TRIES, CANCEL_SECONDS = 3, 10.0
# Why a job waits (squeue(1), JOB REASON CODES), and what the user can do.
WAIT_REASONS = {
    "PartitionTimeLimit": "it asks for more time than its partition gives",
    "PartitionNodeLimit": "it asks for more nodes than its partition gives",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition starts no jobs",
    "BadConstraints": "no node has what it asks for",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved",
    "InvalidAccount": "its account is not valid",
    "AssocMaxJobsLimit": "its account has as many jobs as it may have",
    "QOSMaxJobsPerUserLimit": "its QOS allows a user no more jobs at once",
    "JobHeldAdmin": "an administrator holds it: contact them",
    "JobHeldUser": "it is held: scontrol release {job}",
    "launch_failed_requeued_held": "its start failed and Slurm holds it: scontrol release {job}",
    "Resources": "other jobs have the nodes",
    "Priority": "other jobs come first",
}

SubmissionOutcome = Literal["taken", "full", "silent", "refused"]


@dataclass(frozen=True)
class SubmissionAnswer:
    """The outcome of a submission: the number of the job if it was taken, else the message of Slurm."""

    outcome: SubmissionOutcome
    number: str = ""
    said: str = ""


def parse_sbatch_answer(code: int, printed: str, said: str) -> SubmissionAnswer:
    """Return the outcome of sbatch by its exit code, the printed number and its messages."""
    # `4711` or `4711;CLUSTER`; a site may print more lines around it.
    numbers = re.findall(r"^(\d+)(?:;\S+)?[ \t\r]*$", printed, re.MULTILINE)
    words = " ".join(said.split()).replace("sbatch: error: ", "")
    if code == 0 and numbers:
        return SubmissionAnswer("taken", number=numbers[-1])
    if NO_ANSWER.search(said):
        return SubmissionAnswer("silent", said=words)
    if QUEUE_FULL.search(said) and not PERMANENT_LIMIT.search(said):
        return SubmissionAnswer("full", said=words)
    return SubmissionAnswer("refused", said=words or f"sbatch ends with {code}")


def sbatch_options(resources: Mapping[str, Any]) -> list[str]:
    """Return the options of sbatch for the resources of a job, by the names of Snakemake's Slurm plugin."""
    given = {
        "--partition": resources.get("slurm_partition"),
        "--account": resources.get("slurm_account"),
        "--time": resources.get("runtime"),
        "--mem": resources.get("mem_mb"),
        "--nodes": resources.get("nodes"),
        "--ntasks": resources.get("tasks") or 1,
        "--cpus-per-task": resources.get("cpus_per_task"),
        "--gres": resources.get("gres"),
        "--constraint": resources.get("constraint"),
        "--qos": resources.get("qos"),
    }
    return [f"{name}={value}" for name, value in given.items() if value] + shlex.split(
        resources.get("slurm_extra") or ""
    )


def submit_batch(words: Sequence[str], script: str, workdir: Path) -> SubmissionAnswer:
    """Submit a batch script with these options of sbatch and return the outcome."""
    command = ["sbatch", "--parsable", "--export=ALL", f"--chdir={workdir}", *words]
    try:
        done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=SBATCH_SECONDS)
    except subprocess.TimeoutExpired:
        return SubmissionAnswer("silent", said=f"sbatch has not answered for {SBATCH_SECONDS} seconds")
    except OSError as error:
        return SubmissionAnswer("refused", said=f"sbatch cannot be started ({error.strerror})")
    return parse_sbatch_answer(done.returncode, done.stdout, done.stderr)


class QueuedJob(NamedTuple):
    """A job in squeue: its state, the reason for the state, and its comment."""

    state: str
    reason: str
    comment: str


def query_jobs(names: list[str], *, ended: bool = False) -> dict[str, QueuedJob] | None:
    """Return the waiting and running jobs of these names, by number; None if Slurm does not answer.

    `ended` adds ended jobs, which Slurm keeps for some minutes (MinJobAge).

    Raises:
        SlurmError: there is no squeue.
    """
    words = ["squeue", "--noheader", f"--name={','.join(names)}", "--format=%A|%T|%r|%k"]
    try:
        done = subprocess.run(
            [*words, *(["--states=all"] if ended else [])], capture_output=True, text=True, timeout=QUERY_SECONDS
        )
    except FileNotFoundError:
        raise SlurmError("there is no squeue, but jobs of this run may exist: use a node that has Slurm") from None
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        return None
    # The first line of a comment is enough: the others are no rows.
    rows = (match.groups() for match in re.finditer(r"^(\d+)\|([^|\n]*)\|([^|\n]*)\|(.*)", done.stdout, re.MULTILINE))
    return {number: QueuedJob(state, reason, comment) for number, state, reason, comment in rows}


def query_configuration() -> str:
    """Return what `scontrol show config` prints; nothing if there is no Slurm, or it does not answer."""
    try:
        done = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=QUERY_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def query_exit_code(number: str) -> int | None:
    """Return the exit code of an ended job; None if Slurm has forgotten it."""
    try:
        words = ["scontrol", "--oneliner", "show", "job", number]
        done = subprocess.run(words, capture_output=True, text=True, timeout=QUERY_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\bExitCode=(\d+):", done.stdout)
    return int(found[1]) if found else None


def cancel_jobs(name: str) -> str:
    """Cancel all jobs of that name; return the error message, or nothing."""
    problem = ""
    for attempt in range(CANCEL_TRIES):
        time.sleep(CANCEL_SECONDS if attempt else 0)
        try:
            done = subprocess.run(["scancel", f"--name={name}"], capture_output=True, text=True, timeout=QUERY_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
            continue
        if done.returncode == 0:
            return ""
        problem = " ".join(done.stderr.split())
    return problem


def explain_wait(number: str, job: QueuedJob) -> str:
    """Return why a job waits, and what the user can do."""
    # Slurm adds the nodes to some reasons: ReqNodeNotAvail, UnavailableNodes:gcn4
    return WAIT_REASONS.get(job.reason.split(",")[0], "see squeue --start").format(job=number)


class WaitMonitor:
    """Warn of jobs that wait too long for their start.

    Args:
        seconds: how long a job may wait before the warning, which is given once for each time in the queue.
        warn: prints a sentence.
    """

    def __init__(self, seconds: float, warn: Callable[[str], None]) -> None:
        self.seconds, self.warn = seconds, warn
        self._since: dict[str, float] = {}
        self._reported: set[str] = set()

    def update(self, queue: Mapping[str, QueuedJob]) -> None:
        """Warn of the jobs that have waited too long; call it with every answer of squeue."""
        now = time.monotonic()
        pending = {number: job for number, job in queue.items() if job.state == "PENDING"}
        self._since = {number: self._since.get(number, now) for number in pending}
        self._reported &= pending.keys()
        for number, job in pending.items():
            waited = now - self._since[number]
            if waited < self.seconds or number in self._reported:
                continue
            self._reported.add(number)
            why = explain_wait(number, job)
            self.warn(
                f"job {number} ({job.comment}) has waited {waited / 60:.0f} minutes for its start: {why} "
                f"({job.reason}); wait, or end snakemake (Ctrl-C cancels its jobs), change what the job asks for and "
                "start again"
            )
