"""Register this executor in place of Snakemake's plugin `slurm`, for the project of an `ExecutorHost`."""

from __future__ import annotations

import types

import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_executor_plugins.settings import CommonSettings

from pipeline.slurm.executor import snakemake_private
from pipeline.slurm.executor.host_interface import ExecutorHost
from pipeline.slurm.executor.slurm_executor import SlurmExecutor


def register(host: ExecutorHost) -> None:
    """Register this executor as `slurm`; call it while Snakemake reads the Snakefile.

    Raises:
        SlurmError: the executor does not support this version of Snakemake.
    """
    snakemake_private.check_versions()
    module = types.ModuleType("slurm")
    module.Executor = type("Executor", (SlurmExecutor,), {"host": host})  # type: ignore[attr-defined]
    module.ExecutorSettings = plugin.ExecutorSettings  # type: ignore[attr-defined]
    module.common_settings = CommonSettings(  # type: ignore[attr-defined]
        non_local_exec=True, implies_no_shared_fs=False, job_deploy_sources=False
    )
    snakemake_private.replace_plugin("slurm", module)
