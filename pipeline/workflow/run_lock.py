"""Lock the results of a run for one snakemake at a time.

Snakemake's own lock is in its working directory and has no owner, so two checkouts would not see each other's locks.
This lock names its owner, who increments a counter in it. A process that cannot see the owner watches the counter, so
that no clock decides.
"""

from __future__ import annotations

import atexit
import os
import platform
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.lock_owner import LockOwner, ProcessState, read_boot_id
from pipeline.workflow.snakemake_internals import LOCKS_FOLDER, find_locks

Warn = Callable[[str], None]

BEAT_SECONDS = 5.0
WATCH_SECONDS = 30.0  # without a heartbeat, until an owner on another host counts as silent
POLL_SECONDS = 0.5


def _read_lock(path: Path) -> tuple[LockOwner, bytes] | None:
    """Return the owner and the content of a lock; None if there is no lock.

    Raises:
        InputError: the file cannot be read, or is not a lock.
    """
    try:
        content = path.read_bytes()
        return LockOwner.model_validate_json(content.splitlines()[0]), content
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(
            f"{path}, the lock of the run, cannot be read ({error.strerror}): contact the owner of the file"
        ) from None
    except (ValidationError, IndexError):
        raise InputError(f"{path} is not a lock: delete it if you know that nobody works on this run") from None


def _check_owner(path: Path, holder: LockOwner, content: bytes, warn: Warn) -> ProcessState:
    """Return whether the owner of a lock is alive; watch its counter if its process cannot be seen."""
    if (verdict := holder.process_state()) is not None:
        return verdict
    warn(f"the run is locked by {holder}: watching for {WATCH_SECONDS:g} s whether it is alive")
    deadline = time.monotonic() + WATCH_SECONDS
    while time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        if (now := _read_lock(path)) is None:
            return "gone"
        if now[1] != content:
            return "lives"
        if (verdict := holder.process_state()) is not None:
            return verdict
    # The host has been restarted since then.
    return "dead" if holder.host == platform.node() and holder.boot != read_boot_id() else "silent"


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}-{platform.node()}-{os.getpid()}")


def _remove_lock(path: Path, content: bytes) -> None:
    """Remove this lock, but not one that another process has put there meanwhile."""
    aside = _temporary_path(path)
    with suppress(FileNotFoundError):
        if path.read_bytes() == content:
            path.rename(aside)
            if aside.read_bytes() != content:
                with suppress(FileExistsError):
                    os.link(aside, path)
            aside.unlink()


