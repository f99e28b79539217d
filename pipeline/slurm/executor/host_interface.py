"""The interface between a project and the executor: `ExecutorHost`, causes, states and `SlurmError`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

Cause = Literal["finished", "failed", "memory", "time", "preempted", "node", "cancelled", "requeued"]
CAUSES: dict[str, Cause] = {
    "COMPLETED": "finished",
    "OUT_OF_MEMORY": "memory",
    "TIMEOUT": "time",
    "DEADLINE": "time",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node",
    "BOOT_FAIL": "node",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "REQUEUED": "requeued",
}
# squeue(1), JOB STATE CODES. A state that a later Slurm adds is none of them, and its job is waited for.
ENDED_STATES = {*CAUSES, "FAILED"} - {"REQUEUED"}


class SlurmError(Exception):
    """A command of Slurm is missing or its answer is not usable; the message says what to do."""


class JobEnd(NamedTuple):
    """The last allocation of a job in Slurm's accounting."""

    state: str
    is_over: bool
    cause: Cause


@dataclass(frozen=True)
class ExecutorHost:
    """The settings and callbacks that a project gives to the executor.

    Attributes:
        log_folder: the folder of Slurm's logs.
        command_prefix: the first words of every job's command.
        queue_limit: the maximum number of allocations in Slurm's queue.
        start_minutes: minutes that a job may wait for its start before a warning.
        image_advice: what to do instead of `--sdm apptainer`, as the end of a sentence.
        options_advice: where to write the options that are not taken from Slurm's variables, as the end of a sentence.
        query_accounting: returns the last allocations of the jobs of these names since a time, by number; raises
            `SlurmError` if the accounting does not answer.
        report_queue: called with the jobs of Snakemake that wait, by their ids, and the reasons.
    """

    log_folder: Path
    command_prefix: str
    queue_limit: int
    start_minutes: float
    image_advice: str
    options_advice: str
    query_accounting: Callable[[list[str], datetime], Mapping[str, JobEnd]]
    report_queue: Callable[[Mapping[int, str]], None] = lambda reasons: None
