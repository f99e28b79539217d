"""Says which jobs wait for their start, which wait too long, and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.core.errors import InputError
from pipeline.slurm import starts
from pipeline.slurm.queue import Queued, jobs

# Why a job waits, in Slurm's words (squeue(1), JOB REASON CODES), and what a person can do.
REASONS = {
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


def _why(number: str, job: Queued) -> str:
    # Slurm adds the nodes to some reasons: ReqNodeNotAvail, UnavailableNodes:gcn4
    return REASONS.get(job.reason.split(",")[0], "see squeue --start").format(job=number)


def waiting(run_directory: Path) -> list[str]:
    """Return a sentence for each job of a run that waits now; none where there is no Slurm, or it does not answer."""
    names = [start.name for start in starts.starts(run_directory) if start.ended is None]
    queue: dict[str, Queued] | None = None
    with suppress(InputError):
        queue = jobs(names) if names else None
    return [
        f"job {number} ({job.comment}) waits in the queue: {_why(number, job)} ({job.reason})"
        for number, job in sorted((queue or {}).items())
        if job.state == "PENDING"
    ]


class Waiting:
    """Compares what waits with what has waited before.

    Args:
        seconds: how long a job may wait before it is told, once for each time that it is put into the queue.
        say: tells a person.
    """

    def __init__(self, seconds: float, say: Callable[[str], None]) -> None:
        self.seconds, self.say = seconds, say
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def look(self, queue: Mapping[str, Queued]) -> None:
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
            why = _why(number, job)
            self.say(
                f"job {number} ({job.comment}) has waited {waited / 60:.0f} minutes for its start: {why} "
                f"({job.reason}); wait, or end snakemake (Ctrl-C cancels its jobs), change what the job asks for and "
                "start again"
            )
