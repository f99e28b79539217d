"""A lease on the output folder of a job: of two processes of one job, the one that started last owns it.

Slurm restarts a job after it lost contact with a node, where the old process may still run. So each start atomically
creates the folder of the next number below `starts/`. A process that sees a higher number than its own stops before it
writes. Only numbers are compared: clocks of two machines differ, and a suspended process does not know for how long.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.core.errors import Superseded


def identify_process() -> dict[str, Any]:
    """Return host and id of this process and, in a Slurm job, the id and restart count of the job."""
    names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_RESTART_COUNT")
    slurm = {name.lower(): os.environ[name] for name in names if name in os.environ}
    return {"host": platform.node(), "process": os.getpid(), **slurm}


def slurm_restart_order(start: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return Slurm's job id and restart count, which order the starts on one cluster; None without Slurm."""
    job = str(start.get("slurm_job_id") or "")
    return (int(job), int(start.get("slurm_restart_count") or 0)) if job.isdigit() else None


def started_later(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether Slurm started one process after the other; False if unknown."""
    first, second = slurm_restart_order(one), slurm_restart_order(other)
    same = one.get("slurm_cluster_name") == other.get("slurm_cluster_name")
    return bool(same and first and second and first > second)


def format_process(start: Mapping[str, Any]) -> str:
    process = f"process {start.get('process', '?')} on {start.get('host', 'an unknown host')}"
    job = slurm_restart_order(start)
    return f"{process}, job {job[0]} of Slurm, restart {job[1]}" if job else process


def temporary_output_path(path: Path) -> Path:
    """Return the temporary path of an output, unique to this process."""
    start = identify_process()
    job = slurm_restart_order(start)
    who = f"{job[0]}.{job[1]}" if job else start["host"].replace("-", "_")
    return path.with_name(f".partial-{who}.{start['process']}-{path.name}")


class Lease:
    """The right to write in a folder; without a call of `claim` nothing is checked.

    Args:
        folder: the folder to own.
        number: the number of the start that this process belongs to.
    """

    def __init__(self, folder: Path, number: int = 0) -> None:
        self.folder, self.number = folder, number
        self.afterwards: Callable[[], None] = lambda: None
        """Called after the record of the step was written."""

    @property
    def private_start_folder(self) -> Path:
        """A folder of this start only, for small files."""
        return self._starts_folder / str(self.number)

    @property
    def _starts_folder(self) -> Path:
        return self.folder / "starts"

    def claim(self) -> None:
        """Acquire the lease; an owner that restarts its processes acquires it again.

        Raises:
            Superseded: a later start owns the folder.
        """
        self._starts_folder.mkdir(parents=True, exist_ok=True)
        me = identify_process()
        while True:
            last = max(self._list_start_numbers(), default=0)
            if last > self.number if self.number else started_later(self._read_owner(last), me):
                raise self._superseded_error(last)
            if self._create_start(max(last, self.number) + 1, me):
                self.number = max(last, self.number) + 1
                return

    def check(self) -> None:
        """Check that this start still owns the folder; a marker that a purge removed is restored.

        Raises:
            Superseded: a later start owns the folder.
        """
        if not self.number:
            return
        numbers = self._list_start_numbers()
        if (last := max(numbers, default=0)) > self.number:
            raise self._superseded_error(last)
        if self.number not in numbers:
            with suppress(OSError):
                self._starts_folder.mkdir(parents=True, exist_ok=True)
                self._create_start(self.number, identify_process())

    def _list_start_numbers(self) -> list[int]:
        # A listing shows what others wrote sooner than a look-up by name does on network file systems.
        with suppress(FileNotFoundError):
            return [int(name) for name in os.listdir(self._starts_folder) if name.isdigit()]
        return []

    def _create_start(self, number: int, me: dict[str, Any]) -> bool:
        """Create the folder of a number atomically; return False if another start was faster."""
        fresh = self._starts_folder / f".{secrets.token_hex(8)}"
        fresh.mkdir()
        try:
            (fresh / "owner.json").write_text(json.dumps(me) + "\n", encoding="utf-8")
            fresh.rename(self._starts_folder / str(number))
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            return False
        return True

    def _read_owner(self, number: int) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            owner: dict[str, Any] = json.loads(
                (self._starts_folder / str(number) / "owner.json").read_text(encoding="utf-8")
            )
            return owner
        return {}

    def _superseded_error(self, number: int) -> Superseded:
        return Superseded(
            f"a later start of this step owns {self.folder} ({format_process(self._read_owner(number))}): this one "
            f"({format_process(identify_process())}) stops and leaves all to it"
        )
