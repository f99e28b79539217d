"""Whether the process that locked a run lives, and child processes that end with their parent."""

from __future__ import annotations

import ctypes
import getpass
import os
import platform
import signal
import time
from pathlib import Path
from typing import Literal

import psutil
from pydantic import BaseModel, Field

ProcessState = Literal["lives", "dead", "silent", "gone"]

# A process with the same number that began at another time is another one; clocks are set sometimes.
START_TIME_TOLERANCE_SECONDS = 60.0
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


class LockOwner(BaseModel):
    """A Snakemake process that works on a run; `run` is the run's folder relative to its working directory.

    `given_up`: a user has stated that it is dead.
    """

    user: str
    host: str
    boot: str
    process: int = Field(gt=0, lt=2**31)  # what a system can name; 0 and less are groups
    process_began_seconds: float
    since: str
    working_directory: str
    run: str
    given_up: bool = False

    def __str__(self) -> str:
        return f"{self.user} on {self.host}, process {self.process}, since {self.since}, in {self.working_directory}"

    @classmethod
    def from_this_process(cls, run_directory: Path) -> LockOwner:
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # an id without a name, as in some containers
            user = str(os.getuid())
        process = psutil.Process()
        return cls(
            user=user,
            host=platform.node(),
            boot=read_boot_id(),
            process=process.pid,
            process_began_seconds=process.create_time(),
            since=time.strftime("%Y-%m-%d %H:%M:%S %z"),
            working_directory=str(Path.cwd()),
            run=str(run_directory),
        )

    @property
    def is_of_this_user_and_host(self) -> bool:
        """Whether the process belongs to this user and host."""
        me = self.from_this_process(Path(self.run))
        return (self.user, self.host) == (me.user, me.host)

    def process_state(self) -> ProcessState | None:
        """Return whether the process lives; None if that is not known on this host."""
        if self.given_up:
            return "dead"
        if self.host != platform.node() or self.boot != read_boot_id():
            return None
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return "dead"
        except PermissionError:
            pass  # of another user, whose processes some login nodes hide
        try:
            process = psutil.Process(self.process)
            is_same = abs(process.create_time() - self.process_began_seconds) < START_TIME_TOLERANCE_SECONDS
            return "lives" if is_same and process.status() != psutil.STATUS_ZOMBIE else "dead"
        except psutil.Error:
            return None


def read_boot_id() -> str:
    """Return the boot id of this machine; empty if the system has none."""
    return BOOT_ID_FILE.read_text().strip() if BOOT_ID_FILE.exists() else ""


_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Have Linux kill this process when its parent ends, in whatever way (prctl(2), PR_SET_PDEATHSIG)."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
