"""Every snakemake that submitted jobs of a run, one small file each: whose jobs they are, and on which cluster.

The files lie beside the accounting, which asks Slurm for the jobs of these names. All jobs of one snakemake have the
same name, which no other run, folder or user has. One that has no end while nobody holds the run's lock was killed.
"""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ValidationError

from pipeline.core import atomic_files

STARTS = "provenance/accounting/starts"

current: Start | None = None  # of this process


class Start(BaseModel):
    """One snakemake: the name of its jobs in Slurm; `ended` when it said so itself, or none of its jobs lived any more.

    `cluster` is None where Slurm did not say, and of starts before it was asked.
    """

    name: str
    host: str
    process: int
    started: str
    ended: str | None = None
    cluster: str | None = None

    def path(self, run_directory: Path) -> Path:
        """Return the file of this start."""
        return run_directory / STARTS / f"{self.name}.json"

    def write(self, run_directory: Path) -> None:
        """Write the file of this start."""
        atomic_files.write(self.path(run_directory), f"{self.model_dump_json(indent=1)}\n".encode())

    def end(self, run_directory: Path) -> None:
        """Write down that it submits no more and that none of its jobs lives."""
        self.model_copy(update={"ended": now()}).write(run_directory)


def now() -> str:
    """Return the time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def cluster() -> str | None:
    """Return the name of the Slurm cluster that the commands here speak to; None where there is none, or it is away."""
    try:
        done = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    rows = (line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    return next((value.strip() for key, value in rows if key.strip() == "ClusterName"), None)


def begin(run_directory: Path, name: str) -> None:
    """Write down that this process submits jobs of that name from now on."""
    global current
    current = Start(name=name, host=platform.node(), process=os.getpid(), started=now(), cluster=cluster())
    current.write(run_directory)


def starts(run_directory: Path) -> list[Start]:
    """Return all starts of a run, the first one first; a file that is damaged is passed over."""
    found = []
    for path in (run_directory / STARTS).glob("[!.]*.json"):
        try:
            found.append(Start.model_validate_json(path.read_text(encoding="utf-8")))
        except (OSError, ValidationError):
            continue
    return sorted(found, key=lambda start: (start.started, start.name))
