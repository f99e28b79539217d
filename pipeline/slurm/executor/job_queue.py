"""Slurm's queue: which jobs are in it, which wait too long and why, and their cancellation.

One question is asked for all jobs of a start, since the controller answers many people.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pipeline.slurm.executor.interface import SlurmError

SECONDS = 120
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
            [*words, *(["--states=all"] if ended else [])], capture_output=True, text=True, timeout=SECONDS
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
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
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
            done = subprocess.run(["scancel", f"--name={name}"], capture_output=True, text=True, timeout=SECONDS)
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
