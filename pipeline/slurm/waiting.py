"""Says which jobs wait too long for their start, and why, while Snakemake waits for them."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable

SECONDS_BETWEEN = 60.0
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
    "JobHeldAdmin": "an administrator holds it: ask them",
    "JobHeldUser": "it is held: scontrol release {job}",
    "launch_failed_requeued_held": "its start failed and Slurm holds it: scontrol release {job}",
    "Resources": "other jobs have the nodes",
    "Priority": "other jobs come first",
}


class Waiting:
    """Watches the jobs of one snakemake in a thread.

    Args:
        name: the name that all its jobs have.
        seconds: how long a job may wait before it is told, once for each time that it is put into the queue.
        say: tells a person.
    """

    def __init__(
        self, name: str, seconds: float, say: Callable[[str], None], seconds_between: float = SECONDS_BETWEEN
    ) -> None:
        self.name, self.seconds, self.say = name, seconds, say
        self._since: dict[str, float] = {}
        self._told: set[str] = set()
        self._seconds_between = seconds_between
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="waiting", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(self._seconds_between):
            pending = self._pending()
            if pending is not None:
                self._compare(pending)

    def _pending(self) -> dict[str, tuple[str, str]] | None:
        """Return job to (what it is, why it waits); None where Slurm does not answer."""
        words = ["squeue", "--noheader", f"--name={self.name}", "--states=PENDING", "--format=%A|%r|%k"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode:
            return None
        rows = (line.split("|", 2) for line in done.stdout.splitlines())
        return {job: (comment, reason) for job, reason, comment in rows}

    def _compare(self, pending: dict[str, tuple[str, str]]) -> None:
        now = time.monotonic()
        self._since = {job: self._since.get(job, now) for job in pending}
        self._told &= pending.keys()
        for job, (comment, reason) in pending.items():
            waited = now - self._since[job]
            if waited < self.seconds or job in self._told:
                continue
            self._told.add(job)
            # Slurm adds the nodes to some reasons: ReqNodeNotAvail, UnavailableNodes:gcn4
            why = REASONS.get(reason.split(",")[0], "see squeue --start").format(job=job)
            self.say(
                f"job {job} ({comment}) has waited {waited / 60:.0f} minutes for its start: {why} ({reason}); wait, or "
                "end snakemake (Ctrl-C cancels its jobs), change what the job asks for and start again"
            )
