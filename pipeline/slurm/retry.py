"""How much more a job asks for when it is tried again: more memory if memory was the cause, more time if time was.

A job that was preempted, cancelled, lost with its node or that crashed gets the same again: more would only make it
wait longer. Attempts alone tell nothing, since Snakemake counts all failures alike; Slurm tells the cause of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.slurm.sacct import Cause

FACTOR = 2.0  # of each failure by memory or by time

_causes: dict[str, Counter[Cause]] = {}  # of this process's jobs, by what they are; told by the executor


@dataclass(frozen=True)
class Growth:
    """By what to multiply the first request."""

    memory: float = 1.0
    time: float = 1.0


def what(rule: str, wildcards: Iterable[str]) -> str:
    """Return the name of a job in Slurm's comments: its rule and its wildcards, in their order."""
    values = "_".join(wildcards).replace("/", "_")
    return f"rule_{rule}_wildcards_{values}" if values else f"rule_{rule}"


def failed(name: str, cause: Cause) -> None:
    """Remember why a job failed, before Snakemake asks for its next request."""
    _causes.setdefault(name, Counter())[cause] += 1


def factor(rule: str, wildcards: Iterable[str], attempt: int) -> Growth:
    """Return by how much a job's memory and time grow at this attempt.

    Each attempt that ended for lack of memory doubles the memory, each that ran out of time doubles the time; any other
    end changes nothing. Nobody is asked: Snakemake's main loop waits for the answer.
    """
    if attempt == 1:
        return Growth()
    causes = _causes.get(what(rule, wildcards), Counter())
    return Growth(memory=FACTOR ** causes["memory"], time=FACTOR ** causes["time"])
