"""Every snakemake that submitted jobs of a run, one small file each: whose jobs they are, and whether it still lives.

The files lie beside the accounting, which asks Slurm for the jobs of these names. The plugin gives all jobs of one
snakemake the same name, which no other run, folder or user has.
"""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import psutil
from pydantic import BaseModel, ValidationError

STARTS = "provenance/accounting/starts"
# A process with this number that began at another time is another one; clocks are set sometimes.
SAME_SECONDS = 60.0

current: Start | None = None  # of this process


class Lock(BaseModel):
    """A lock file of Snakemake; another one of the same path has another inode or time."""

    path: str
    inode: int
    changed_nanoseconds: int

    @classmethod
    def of(cls, path: str) -> Lock:
        """Return the lock file as it is now."""
        found = os.stat(path)
        return cls(path=path, inode=found.st_ino, changed_nanoseconds=found.st_mtime_ns)

    def is_there(self) -> bool:
        """Return whether the file is still there and is the same."""
        try:
            return Lock.of(self.path) == self
        except FileNotFoundError:
            return False


class Start(BaseModel):
    """One snakemake: the name of its jobs in Slurm, its process and its lock; `ended` when it said so itself."""

    name: str
    host: str
    process: int
    process_began_seconds: float
    started: str
    ended: str | None = None
    locks: list[Lock] = []

    @property
    def is_here(self) -> bool:
        """Whether it ran on this host, so that its end can be seen."""
        return self.host == platform.node()

    @property
    def is_alive(self) -> bool:
        """Whether its process runs on this host."""
        try:
            began_seconds = psutil.Process(self.process).create_time()
        except psutil.Error:
            return False
        return self.is_here and abs(began_seconds - self.process_began_seconds) < SAME_SECONDS

    def write(self, run_directory: Path) -> None:
        """Write the file of this start."""
        path = run_directory / STARTS / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".partial-{path.name}")
        partial.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)

    def end(self, run_directory: Path) -> None:
        """Write down that it submits no more and that none of its jobs lives."""
        self.model_copy(update={"ended": now()}).write(run_directory)


def now() -> str:
    """Return the time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def begin(run_directory: Path, name: str, locks: list[str]) -> None:
    """Write down that this process submits jobs of that name from now on."""
    global current
    process = psutil.Process()
    current = Start(
        name=name,
        host=platform.node(),
        process=process.pid,
        process_began_seconds=process.create_time(),
        started=now(),
        locks=[Lock.of(path) for path in locks],
    )
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
