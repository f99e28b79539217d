"""ZIP files with small files of a run: how they are listed, read and written, whatever they hold.

Archives are in the order of the time and the process in their names, `TIME.PROCESS.JOB.zip`.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path

from pipeline.core.errors import InputError
from pipeline.core.full_disk_errors import disk_full_error, is_disk_full, remove_path
from pipeline.core.output_lease import temporary_output_path

ArchiveState = tuple[Path, int, int, int]
"""A path with its time of change in nanoseconds, its size in bytes and its inode, one of which changes with it."""
_HEADER_BYTES = 30  # before the name of a member
# What `zipfile` raises for an archive with other bytes than were written; none of them names another one.
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, KeyError, OSError)


def archive_state(archive: Path) -> ArchiveState:
    """Return what changes with the content of an archive.

    Raises:
        OSError: it is gone, or is no file: reading a pipe never ends.
    """
    file_stat = archive.stat()
    if not stat.S_ISREG(file_stat.st_mode):
        raise OSError(errno.EINVAL, "is no file")
    return archive, file_stat.st_mtime_ns, file_stat.st_size, file_stat.st_ino


def list_members(archive: Path, place: str, most_bytes: int) -> dict[str, int]:
    """Return the sizes of the members of an archive by name.

    Args:
        archive: the file.
        place: its path relative to the run, for the errors.
        most_bytes: more than its members have together: an archive of somebody else may be made to fill the memory.

    Raises:
        InputError: it cannot be read, or Polder did not write it.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            members = opened.infolist()
    except _DAMAGED:
        raise InputError(f"{place} is damaged: it cannot be read as a ZIP file") from None
    sizes = {member.filename: member.file_size for member in members}
    if len(sizes) < len(members):
        raise InputError(f"{place} was changed: two members have one name")
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
        raise InputError(f"{place} was changed: a member has another compression")
    if sum(sizes.values()) > most_bytes:
        raise InputError(f"{place} was changed: its members have {sum(sizes.values()):,} bytes")
    return sizes


def read_member(archive: Path, place: str, name: str) -> bytes:
    """Return the content of a member.

    Raises:
        OSError: the archive is damaged.
    """
    try:
        archive_state(archive)  # it is a file
        with archive.open("rb") as file:
            return _extract(file, _find_members(archive, file)[name])
    except _DAMAGED as error:
        raise OSError(errno.EIO, f"its archive {place} is damaged") from error


_known: dict[ArchiveState, dict[str, zipfile.ZipInfo]] = {}
_MOST_KNOWN = 64


def _find_members(archive: Path, file: BufferedReader) -> dict[str, zipfile.ZipInfo]:
    """Return the members of an open archive by name, read once for each of its states."""
    file_stat = os.fstat(file.fileno())
    state = archive, file_stat.st_mtime_ns, file_stat.st_size, file_stat.st_ino
    if state not in _known:
        if len(_known) == _MOST_KNOWN:
            _known.clear()
        with zipfile.ZipFile(file) as opened:
            _known[state] = {member.filename: member for member in opened.infolist()}
    return _known[state]


def _extract(file: BufferedReader, member: zipfile.ZipInfo) -> bytes:
    """Return a member as `ZipFile.read` does, in a tenth of its time; a ValueError says that it was changed.

    The file is not mapped into memory: where another node removes it, a network file system would end the process.
    """
    begin = member.header_offset + _HEADER_BYTES
    begin += sum(struct.unpack("<HH", os.pread(file.fileno(), 4, begin - 4)))  # the lengths of name and extra field
    data = os.pread(file.fileno(), member.compress_size, begin)
    if member.compress_type == zipfile.ZIP_DEFLATED:
        data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, member.file_size + 1)
    if zlib.crc32(data) != member.CRC:
        raise ValueError
    return data


def archive_sort_key(archive: Path) -> tuple[str, ...]:
    """Return what orders archives: the time and the process in the name."""
    return tuple(archive.name.split(".")[:2])


def next_archive_timestamp(archives: Iterable[Path]) -> str:
    """Return the time for the name of a new archive, later than those of all others."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    latest = max((archive_sort_key(archive)[0] for archive in archives), default="")
    return now if now > latest else f"{latest}1"  # the clock of another node is ahead


def write_archive(path: Path, files: Iterable[tuple[str, bytes]]) -> bool:
    """Write a ZIP file of names and contents atomically; return whether there were any, else none is written.

    It waits until the disk has the file, since what it replaces is deleted then. The same files give the same bytes.

    Raises:
        DiskFull: the disk is full; no partial archive is left.
    """
    partial = temporary_output_path(path)
    is_empty = True
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files:
                is_empty = False
                member = zipfile.ZipInfo(name)  # of the first time of ZIP files
                # What is compressed by itself stays as it is.
                member.compress_type = zipfile.ZIP_STORED if name.endswith(".parquet") else zipfile.ZIP_DEFLATED
                member.external_attr = 0o644 << 16
                archive.writestr(member, content)
        if not is_empty:
            _flush(partial)
            os.replace(partial, path)
            _flush(path.parent)
    except OSError as error:
        if is_disk_full(error):
            raise disk_full_error(error, [path.parent]) from error
        raise
    finally:
        remove_path(partial)
    return not is_empty


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_archived(states: Mapping[Path, tuple[int, int]]) -> None:
    """Remove files that are in an archive now, unless their time of change in nanoseconds or size is another."""
    for path, state in states.items():
        with suppress(FileNotFoundError):
            file_stat = path.stat()
            if (file_stat.st_mtime_ns, file_stat.st_size) == state:
                path.unlink()
