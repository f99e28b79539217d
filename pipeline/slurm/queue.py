"""Which jobs are in Slurm's queue: one question for all of a start, since the controller answers many people."""

from __future__ import annotations

import re
import subprocess
import time
from typing import NamedTuple

from pipeline.core.errors import InputError

SECONDS = 120
CANCEL_TRIES, CANCEL_SECONDS = 3, 10.0


class Queued(NamedTuple):
    """A job that Slurm knows: its state and the reason for it, in Slurm's words, and what it is."""

    state: str
    reason: str
    comment: str


def jobs(names: list[str], *, ended: bool = False) -> dict[str, Queued] | None:
    """Return the jobs of these names that wait or run, by number; None where Slurm does not answer.

    `ended` adds those that are over, which Slurm has for some minutes (MinJobAge).

    Raises:
        InputError: there is no squeue.
    """
    words = ["squeue", "--noheader", f"--name={','.join(names)}", "--format=%A|%T|%r|%k"]
    try:
        done = subprocess.run(
            [*words, *(["--states=all"] if ended else [])], capture_output=True, text=True, timeout=SECONDS
        )
    except FileNotFoundError:
        raise InputError("there is no squeue, but jobs of this run may live: go to a node that has Slurm") from None
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        return None
    # Of a comment of several lines the first is enough: the others are no rows.
    rows = (match.groups() for match in re.finditer(r"^(\d+)\|([^|\n]*)\|([^|\n]*)\|(.*)", done.stdout, re.MULTILINE))
    return {number: Queued(state, reason, comment) for number, state, reason, comment in rows}


def exit_code(number: str) -> int | None:
    """Return the exit code of a job that has ended; None where Slurm does not know it any more."""
    try:
        words = ["scontrol", "--oneliner", "show", "job", number]
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\bExitCode=(\d+):", done.stdout)
    return int(found[1]) if found else None


def cancel(name: str) -> str:
    """Cancel all jobs of that name; return what went wrong, or nothing."""
    problem = ""
    for attempt in range(CANCEL_TRIES):
        time.sleep(CANCEL_SECONDS if attempt else 0)
        try:
            done = subprocess.run(["scancel", f"--name={name}"], capture_output=True, text=True, timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
            continue
        if done.returncode == 0:
            return ""
        problem = " ".join(done.stderr.split())
    return problem
