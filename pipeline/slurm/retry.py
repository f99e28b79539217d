"""How much more a job asks for when it is tried again: more memory if memory was the cause, more time if time was.

A job that was preempted, cancelled, lost with its node or that crashed gets the same again: more would only make it
wait longer. Attempts alone tell nothing, since Snakemake counts all failures alike; Slurm tells the cause of each.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pipeline.errors import InputError
from pipeline.slurm import sacct, starts
from pipeline.slurm.queue import comments

FACTOR = 2.0  # of each failure by memory or by time
SECONDS_BETWEEN = 10.0  # two questions to sacct, whatever the number of jobs that failed
QUESTIONS = 3  # slurmdbd learns of a job's end a little later than squeue


@dataclass(frozen=True)
class Growth:
    """By what to multiply the first request."""

    memory: float = 1.0
    time: float = 1.0


class Failures:
    """How the jobs of this snakemake have ended so far, by rule and wildcards; asked at most once in an interval."""

    def __init__(self) -> None:
        self._causes: dict[str, list[sacct.Cause]] = {}
        self._asked_seconds = float("-inf")

    def of(self, comment: str, wanted: int) -> list[sacct.Cause]:
        """Return how the jobs of that comment have ended, of which there should be as many as wanted."""
        for question in range(QUESTIONS):
            # Where Slurm knows no comment of any job it will not know this one's either.
            if len(self._causes.get(comment, [])) >= wanted or (question and self._causes.keys() == {""}):
                break
            time.sleep(max(0.0, self._asked_seconds + SECONDS_BETWEEN - time.monotonic()))
            self._ask()
            self._asked_seconds = time.monotonic()
        return self._causes.get(comment, [])

    def _ask(self) -> None:
        """Ask for all jobs of this snakemake; where Slurm does not answer, what was known stays."""
        if starts.current is None:
            return
        name, since = starts.current.name, datetime.fromisoformat(starts.current.started) - timedelta(minutes=1)
        try:
            jobs = sacct.ask([name], since)
        except InputError:
            return
        known = {number: job.comment for number, job in jobs.items()}
        if None in known.values():  # most clusters keep no comments in their database, but squeue has them for a while
            known = {**known, **(comments(name) or {})}
        self._causes = {}
        for number, job in sorted(jobs.items(), key=lambda item: int(item[0])):
            causes = self._causes.setdefault(known[number] or "", [])
            if job.allocations[-1].is_over:
                causes.append(job.allocations[-1].cause)


_failures = Failures()


def factor(rule: str, wildcards: Iterable[str], attempt: int) -> Growth:
    """Return by how much a job's memory and time grow at this attempt, told by Slurm of the attempts before it.

    Each attempt that ended for lack of memory doubles the memory, each that ran out of time doubles the time; any other
    end changes nothing. The first attempt, a dry run, the job's own snakemake and a run without Slurm ask nobody and
    get what the rule says. Asked for in a rule's resources:

        resources:
            mem_mb=lambda w, attempt: 2000 * retry.factor("corpus_filter", w, attempt).memory,

    Args:
        rule: the name of the rule.
        wildcards: the job's wildcards, in their order.
        attempt: 1 for the first.
    """
    if attempt == 1 or starts.current is None:
        return Growth()
    values = "_".join(wildcards).replace("/", "_")  # as the plugin writes the comment
    causes = Counter(_failures.of(f"rule_{rule}_wildcards_{values}" if values else f"rule_{rule}", attempt - 1))
    return Growth(memory=FACTOR ** causes["memory"], time=FACTOR ** causes["time"])
