"""Puts this executor in the place of the plugin that Snakemake calls `slurm`, for the project of an `ExecutorHost`."""

from __future__ import annotations

import types

import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_executor_plugins.settings import CommonSettings

from pipeline.slurm.executor import snakemake_private
from pipeline.slurm.executor.interface import ExecutorHost
from pipeline.slurm.executor.slurm_executor import SlurmExecutor


def register(host: ExecutorHost) -> None:
    """Make this the executor that Snakemake calls `slurm`; to be called while the Snakefile is read.

    Raises:
        SlurmError: this Snakemake is not one that the executor was written for.
    """
    snakemake_private.check_versions()
    module = types.ModuleType("slurm")
    module.Executor = type("Executor", (SlurmExecutor,), {"host": host})  # type: ignore[attr-defined]
    module.ExecutorSettings = plugin.ExecutorSettings  # type: ignore[attr-defined]
    module.common_settings = CommonSettings(  # type: ignore[attr-defined]
        non_local_exec=True, implies_no_shared_fs=False, job_deploy_sources=False
    )
    snakemake_private.replace_plugin("slurm", module)
