"""Private Snakemake names used by the executor exist in the installed version."""

from __future__ import annotations

import importlib
import inspect
from importlib import metadata

import pytest
import snakemake.api  # noqa: F401  # first: its modules import one another in a circle

from pipeline.slurm.executor.snakemake_private import KNOWN_VERSIONS, check_versions

USED = [
    *(("snakemake.jobs", "Job", name) for name in ("attempt", "restart_times", "shellcmd", "env_modules")),
    *(
        ("snakemake.scheduling.job_scheduler", "JobScheduler", name)
        for name in ("error_callback", "_executor", "_user_kill")
    ),
    *(("snakemake.workflow", "Workflow", name) for name in ("workdir_init", "scheduler")),
    *(
        ("snakemake_interface_executor_plugins.registry", "ExecutorPluginRegistry", name)
        for name in ("plugins", "module_prefix", "register_plugin")
    ),
    ("snakemake.deployment.env_modules", "EnvModules", "shellcmd"),
]


def has(owner: type, name: str) -> bool:
    """Return whether objects of a class have an attribute: its own, or one set in its code."""
    return hasattr(owner, name) or any(f"self.{name} = " in inspect.getsource(one) for one in owner.__mro__[:-1])


@pytest.mark.parametrize(("module", "owner", "name"), USED)
def test_private_snakemake_names_exist(module: str, owner: str, name: str) -> None:
    assert has(getattr(importlib.import_module(module), owner), name), (
        f"snakemake {metadata.version('snakemake')} has no {owner}.{name}, as {KNOWN_VERSIONS['snakemake']} had: see "
        "what took its place, and mend pipeline/slurm/executor/snakemake_private.py"
    )


def test_installed_snakemake_version_is_supported() -> None:
    check_versions()
    assert not has(pytest.MonkeyPatch, "nothing"), "a missing name is detected"
