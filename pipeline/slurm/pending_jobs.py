"""`polder follow results/RUN`: how far its trainings are, and which of its jobs wait in Slurm's queue."""

from __future__ import annotations

from pathlib import Path

from pipeline.slurm import invocations
from pipeline.slurm.executor import slurm_commands
from pipeline.slurm.executor.interface import SlurmError


def list_waiting_jobs(run_directory: Path) -> list[str]:
    """Return a sentence for each job of a run that waits now; none where there is no Slurm, or it does not answer."""
    names = [start.name for start in invocations.load_invocations(run_directory) if start.ended is None]
    try:
        queue = slurm_commands.query_jobs(names) if names else None
    except SlurmError:
        queue = None
    return [
        f"job {number} ({job.comment}) waits in the queue: {slurm_commands.explain_wait(number, job)} ({job.reason})"
        for number, job in sorted((queue or {}).items())
        if job.state == "PENDING"
    ]
