"""The Snakemake command that `polder run` prints and becomes."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from pipeline.core.errors import InputError

PACKAGE = Path(__file__).parents[1]
PROFILES = "workflow/profiles"


def find_project_folder(start: Path) -> Path:
    """Return the project: the folder or a parent of it with Polder's Snakefile, else the checkout of this package.

    Raises:
        InputError: there is none, because only the package was installed.
    """
    for folder in (start, *start.parents, PACKAGE.parent):
        if (folder / "Snakefile").is_file() and (folder / "rules/steps.smk").is_file():
            return folder
    raise InputError(
        f"there is no Snakefile of Polder in {start} or above it, and polder is not installed from a checkout: "
        "change to a checkout, or install from one with make install"
    )


def build_snakemake_command(
    configuration: Path, words: Sequence[str], profile: str, *, dry_run: bool, data: str | None
) -> list[str]:
    """Return the command that runs a configuration, for the folder of the project.

    Args:
        words: targets; from the first word on that begins with a dash, options of Snakemake.
        data: the folder that {data} stands for in the configuration.

    Raises:
        InputError: the configuration is missing or no YAML, there is no such profile or target, or no project.
    """
    project = find_project_folder(Path.cwd())
    if not configuration.is_file():
        raise InputError(f"there is no configuration {configuration}: name one of config/*.yaml")
    from pipeline.config.configuration_errors import load_configuration_yaml

    # Snakemake would say of one that is no YAML or no UTF-8 neither file nor line.
    load_configuration_yaml(configuration)
    named = project / PROFILES / profile
    folder = Path(profile) if "/" in profile else named
    if not (folder / "config.yaml").is_file():
        known = ", ".join(sorted(path.name for path in (project / PROFILES).iterdir()))
        raise InputError(f"there is no profile {profile}: choose one of {known}, or a folder with a config.yaml")
    first = next((number for number, word in enumerate(words) if word.startswith("-")), len(words))
    targets, options = words[:first], words[first:]
    _check_targets([word for word in targets if "/" not in word and not (project / word).exists()])
    command = ["snakemake", *targets, *["-n"] * dry_run]
    command += ["--profile", str(folder.absolute()) if "/" in profile else profile]
    command += ["--configfile", relative_to_project(configuration, project)]
    command += ["--config", f"data={relative_to_project(Path(data), project)}"] if data else []
    return [*command, *options]


def _check_targets(names: Sequence[str]) -> None:
    """Check targets that are no files: Snakemake would show a typo as an exception in its rules.

    Raises:
        InputError: one of them is no stage and no rule.
    """
    if not names:
        return
    from pipeline.core.errors import suggest_name
    from pipeline.workflow.steps import STAGES, STEPS

    stages, rules = ["all", *STAGES], {step.rule_name for step in STEPS.values()}
    for name in names:
        if name not in {*stages, *rules, "sources_complete"}:
            near = suggest_name(name, rules) if "_" in name else suggest_name(name, stages)
            raise InputError(f"there is no target {name!r}: {near}")


def relative_to_project(path: Path, project: Path) -> str:
    """Return a path for a process that runs in the project: relative where it is in the project."""
    absolute = path.absolute()
    return str(absolute.relative_to(project) if absolute.is_relative_to(project) else absolute)


def find_cache_variable(project: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Return what Snakemake's cache needs where the home folder cannot be written, as `NAME=VALUE`; else nothing."""
    home = environment.get("HOME") or os.path.expanduser("~")
    cache = Path(environment.get("XDG_CACHE_HOME") or f"{home}/.cache", "snakemake")
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    is_writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    return "" if is_writable else f"XDG_CACHE_HOME={project / '.snakemake/cache'}"


def replace_process(command: Sequence[str]) -> NoReturn:
    """Print a command, and replace this process by it, in the folder of the project."""
    project = find_project_folder(Path.cwd())
    if project != Path.cwd():
        print(f"cd {shlex.quote(str(project))}")
        os.chdir(project)
    variable = find_cache_variable(project)
    if variable:
        name, _, os.environ[name] = variable.partition("=")
    print(" ".join([*([shlex.quote(variable)] if variable else []), shlex.join(command)]), flush=True)
    os.execv(sys.executable, [sys.executable, "-m", *command])
