"""What the executor uses of Snakemake beyond the interface of its plugins: each use is a function of this module."""

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

from pipeline.slurm.executor.interface import SlurmError

__all__ = [
    "KNOWN_VERSIONS",
    "EnvModules",  # the environment modules of a rule, which make the shell command that loads them
    "active_executor",
    "check_versions",
    "exhaust_attempts",
    "give_up",
    "is_asked_to_end",
    "replace_plugin",
    "shell_command",
    "working_directory",
]
KNOWN_VERSIONS = {"snakemake": "9.27", "snakemake-interface-executor-plugins": "9.4"}


def check_versions(installed: Callable[[str], str] = metadata.version) -> None:
    """Check that Snakemake is the one that this executor was written for.

    Raises:
        SlurmError: it is another.
    """
    for name, known in KNOWN_VERSIONS.items():
        if installed(name).split(".")[:2] != known.split("."):
            raise SlurmError(f"{name} is {installed(name)}, but the executor for Slurm was written for {known}")
    expected = {"report_job_error": ["self", "job_info", "msg", "kwargs"], "report_job_success": ["self", "job_info"]}
    for method, parameters in expected.items():
        if [*inspect.signature(getattr(RemoteExecutor, method)).parameters] != parameters:
            raise SlurmError(f"Snakemake's executors have another {method} than is known")


def replace_plugin(name: str, module: ModuleType) -> None:
    """Register an executor in the place of the plugin of that name; the registry only adds plugins."""
    registry = ExecutorPluginRegistry()
    registry.plugins.pop(name, None)
    registry.register_plugin(f"{registry.module_prefix}{name}", module)


def active_executor(workflow: Any) -> Any:
    """Return the object that runs the jobs of a workflow that has been started."""
    return workflow.scheduler._executor


def working_directory(workflow: Any) -> Path:
    """Return the folder that Snakemake was started in."""
    return Path(workflow.workdir_init)


def is_asked_to_end(workflow: Any) -> bool:
    """Return whether Snakemake only waits for the jobs that run, as SIGTERM asks of it."""
    return getattr(workflow.scheduler, "_user_kill", None) == "graceful"


def give_up(workflow: Any, job: Any) -> None:
    """Report a job that was never submitted as failed: without a message, and without another attempt."""
    exhaust_attempts(job)
    workflow.scheduler.error_callback(job)


def exhaust_attempts(job: Any) -> None:
    """Let Snakemake not try a job again."""
    job.attempt = job.restart_times + 1


def shell_command(job: Any, prefix: str, *, modules: bool) -> str:
    """Return the shell command of a job, with its environment modules where they are to be loaded."""
    command = f"{prefix}{job.shellcmd}"
    return str(job.env_modules.shellcmd(command)) if modules and job.env_modules else command
