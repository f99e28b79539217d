"""Hands an allocation to Slurm by `sbatch`, and understands what it answers: taken, full, silent or refused."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

SECONDS = 300
# slurm_errno.c: what sbatch says where it does not know whether its request has arrived, or that it has not.
UNANSWERED = re.compile(
    r"unable to contact|timed out|zero bytes|communication|connection|not connected|unexpected m|authentica", re.I
)
# Limits of a QOS, an association or the controller on how many jobs there may be: there is room later.
FULL = re.compile(r"MaxSubmit|GrpSubmit|MaxJobs|GrpJobs|job submit limit|temporarily un|try again|too many jobs", re.I)
# The reasons that sbatch adds where a job as such is larger than it may be: there is never room for it.
NEVER = re.compile(r"PerJob|MaxWall|TimeLimit|NodeLimit|MaxNode|MaxCpu|MaxMem", re.I)

SubmissionOutcome = Literal["taken", "full", "silent", "refused"]


@dataclass(frozen=True)
class SubmissionAnswer:
    """What came of a submission: the job's number where it was taken, else Slurm's own words."""

    outcome: SubmissionOutcome
    number: str = ""
    said: str = ""


def parse_answer(code: int, printed: str, said: str) -> SubmissionAnswer:
    """Return what an sbatch means by its exit code, its number and its messages."""
    # `4711` or `4711;CLUSTER`; a site's own words may stand before and after it.
    numbers = re.findall(r"^(\d+)(?:;\S+)?[ \t\r]*$", printed, re.MULTILINE)
    words = " ".join(said.split()).replace("sbatch: error: ", "")
    if code == 0 and numbers:
        return SubmissionAnswer("taken", number=numbers[-1])
    if UNANSWERED.search(said):
        return SubmissionAnswer("silent", said=words)
    if FULL.search(said) and not NEVER.search(said):
        return SubmissionAnswer("full", said=words)
    return SubmissionAnswer("refused", said=words or f"sbatch ends with {code}")


def sbatch_options(resources: Mapping[str, Any]) -> list[str]:
    """Return the options of sbatch that a job's resources ask for, by the names that Snakemake's users know."""
    given = {
        "--partition": resources.get("slurm_partition"),
        "--account": resources.get("slurm_account"),
        "--time": resources.get("runtime"),
        "--mem": resources.get("mem_mb"),
        "--nodes": resources.get("nodes"),
        "--ntasks": resources.get("tasks") or 1,
        "--cpus-per-task": resources.get("cpus_per_task"),
        "--gres": resources.get("gres"),
        "--constraint": resources.get("constraint"),
        "--qos": resources.get("qos"),
    }
    return [f"{name}={value}" for name, value in given.items() if value] + shlex.split(
        resources.get("slurm_extra") or ""
    )


def submit_batch(words: Sequence[str], script: str, workdir: Path) -> SubmissionAnswer:
    """Submit a batch script with these options of sbatch and return what came of it."""
    command = ["sbatch", "--parsable", "--export=ALL", f"--chdir={workdir}", *words]
    try:
        done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return SubmissionAnswer("silent", said=f"sbatch has not answered for {SECONDS} seconds")
    except OSError as error:
        return SubmissionAnswer("refused", said=f"sbatch cannot be started ({error.strerror})")
    return parse_answer(done.returncode, done.stdout, done.stderr)
