"""Full disks and quotas: detection, error messages that name the folder, and output that a full disk does not stop."""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from pipeline.core.errors import DiskFull

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PROBE_BYTES = 2**16


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes says that a disk or quota is full."""
    if error is None:
        return False
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        return True
    # Rust's libraries and Arrow say the number in brackets, shutil.copytree lists the errors of its files.
    text = str(error).lower()
    if any(
        f"{name} {number}{end}" in text
        for number in DISK_FULL_ERRNOS
        for name, end in (("(os error", ")"), ("[errno", "]"))
    ):
        return True
    return is_disk_full(error.__cause__ or (None if error.__suppress_context__ else error.__context__))


def find_full_folder(folders: Iterable[Path]) -> Path | None:
    """Return the first of these folders that is on a full disk; None if none is."""
    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=folder) as stream:
                stream.write(bytes(PROBE_BYTES))
                stream.flush()
                os.fsync(stream.fileno())  # some file systems say so only then
        except OSError as error:
            if is_disk_full(error):
                return folder
    return None


def full_folder_error(folder: Path | str) -> DiskFull:
    return DiskFull(
        f"{folder} is full, or its quota is used up: free space there and start again; no partial file is kept, and "
        "finished jobs are not repeated"
    )


def disk_full_error(error: BaseException, folders: Iterable[Path] = ()) -> DiskFull:
    """Return the error that names the full folder.

    Call it before partial files are removed, which frees space.
    """
    if isinstance(error, DiskFull):
        return error
    places = [*folders]
    named = getattr(error, "filename", None)
    if isinstance(named, str):
        places.append(Path(named).parent)
    full_folder = find_full_folder([*places, Path(tempfile.gettempdir())])
    return full_folder_error(full_folder or (places[0] if places else "a disk that this step writes to"))


class _LossyStream(io.FileIO):
    """An open file that drops what does not fit on a full disk."""

    lost = False

    def write(self, content: bytes) -> int:  # type: ignore[override]
        """Write as much as fits; report everything as written."""
        try:
            return super().write(content) or 0
        except OSError as error:
            if not is_disk_full(error):
                raise
            self.lost = True
            return len(content)


def ignore_full_log_disk() -> None:
    """Drop output that does not fit on a full disk, so that a full log disk ends no training."""
    for name in ("stdout", "stderr"):
        stream: TextIO = getattr(sys, name)
        stream.flush()
        raw: Any = _LossyStream(stream.fileno(), "w", closefd=False)
        given = (io.BufferedWriter(raw), stream.encoding, stream.errors)
        setattr(sys, name, io.TextIOWrapper(*given, line_buffering=bool(stream.line_buffering)))


def print_error(sentence: str) -> None:
    """Print an error to standard error, or to standard output if the disk of standard error is full."""
    print(f"error: {sentence}", file=sys.stderr, flush=True)
    raw = getattr(getattr(sys.stderr, "buffer", None), "raw", None)
    if isinstance(raw, _LossyStream) and raw.lost:
        print(f"error: {sentence}", flush=True)


def remove_path(path: Path) -> None:
    """Remove a file or folder if it exists; files that another process adds meanwhile stay."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def truncate_and_remove(path: Path) -> None:
    """Truncate and remove a partial output: a file that an exception holds open would keep its space otherwise."""
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file():
            with suppress(OSError):
                os.truncate(file, 0)
    remove_path(path)
