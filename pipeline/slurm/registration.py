"""Puts this project's executor in the place of the plugin that Snakemake calls `slurm`, and tells it of the run."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry
from snakemake_interface_executor_plugins.settings import CommonSettings

from pipeline.config.slurm_settings import Slurm
from pipeline.core.errors import InputError
from pipeline.slurm import starts
from pipeline.slurm.executor import Executor

WRITTEN_FOR = {"snakemake": "9.27", "snakemake-interface-executor-plugins": "9.4"}


def refuse_other_versions(found: Callable[[str], str] = metadata.version) -> None:
    """Check that Snakemake is the one that this executor was written for: it relies on more than the interface says.

    Raises:
        InputError: it is another.
    """
    for name, known in WRITTEN_FOR.items():
        if found(name).split(".")[:2] != known.split("."):
            raise InputError(
                f"{name} is {found(name)}, but the executor for Slurm was written for {known}: install envs/*.lock"
            )
    expected = {"report_job_error": ["self", "job_info", "msg", "kwargs"], "report_job_success": ["self", "job_info"]}
    for method, parameters in expected.items():
        if [*inspect.signature(getattr(RemoteExecutor, method)).parameters] != parameters:
            raise InputError(f"Snakemake's executors have another {method} than is known: install envs/*.lock")


def register(settings: Slurm, run_directory: Path, prefix: str) -> None:
    """Make this the executor that Snakemake calls `slurm`, for a run; to be called while the Snakefile is read.

    Args:
        settings: the section `slurm` of the configuration.
        run_directory: the results of the run.
        prefix: what every command begins with.

    Raises:
        InputError: this Snakemake is not one that the executor was written for.
    """
    refuse_other_versions()
    own = {"settings": settings, "run_directory": run_directory, "prefix": prefix}
    module = types.ModuleType("slurm")
    module.Executor = type("Executor", (Executor,), own)  # type: ignore[attr-defined]
    module.ExecutorSettings = plugin.ExecutorSettings  # type: ignore[attr-defined]
    module.common_settings = CommonSettings(  # type: ignore[attr-defined]
        non_local_exec=True, implies_no_shared_fs=False, job_deploy_sources=False
    )
    registry = ExecutorPluginRegistry()
    registry.plugins.pop("slurm", None)
    registry.register_plugin(f"{registry.module_prefix}slurm", module)


def begin(workflow: Any, run_directory: Path) -> None:
    """Write down that this process submits jobs, when the run starts; nothing where it runs them itself."""
    executor = workflow.scheduler._executor
    if isinstance(executor, Executor):
        starts.begin(run_directory, executor.name)
