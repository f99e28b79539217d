"""Which jobs of a run are in Slurm's queue, and how many may be."""

from __future__ import annotations

import subprocess
from typing import Any

from pipeline.errors import InputError


def limit(workflow: Any, most: int) -> None:
    """Let Snakemake have at most that many jobs in Slurm's queue at once, or fewer where `--jobs` says so."""
    if workflow.resource_settings.nodes:
        workflow.global_resources["_nodes"] = min(workflow.resource_settings.nodes, most)


def queued(names: list[str]) -> dict[str, str] | None:
    """Return the jobs of these names that wait or run, number to what they are; None when Slurm does not answer.

    Raises:
        InputError: there is no squeue.
    """
    words = ["squeue", "--noheader", f"--name={','.join(names)}", "--format=%A|%T|%k"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        raise InputError("there is no squeue, but jobs of this run may live: go to a node that has Slurm") from None
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        return None
    rows = (line.split("|", 2) for line in done.stdout.splitlines())
    return {number: f"{comment or 'job'}, {state.lower()}" for number, state, comment in rows}


def comments(name: str) -> dict[str, str] | None:
    """Return the comments of the jobs of that name that Slurm still has, by number; None when it does not answer."""
    words = ["squeue", "--noheader", "--states=all", f"--name={name}", "--format=%A|%k"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return dict(line.split("|", 1) for line in done.stdout.splitlines())
