"""What a project gives the executor (`ExecutorHost`), and what both speak of: causes, states, `SlurmError`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

# squeue(1), JOB STATE CODES: all that come before an end, also those that a job has for moments, such as SIGNALING.
UNFINISHED_STATES = (
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING", "REQUEUED", "REQUEUE_HOLD"),
    *("REQUEUE_FED", "RESV_DEL_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED"),
)

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


class SlurmError(Exception):
    """A command of Slurm is missing or gives no answer that can be used; the message is one sentence with a way out."""


class JobEnd(NamedTuple):
    """What Slurm's accounting says of a job's last allocation."""

    state: str
    is_over: bool
    cause: Cause


@dataclass(frozen=True)
class ExecutorHost:
    """What the executor needs of the project that runs its jobs with it.

    Attributes:
        log_folder: the folder of Slurm's logs.
        command_prefix: what the command of every job begins with.
        account: who pays; None takes the user's default account.
        queue_limit: most allocations in Slurm's queue at once.
        start_minutes: how long a job may wait for its start before a warning.
        image_advice: what a person does instead of `--sdm apptainer`, as the end of a sentence.
        query_accounting: returns the ends of the jobs of these names since a time, by the job's number; raises
            `SlurmError` where the accounting does not answer.
    """

    log_folder: Path
    command_prefix: str
    account: str | None
    queue_limit: int
    start_minutes: float
    image_advice: str
    query_accounting: Callable[[list[str], datetime], Mapping[str, JobEnd]]