class RunLock:
    """The lock of this process: a file whose last line is a counter that increases while the process lives.

    The file is written in place: a process whose file was removed can never overwrite the lock of the next owner.
    """

    def __init__(self, path: Path, holder: LockOwner, warn: Warn) -> None:
        self.path, self.holder, self._warn = path, holder, warn
        self._line = holder.model_dump_json().encode() + b"\n"
        self._stop = threading.Event()
        self.dead: list[LockOwner] = []  # owners of cleared locks, until their jobs are settled

    def try_acquire(self) -> bool:
        """Place the lock and start its heartbeat; return False if another process was faster."""
        if not self.try_create():
            return False
        threading.Thread(target=self._run_heartbeat, daemon=True).start()
        return True

    def try_create(self) -> bool:
        """Place the lock atomically; return False if another process was faster."""
        own = _temporary_path(self.path)
        own.unlink(missing_ok=True)
        self._file = os.open(own, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            self._write_heartbeat(0)
            os.link(own, self.path)
        except FileExistsError:
            # Over NFS the answer to a successful link may be lost, and the request repeated.
            if os.fstat(self._file).st_nlink < 2:
                os.close(self._file)
                return False
        finally:
            own.unlink()
        return True

    def _write_heartbeat(self, count: int) -> None:
        os.pwrite(self._file, self._line + b"%012d\n" % count, 0)
        os.fsync(self._file)

    def is_still_held(self) -> bool:
        """Return whether the lock file is this lock; True if it cannot be read for the moment."""
        try:
            return self.path.read_bytes().startswith(self._line)
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def _run_heartbeat(self) -> None:
        """Increment the counter; if the lock was removed, end this process, so that it submits no more jobs."""
        count = missed = 0
        while not self._stop.wait(BEAT_SECONDS):
            count += 1
            with suppress(OSError):  # a full disk or a server that is down may recover
                self._write_heartbeat(count)
            missed = 0 if self.is_still_held() else missed + 1
            if missed == 2:
                self._warn(f"{self.path} was removed: another snakemake owns the run, this one ends")
                os.kill(os.getpid(), signal.SIGTERM)
                return

    def release(self) -> None:
        """Release the lock; a second call, or one in a child process, does nothing."""
        if os.getpid() != self.holder.process or self._stop.is_set():
            return
        self._stop.set()
        with suppress(OSError):
            if self.is_still_held():
                self.path.unlink()
                for holder in self.dead[-1:]:  # the next invocation settles its jobs
                    RunLock(self.path, holder.model_copy(update={"given_up": True}), self._warn).try_create()


def _clear_snakemake_locks(holder: LockOwner, warn: Warn) -> None:
    for file in find_locks(holder.run, Path(holder.working_directory, LOCKS_FOLDER)):
        with suppress(OSError):  # a folder of another user
            file.unlink()
            warn(f"{file} belongs to a killed snakemake of this run: it is cleared")


def _register_release_at_exit(lock: RunLock) -> None:
    """Release the lock when this process ends, also by SIGTERM or SIGHUP."""
    atexit.register(lock.release)

    def release_lock_and_exit(number: int, frame: FrameType | None) -> None:
        if os.getpid() == lock.holder.process and lock.is_still_held():
            _clear_snakemake_locks(lock.holder, lambda sentence: None)
            lock.release()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup stays in force
            signal.signal(number, release_lock_and_exit)


def acquire_run_lock(run_directory: Path, warn: Warn) -> RunLock:
    """Take the lock of a run until this process ends; the lock of a dead process is cleared.

    Raises:
        InputError: another invocation works on the run or may do so, or the folder cannot be written.
    """
    path = run_directory / layout.RUN_LOCK
    lock = RunLock(path, LockOwner.from_this_process(run_directory), warn)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while not lock.try_acquire():
            if (current := _read_lock(path)) is None:
                continue
            holder, content = current
            verdict = _check_owner(path, holder, content, warn)
            if verdict == "lives":
                raise InputError(
                    f"{run_directory} is being worked on by {holder}: wait until it ends, or stop it there"
                )
            if verdict == "gone":
                continue
            if verdict == "silent":
                raise InputError(
                    f"{run_directory} is locked by {holder}, without a heartbeat for {WATCH_SECONDS:g} s: check on "
                    f"{holder.host} whether it runs; if it does not, run snakemake with --unlock, then again without"
                )
            _remove_lock(path, content)
            lock.dead.append(holder)
    except PermissionError as error:
        raise InputError(
            f"{error.filename} cannot be written by this user: the owner of the run must continue it, or give a group "
            "write access (umask 007, chmod g+w)"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}): free space, or check the file system") from None
    _register_release_at_exit(lock)
    for holder in lock.dead:
        warn(f"the lock of {holder} is cleared: that process is dead")
        _clear_snakemake_locks(holder, warn)
    return lock


def break_stale_lock(run_directory: Path, warn: Warn) -> None:
    """Give up the lock of a dead or silent owner on request of the user; the next invocation takes it.

    Raises:
        InputError: the owner is alive.
    """
    path = run_directory / layout.RUN_LOCK
    if (current := _read_lock(path)) is None:
        return
    holder, content = current
    if _check_owner(path, holder, content, warn) == "lives":
        raise InputError(f"{run_directory} is being worked on by {holder}: it is alive, and keeps its lock")
    _remove_lock(path, content)
    RunLock(path, holder.model_copy(update={"given_up": True}), warn).try_create()
    warn(f"the lock of {holder} is given up: the next invocation takes it")
    _clear_snakemake_locks(holder, warn)
