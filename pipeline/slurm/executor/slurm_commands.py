"""Slurm's commands: submit an allocation, see which jobs are in the queue, wait too long and why, and cancel them.

What `sbatch` answers is one of four outcomes: taken, full, silent or refused. One question is asked for the states of
all jobs of a start, since the controller answers many people.
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
# slurm_errno.c: what sbatch says where it does not know whether its request has arrived, or that it has not.
UNANSWERED = re.compile(
    r"unable to contact|timed out|zero bytes|communication|connection|not connected|unexpected m|authentica", re.I
)
# Limits of a QOS, an association or the controller on how many jobs there may be: there is room later.
FULL = re.compile(r"MaxSubmit|GrpSubmit|MaxJobs|GrpJobs|job submit limit|temporarily un|try again|too many jobs", re.I)
# The reasons that sbatch adds where a job as such is larger than it may be: there is never room for it.
NEVER = re.compile(r"PerJob|MaxWall|TimeLimit|NodeLimit|MaxNode|MaxCpu|MaxMem", re.I)

QUERY_SECONDS = 120
CANCEL_TRIES, CANCEL_SECONDS = 3, 10.0
# Why a job waits, in Slurm's words (squeue(1), JOB REASON CODES), and what a person can do.
WAIT_REASONS = {
    "PartitionTimeLimit": "it asks for more time than its partition gives",
    "PartitionNodeLimit": "it asks for more nodes than its partition gives",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition starts no jobs",
    "BadConstraints": "no node has what it asks for",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved",
    "InvalidAccount": "its account is not valid",
    "AssocMaxJobsLimit": "its account has as many jobs as it may have",
    "QOSMaxJobsPerUserLimit": "its QOS lets a person have no more jobs at once",
    "JobHeldAdmin": "an administrator holds it: ask them",
    "JobHeldUser": "it is held: scontrol release {job}",
    "launch_failed_requeued_held": "its start failed and Slurm holds it: scontrol release {job}",
    "Resources": "other jobs have the nodes",
    "Priority": "other jobs come first",
}

SubmissionOutcome = Literal["taken", "full", "silent", "refused"]


@dataclass(frozen=True)
class SubmissionAnswer:
    """What came of a submission: the job's number where it was taken, else Slurm's own words."""

    outcome: SubmissionOutcome
    number: str = ""
    said: str = ""


def parse_answer(code: int, printed: str, said: str) -> SubmissionAnswer:
    """Return what an sbatch means by its exit code, its number and its messages."""
    # `4711` or `4711;CLUSTER`; a site's own words may stand before and after it.
    numbers = re.findall(r"^(\d+)(?:;\S+)?[ \t\r]*$", printed, re.MULTILINE)
    words = " ".join(said.split()).replace("sbatch: error: ", "")
    if code == 0 and numbers:
        return SubmissionAnswer("taken", number=numbers[-1])
    if UNANSWERED.search(said):
        return SubmissionAnswer("silent", said=words)
    if FULL.search(said) and not NEVER.search(said):
        return SubmissionAnswer("full", said=words)
    return SubmissionAnswer("refused", said=words or f"sbatch ends with {code}")


def sbatch_options(resources: Mapping[str, Any]) -> list[str]:
    """Return the options of sbatch that a job's resources ask for, by the names that Snakemake's users know."""
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
    """Submit a batch script with these options of sbatch and return what came of it."""
    command = ["sbatch", "--parsable", "--export=ALL", f"--chdir={workdir}", *words]
    try:
        done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=SBATCH_SECONDS)
    except subprocess.TimeoutExpired:
        return SubmissionAnswer("silent", said=f"sbatch has not answered for {SBATCH_SECONDS} seconds")
    except OSError as error:
        return SubmissionAnswer("refused", said=f"sbatch cannot be started ({error.strerror})")
    return parse_answer(done.returncode, done.stdout, done.stderr)


class QueuedJob(NamedTuple):
    """A job that Slurm knows: its state and the reason for it, in Slurm's words, and what it is."""

    state: str
    reason: str
    comment: str


def query_jobs(names: list[str], *, ended: bool = False) -> dict[str, QueuedJob] | None:
    """Return the jobs of these names that wait or run, by number; None where Slurm does not answer.

    `ended` adds those that are over, which Slurm has for some minutes (MinJobAge).

    Raises:
        SlurmError: there is no squeue.
    """
    words = ["squeue", "--noheader", f"--name={','.join(names)}", "--format=%A|%T|%r|%k"]
    try:
        done = subprocess.run(
            [*words, *(["--states=all"] if ended else [])], capture_output=True, text=True, timeout=QUERY_SECONDS
        )
    except FileNotFoundError:
        raise SlurmError("there is no squeue, but jobs of this run may live: go to a node that has Slurm") from None
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        return None
    # Of a comment of several lines the first is enough: the others are no rows.
    rows = (match.groups() for match in re.finditer(r"^(\d+)\|([^|\n]*)\|([^|\n]*)\|(.*)", done.stdout, re.MULTILINE))
    return {number: QueuedJob(state, reason, comment) for number, state, reason, comment in rows}


def query_exit_code(number: str) -> int | None:
    """Return the exit code of a job that has ended; None where Slurm does not know it any more."""
    try:
        words = ["scontrol", "--oneliner", "show", "job", number]
        done = subprocess.run(words, capture_output=True, text=True, timeout=QUERY_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\bExitCode=(\d+):", done.stdout)
    return int(found[1]) if found else None


def cancel_jobs(name: str) -> str:
    """Cancel all jobs of that name; return what went wrong, or nothing."""
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
    """Return why a job waits, and what a person can do."""
    # Slurm adds the nodes to some reasons: ReqNodeNotAvail, UnavailableNodes:gcn4
    return WAIT_REASONS.get(job.reason.split(",")[0], "see squeue --start").format(job=number)


class WaitMonitor:
    """Compares what waits with what has waited before.

    Args:
        seconds: how long a job may wait before it is told, once for each time that it is put into the queue.
        say: tells a person.
    """

    def __init__(self, seconds: float, say: Callable[[str], None]) -> None:
        self.seconds, self.say = seconds, say
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def look(self, queue: Mapping[str, QueuedJob]) -> None:
        """Tell of the jobs that have waited too long; to be called whenever the queue was asked for."""
        now = time.monotonic()
        pending = {number: job for number, job in queue.items() if job.state == "PENDING"}
        self._since = {number: self._since.get(number, now) for number in pending}
        self._told &= pending.keys()
        for number, job in pending.items():
            waited = now - self._since[number]
            if waited < self.seconds or number in self._told:
                continue
            self._told.add(number)
            why = explain_wait(number, job)
            self.say(
                f"job {number} ({job.comment}) has waited {waited / 60:.0f} minutes for its start: {why} "
                f"({job.reason}); wait, or end snakemake (Ctrl-C cancels its jobs), change what the job asks for and "
                "start again"
            )
