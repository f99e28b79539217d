"""One run, one start: the lock that lies in a run's results while a snakemake works on them.

Snakemake's own lock lies in its working directory and does not say whose it is: two checkouts on one folder of results
would know nothing of each other. This one names its holder, who counts on in it: whoever cannot see the holder's
process watches whether the count goes on, so that no clock decides.
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
from pipeline.core.lock_owner import Holder, Verdict, boot
from pipeline.workflow.snakemake_internals import LOCKS, locks_of

Say = Callable[[str], None]

BEAT_SECONDS = 5.0
WATCH_SECONDS = 30.0  # without a beat, before a holder that cannot be seen is called silent
LOOK_SECONDS = 0.5


def _read(path: Path) -> tuple[Holder, bytes] | None:
    """Return who holds a lock and all that stands in it; None where there is none.

    Raises:
        InputError: it cannot be read, or is no lock.
    """
    try:
        content = path.read_bytes()
        return Holder.model_validate_json(content.splitlines()[0]), content
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(
            f"{path} says who works on this run and cannot be read ({error.strerror}): ask its owner"
        ) from None
    except (ValidationError, IndexError):
        raise InputError(f"{path} is no lock: delete it where you know that nobody works on this run") from None


def _judge(path: Path, holder: Holder, content: bytes, say: Say) -> Verdict:
    """Return whether a holder lives, watching its count where its process cannot be seen."""
    if (verdict := holder.seen()) is not None:
        return verdict
    say(f"the run is locked by {holder}: looking for {WATCH_SECONDS:g} s whether it lives")
    deadline = time.monotonic() + WATCH_SECONDS
    while time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        if (now := _read(path)) is None:
            return "gone"
        if now[1] != content:
            return "lives"
        if (verdict := holder.seen()) is not None:
            return verdict
    # This host was started anew since then, which no process survives.
    return "dead" if holder.host == platform.node() and holder.boot != boot() else "silent"


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}-{platform.node()}-{os.getpid()}")


def _remove(path: Path, content: bytes) -> None:
    """Remove the lock that was judged, and no other one that somebody has put there meanwhile."""
    aside = _beside(path)
    with suppress(FileNotFoundError):
        if path.read_bytes() == content:
            path.rename(aside)
            if aside.read_bytes() != content:
                with suppress(FileExistsError):
                    os.link(aside, path)
            aside.unlink()


class Lock:
    """The lock that this process holds: a file of its own, whose last line counts on while the process lives.

    It is written in place. One whose file was taken away can so never overwrite the lock of the next holder.
    """

    def __init__(self, path: Path, holder: Holder, say: Say) -> None:
        self.path, self.holder, self._say = path, holder, say
        self._line = holder.model_dump_json().encode() + b"\n"
        self._stop = threading.Event()
        self.dead: list[Holder] = []  # whose locks were cleared for it, until what they have left is settled

    def take(self) -> bool:
        """Put the lock in its place and count on; return whether nobody else was faster."""
        if not self.place():
            return False
        threading.Thread(target=self._beats, daemon=True).start()
        return True

    def place(self) -> bool:
        """Put the lock in its place, whole or not at all; return whether nobody else was faster."""
        own = _beside(self.path)
        own.unlink(missing_ok=True)
        self._file = os.open(own, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            self._beat(0)
            os.link(own, self.path)
        except FileExistsError:
            # Over NFS the answer to a link that was made may be lost, and the question repeated.
            if os.fstat(self._file).st_nlink < 2:
                os.close(self._file)
                return False
        finally:
            own.unlink()
        return True

    def _beat(self, count: int) -> None:
        os.pwrite(self._file, self._line + b"%012d\n" % count, 0)
        os.fsync(self._file)

    def is_there(self) -> bool:
        """Return whether the lock in the place is this one; one that cannot be read for the moment is."""
        try:
            return self.path.read_bytes().startswith(self._line)
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def _beats(self) -> None:
        """Count on; where the lock was taken away, ask this process to end, and so to submit no more."""
        count = missed = 0
        while not self._stop.wait(BEAT_SECONDS):
            count += 1
            with suppress(OSError):  # a full disk or a server that is away is no end
                self._beat(count)
            missed = 0 if self.is_there() else missed + 1
            if missed == 2:
                self._say(f"{self.path} was taken away: another start owns the run, this one ends")
                os.kill(os.getpid(), signal.SIGTERM)
                return

    def release(self) -> None:
        """Give the run free; a second call, or one in a child process, does nothing."""
        if os.getpid() != self.holder.process or self._stop.is_set():
            return
        self._stop.set()
        with suppress(OSError):
            if self.is_there():
                self.path.unlink()
                for holder in self.dead[-1:]:  # the next start has to settle it
                    Lock(self.path, holder.model_copy(update={"given_up": True}), self._say).place()


def _clear_snakemake(holder: Holder, say: Say) -> None:
    for file in locks_of(holder.run, Path(holder.working_directory, LOCKS)):
        with suppress(OSError):  # a colleague's folder
            file.unlink()
            say(f"{file} is of a snakemake of this run that was killed: it is cleared")


def _end_with(lock: Lock) -> None:
    """Release the lock when this process ends, by itself or asked to."""
    atexit.register(lock.release)

    def asked(number: int, frame: FrameType | None) -> None:
        if os.getpid() == lock.holder.process and lock.is_there():
            _clear_snakemake(lock.holder, lambda sentence: None)
            lock.release()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # of nohup nothing is changed
            signal.signal(number, asked)


def take(run_directory: Path, say: Say) -> Lock:
    """Take the lock of a run for this process until it ends; the lock of a dead process is cleared.

    Raises:
        InputError: another start works on the run or may do so, or the folder cannot be written.
    """
    path = run_directory / layout.RUN_LOCK
    lock = Lock(path, Holder.this_process(run_directory), say)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while not lock.take():
            if (found := _read(path)) is None:
                continue
            holder, content = found
            verdict = _judge(path, holder, content, say)
            if verdict == "lives":
                raise InputError(
                    f"{run_directory} is being worked on by {holder}: wait until that start ends, or stop it there"
                )
            if verdict == "gone":
                continue
            if verdict == "silent":
                raise InputError(
                    f"{run_directory} is locked by {holder}, which has not been heard of for {WATCH_SECONDS:g} s: look "
                    f"on {holder.host} whether it runs; where you know that it does not, start once with --unlock "
                    "added, then again without"
                )
            _remove(path, content)
            lock.dead.append(holder)
    except PermissionError as error:
        raise InputError(
            f"{error.filename} cannot be written by this user: a run is continued by its owner, or by a group that the "
            "owner lets write (umask 007, chmod g+w)"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}): make room, or see to the file system") from None
    _end_with(lock)
    for holder in lock.dead:
        say(f"the lock of {holder} is cleared: that process is dead")
        _clear_snakemake(holder, say)
    return lock


def unlock(run_directory: Path, say: Say) -> None:
    """Give up the lock of a start that is dead or silent, because a person says that it is dead: the next takes it.

    Raises:
        InputError: it lives.
    """
    path = run_directory / layout.RUN_LOCK
    if (found := _read(path)) is None:
        return
    holder, content = found
    if _judge(path, holder, content, say) == "lives":
        raise InputError(f"{run_directory} is being worked on by {holder}: it lives, and keeps its lock")
    _remove(path, content)
    Lock(path, holder.model_copy(update={"given_up": True}), say).place()
    say(f"the lock of {holder} is given up: the next start takes it")
    _clear_snakemake(holder, say)
