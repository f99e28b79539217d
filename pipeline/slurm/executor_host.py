"""The `ExecutorHost` of Polder: the executor gets a run's settings, folder and accounting from here alone."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.config.sections import Slurm
from pipeline.core.errors import InputError
from pipeline.slurm import sacct, takeover
from pipeline.slurm.executor import plugin, snakemake_private
from pipeline.slurm.executor.interface import ExecutorHost, JobEnd, SlurmError
from pipeline.slurm.executor.slurm_executor import SlurmExecutor


def query_accounting(names: list[str], since: datetime) -> dict[str, JobEnd]:
    """Return how the jobs of these names have ended, by number; a job that was put back into the queue ends last."""
    try:
        jobs = sacct.query_sacct(names, since)
    except InputError as error:
        raise SlurmError(str(error)) from None
    lasts = {number: job.allocations[-1] for number, job in jobs.items()}
    return {number: JobEnd(last.state, last.is_over, last.cause) for number, last in lasts.items()}


def register(settings: Slurm, run_directory: Path, prefix: str) -> None:
    """Make this project's executor the one that Snakemake calls `slurm`, for a run; called while the Snakefile is read.

    Args:
        settings: the section `slurm` of the configuration.
        run_directory: the results of the run.
        prefix: what every command begins with.

    Raises:
        InputError: this Snakemake is not one that the executor was written for.
    """
    host = ExecutorHost(
        log_folder=run_directory / layout.SLURM_LOGS,
        command_prefix=prefix,
        account=settings.account,
        queue_limit=settings.queue,
        start_minutes=settings.start_minutes,
        image_advice="write container: IMAGE into the platform's file (docs/platform.md, An image)",
        query_accounting=query_accounting,
    )
    try:
        plugin.register(host)
    except SlurmError as error:
        raise InputError(f"{error}: install envs/*.lock") from None


def record_start(workflow: Any, run_directory: Path) -> None:
    """Write down that this process submits jobs, when the run starts; nothing where it runs them itself."""
    executor = snakemake_private.active_executor(workflow)
    if isinstance(executor, SlurmExecutor):
        takeover.record_invocation(run_directory, executor.name)
