"""How the processes of a training run are started, by the launch command of a platform."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from string import Template

from pipeline.core import platform_files
from pipeline.core.errors import InputError


def words_of(launch: str | None) -> list[str]:
    """Return the words of a launch command, of none none; an InputError says where a quote is open."""
    try:
        return shlex.split(launch or "")
    except ValueError as error:
        raise InputError(f"launch: {launch} is no command line ({error}): close its quotes") from None


def option(words: Sequence[str], *names: str) -> str | None:
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


def _number(value: str | None, what: str) -> int:
    if value is None or not value.isdigit() or int(value) < 1:
        raise InputError(f"launch: {what} is {value!r}: write it as a whole number, such as 2")
    return int(value)


def launcher(launch: str | None) -> str:
    """Return what hands out the ranks: torchrun, srun or none."""
    return _launcher_words(launch)[0]


def _launcher_words(launch: str | None) -> tuple[str, list[str]]:
    """Return the launcher, and the words of the command from it on."""
    words = words_of(launch)
    kind = next((name for name in ("torchrun", "srun") if name in words), "none")
    return kind, [] if kind == "none" else words[words.index(kind) :]


def world_size(launch: str | None, environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes that a launch command starts; an InputError says where it does not tell."""
    kind, words = _launcher_words(launch)
    if kind == "torchrun":
        per_node = option(words, "--nproc-per-node", "--nproc_per_node") or "1"
        return _number(option(words, "--nnodes") or "1", "--nnodes") * _number(per_node, "--nproc-per-node")
    if kind == "srun":
        tasks, tasks_per_node = option(words, "--ntasks", "-n"), option(words, "--ntasks-per-node")
        if tasks is not None:
            return _number(tasks, "--ntasks")
        if tasks_per_node is not None:
            nodes = option(words, "--nodes", "-N") or environment.get("SLURM_NNODES", "1")
            return _number(nodes, "--nodes") * _number(tasks_per_node, "--ntasks-per-node")
        return _number(environment.get("SLURM_NTASKS"), "srun's --ntasks")
    return 1


def processes_per_node(launch: str | None, environment: Mapping[str, str] = os.environ) -> int:
    """Return how many processes run on the first node, as far as the command or Slurm tells; else all."""
    kind, words = _launcher_words(launch)
    told = None
    if kind == "torchrun":
        told = option(words, "--nproc-per-node", "--nproc_per_node") or "1"
    elif kind == "srun":
        told = option(words, "--ntasks-per-node") or environment.get("SLURM_NTASKS_PER_NODE")
        nodes = option(words, "--nodes", "-N") or environment.get("SLURM_NNODES")
        if told is None and nodes is not None:
            return -(-world_size(launch, environment) // _number(nodes, "--nodes"))
    return world_size(launch, environment) if told is None else _number(told, "the number of processes on a node")


def cpus_per_task(launch: str | None) -> int | None:
    """Return the cores per process of a launch by `srun`, or None if the launch does not set them.

    Raises:
        InputError: the value is not a number.
    """
    told = option(words_of(launch), "--cpus-per-task", "-c") if launcher(launch) == "srun" else None
    return None if told is None else _number(told, "srun's --cpus-per-task")


def command(launch: str | None, module: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs a module of this package in every process.

    Where the platform has an image, PIPELINE_PYTHON runs its Python, and its torchrun; srun stays outside.
    """
    words = words_of(launch)
    python = os.environ.get("PIPELINE_PYTHON", sys.executable)
    if "torchrun" in words:
        position = words.index("torchrun")
        words[position : position + 1] = [python, "-m", "torch.distributed.run"]
        return [*words, "-m", module, *arguments]
    if "srun" in words:
        words.insert(words.index("srun") + 1, "--kill-on-bad-exit=1")  # or the others wait for a dead one
    return [*words, python, "-m", module, *arguments]


def set_variables(platform: str | None, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the platform's variables, with $VARIABLES of the job filled in, where they are not set."""
    if platform is not None:
        for variable, value in platform_files.variables(platform_files.content(platform)).items():
            environment.setdefault(variable, Template(value).safe_substitute(environment))
