"""All uses of Snakemake by the executor beyond the plugin interface."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from snakemake.deployment.env_modules import EnvModules
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from pipeline.slurm.executor.host_interface import SlurmError

__all__ = [
    "KNOWN_VERSIONS",
    "EnvModules",  # the environment modules of a rule
    "abandon_job",
    "active_executor",
    "check_versions",
    "exhaust_attempts",
    "is_stopping",
    "replace_plugin",
    "shell_command",
    "working_directory",
]
KNOWN_VERSIONS = {"snakemake": "9.27", "snakemake-interface-executor-plugins": "9.4"}


def check_versions(installed: Callable[[str], str] = metadata.version) -> None:
    """Check that this executor supports the installed Snakemake.

    Raises:
        SlurmError: it has another version or interface.
    """
    for name, known in KNOWN_VERSIONS.items():
        if installed(name).split(".")[:2] != known.split("."):
            raise SlurmError(f"{name} is {installed(name)}, but the executor for Slurm supports {known}")
    expected = {"report_job_error": ["self", "job_info", "msg", "kwargs"], "report_job_success": ["self", "job_info"]}
    for method, parameters in expected.items():
        if [*inspect.signature(getattr(RemoteExecutor, method)).parameters] != parameters:
            raise SlurmError(f"the method {method} of Snakemake's executors has changed")


def replace_plugin(name: str, module: ModuleType) -> None:
    """Register an executor in place of the plugin of that name; the registry can only add plugins."""
    registry = ExecutorPluginRegistry()
    registry.plugins.pop(name, None)
    registry.register_plugin(f"{registry.module_prefix}{name}", module)


def active_executor(workflow: Any) -> Any:
    return workflow.scheduler._executor


def working_directory(workflow: Any) -> Path:
    """Return the folder that Snakemake was started in."""
    return Path(workflow.workdir_init)


def is_stopping(workflow: Any) -> bool:
    """Return whether Snakemake only waits for running jobs, after SIGTERM."""
    return getattr(workflow.scheduler, "_user_kill", None) == "graceful"


def abandon_job(workflow: Any, job: Any) -> None:
    """Report a job that was never submitted as failed, without a message and without a retry."""
    exhaust_attempts(job)
    workflow.scheduler.error_callback(job)


def exhaust_attempts(job: Any) -> None:
    job.attempt = job.restart_times + 1


def shell_command(job: Any, prefix: str, *, modules: bool) -> str:
    """Return the shell command of a job, which loads its environment modules if `modules`."""
    command = f"{prefix}{job.shellcmd}"
    return str(job.env_modules.shellcmd(command)) if modules and job.env_modules else command
