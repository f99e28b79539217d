"""Parse the launch command of a platform, and build the command line of a training's processes."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from string import Template

from pipeline.core import platform_files
from pipeline.core.errors import InputError


def split_command(launch: str | None) -> list[str]:
    """Split a launch command into words.

    Raises:
        InputError: a quote is open.
    """
    try:
        return shlex.split(launch or "")
    except ValueError as error:
        raise InputError(f"launch: {launch} is not a command line ({error}): close its quotes") from None


def find_option(words: Sequence[str], *names: str) -> str | None:
    """Return the value of the first of these options: `--name value`, `--name=value` or `-nVALUE`."""
    for position, word in enumerate(words):
        for name in names:
            if word == name and position + 1 < len(words):
                return words[position + 1]
            if name.startswith("--") and word.startswith(f"{name}="):
                return word.split("=", 1)[1]
            if not name.startswith("--") and word.startswith(name) and word[len(name) :].isdigit():
                return word[len(name) :]
    return None


def _parse_count(value: str | None, what: str) -> int:
    if value is None or not value.isdigit() or int(value) < 1:
        raise InputError(f"launch: {what} is {value!r}: write it as a whole number, such as 2")
    return int(value)


def launcher_name(launch: str | None) -> str:
    """Return the launcher that assigns the ranks: torchrun, srun or none."""
    return _launcher_words(launch)[0]


def _launcher_words(launch: str | None) -> tuple[str, list[str]]:
    words = split_command(launch)
    kind = next((name for name in ("torchrun", "srun") if name in words), "none")
    return kind, [] if kind == "none" else words[words.index(kind) :]


def count_processes(launch: str | None, environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes that a launch command starts.

    Raises:
        InputError: neither the command nor Slurm gives the number.
    """
    kind, words = _launcher_words(launch)
    if kind == "torchrun":
        per_node = find_option(words, "--nproc-per-node", "--nproc_per_node") or "1"
        return _parse_count(find_option(words, "--nnodes") or "1", "--nnodes") * _parse_count(
            per_node, "--nproc-per-node"
        )
    if kind == "srun":
        tasks, tasks_per_node = find_option(words, "--ntasks", "-n"), find_option(words, "--ntasks-per-node")
        if tasks is not None:
            return _parse_count(tasks, "--ntasks")
        if tasks_per_node is not None:
            nodes = find_option(words, "--nodes", "-N") or environment.get("SLURM_NNODES", "1")
            return _parse_count(nodes, "--nodes") * _parse_count(tasks_per_node, "--ntasks-per-node")
        return _parse_count(environment.get("SLURM_NTASKS"), "srun's --ntasks")
    return 1


def count_processes_per_node(launch: str | None, environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes on the first node, by the command or Slurm; by default all."""
    kind, words = _launcher_words(launch)
    stated = None
    if kind == "torchrun":
        stated = find_option(words, "--nproc-per-node", "--nproc_per_node") or "1"
    elif kind == "srun":
        stated = find_option(words, "--ntasks-per-node") or environment.get("SLURM_NTASKS_PER_NODE")
        nodes = find_option(words, "--nodes", "-N") or environment.get("SLURM_NNODES")
        if stated is None and nodes is not None:
            return -(-count_processes(launch, environment) // _parse_count(nodes, "--nodes"))
    return (
        count_processes(launch, environment)
        if stated is None
        else _parse_count(stated, "the number of processes on a node")
    )


def parse_cpus_per_task(launch: str | None) -> int | None:
    """Return the option of `srun` for the cores of each process, if it is set.

    Raises:
        InputError: the option is not a number.
    """
    stated = find_option(split_command(launch), "--cpus-per-task", "-c") if launcher_name(launch) == "srun" else None
    return None if stated is None else _parse_count(stated, "srun's --cpus-per-task")


def build_command(launch: str | None, module: str, arguments: Sequence[str]) -> list[str]:
    """Build the command line that runs a module of this package in every process.

    On a platform with an image, PIPELINE_PYTHON runs the image's Python and torchrun; srun stays outside.
    """
    words = split_command(launch)
    python = os.environ.get("PIPELINE_PYTHON", sys.executable)
    if "torchrun" in words:
        position = words.index("torchrun")
        words[position : position + 1] = [python, "-m", "torch.distributed.run"]
        return [*words, "-m", module, *arguments]
    if "srun" in words:
        words.insert(words.index("srun") + 1, "--kill-on-bad-exit=1")  # otherwise the others wait for a dead process
    return [*words, python, "-m", module, *arguments]


def set_platform_variables(platform: str | None, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the platform's environment variables that are unset, substituting $VARIABLES of the job."""
    if platform is not None:
        for variable, value in platform_files.platform_variables(platform_files.load_platform(platform)).items():
            environment.setdefault(variable, Template(value).safe_substitute(environment))
