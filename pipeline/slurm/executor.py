"""Tells Snakemake's Slurm plugin what a profile cannot: where a run's logs go, and who pays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_slurm

from pipeline.slurm import starts
from pipeline.slurm.settings import Slurm
from pipeline.slurm.submission import Submissions
from pipeline.slurm.waiting import Waiting


def prepare(workflow: Any, run_directory: Path, settings: Slurm, say: Callable[[str], None]) -> None:
    """Prepare the plugin's executor, when the run starts; another executor is left as it is.

    Args:
        workflow: Snakemake's workflow. Its executor does not exist before the run starts, and has no settings for this.
        run_directory: the results of the run.
        settings: the section `slurm` of the configuration.
        say: tells a person of jobs that do not start.
    """
    executor, options = workflow.scheduler._executor, workflow.executor_settings
    if not hasattr(executor, "slurm_logdir"):
        return
    if options.logdir is None:
        executor.slurm_logdir = (run_directory / "logs" / "slurm").absolute()
    if options.efficiency_report_path is None:
        options.efficiency_report_path = run_directory / "provenance" / "accounting"
    # The plugin would ask the accounting database for every single job, and fail those that it does not answer.
    executor._fallback_account_arg = f" -A {settings.account}" if settings.account else ""
    # While Slurm's controller is away, or where it soon forgets jobs, the plugin would ask sacct instead, which calls
    # jobs that run NODE_FAIL when the controller comes back. What squeue has forgotten is seen to by Submissions.
    snakemake_executor_plugin_slurm.get_min_job_age = lambda: sys.maxsize
    Submissions(executor, say)
    Waiting(executor.run_uuid, 60 * settings.start_minutes, say)
    # All jobs of this snakemake have that name: the next one finds them by it, and the accounting too.
    starts.begin(run_directory, executor.run_uuid)
