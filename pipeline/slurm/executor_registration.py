"""Connect the Slurm executor to Polder: the `ExecutorHost` with the settings, folder and accounting of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.config.sections import Slurm
from pipeline.core.errors import InputError
from pipeline.slurm import sacct, waiting_for_leftover_jobs
from pipeline.slurm.executor import plugin_registration, snakemake_private
from pipeline.slurm.executor.host_interface import ExecutorHost, JobEnd, SlurmError
from pipeline.slurm.executor.slurm_executor import SlurmExecutor


def query_accounting(names: list[str], since: datetime) -> dict[str, JobEnd]:
    """Return the last allocation of the jobs of these names, by number."""
    try:
        jobs = sacct.query_sacct(names, since)
    except InputError as error:
        raise SlurmError(str(error)) from None
    lasts = {number: job.allocations[-1] for number, job in jobs.items()}
    return {number: JobEnd(last.state, last.is_over, last.cause) for number, last in lasts.items()}


def register_executor(
    settings: Slurm,
    run_directory: Path,
    prefix: str,
    report_queue: Callable[[Mapping[int, str]], None] = lambda reasons: None,
) -> None:
    """Register this project's executor as `slurm`; called while Snakemake reads the Snakefile.

    Args:
        settings: the section `slurm` of the configuration.
        run_directory: the results of the run.
        prefix: the first words of every command.
        report_queue: called with the jobs that wait, and the reasons.

    Raises:
        InputError: the executor does not support this version of Snakemake.
    """
    host = ExecutorHost(
        log_folder=run_directory / layout.SLURM_LOGS,
        command_prefix=prefix,
        queue_limit=settings.queue,
        start_minutes=settings.start_minutes,
        image_advice="write container: IMAGE into the platform's file (docs/howto/use-a-container.md)",
        options_advice="write what you need into slurm.account or slurm.partitions of the configuration, and "
        "variables into environment of the platform's file",
        query_accounting=query_accounting,
        report_queue=report_queue,
    )
    try:
        plugin_registration.register(host)
    except SlurmError as error:
        raise InputError(f"{error}: install envs/*.lock") from None


def record_slurm_invocation(workflow: Any, run_directory: Path) -> None:
    """Record that this process submits jobs, when the run starts; without Slurm, do nothing."""
    executor = snakemake_private.active_executor(workflow)
    if isinstance(executor, SlurmExecutor):
        waiting_for_leftover_jobs.record_invocation(run_directory, executor.name)
