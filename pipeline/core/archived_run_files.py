"""The small files of a run, each by itself or in the archive of a batch.

The units of a batch have a record, an attempt and readings each. When the batch has finished, they move into one ZIP
file: file systems of clusters limit the number of files. A member has the name and the bytes that it had as a file
below the run, so unpacking an archive in the folder of the run restores them. An archive is never written again, but
where a record in it has gone. A file by itself counts before a member, and a later archive before an earlier one.
"""

from __future__ import annotations

import errno
import glob
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from pipeline.core.errors import InputError
from pipeline.core.zip_archives import (
    archive_sort_key,
    archive_state,
    list_members,
    next_archive_timestamp,
    read_member,
    remove_archived,
    write_archive,
)
from pipeline.layout import ATTEMPTS, BATCH_ARCHIVE, BATCH_ARCHIVES, READINGS, RECORDS, PathTemplate

MEMBER_KINDS = {(RECORDS, ".json"), (ATTEMPTS, ".json"), (READINGS, ".jsonl")}
"""The folder and the suffix of what an archive may have."""
MOST_MEMBER_BYTES = 1 << 30
"""More than the members of any archive have together: one of somebody else may be made to fill the memory."""


@cache
def _list_members(archive: Path, *state: int) -> dict[str, int]:
    """Return the sizes of the members of an archive by name.

    Raises:
        InputError: it cannot be read, or a member is none of a batch.
    """
    place = f"{BATCH_ARCHIVES}/{archive.name}"
    sizes = list_members(archive, place, MOST_MEMBER_BYTES)
    for name in sizes:
        folder, _, file = name.rpartition("/")
        if file.startswith(".") or (folder, os.path.splitext(file)[1]) not in MEMBER_KINDS:
            raise InputError(f"{place} was changed: its member {name!r} is no file of a batch")
    return sizes


@dataclass(frozen=True)
class _SmallFile(ABC):
    """The methods of a path that readers of small files use, for a file whose `path` is relative to the run."""

    path: str

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def stem(self) -> str:
        """The file name without its suffix."""
        return os.path.splitext(self.name)[0]

    @abstractmethod
    def read_bytes(self) -> bytes:
        """Return the content."""

    def open(self, mode: str = "rb") -> io.BufferedReader | io.BytesIO:
        assert mode == "rb", mode
        return io.BytesIO(self.read_bytes())


@dataclass(frozen=True)
class ArchivedFile(_SmallFile):
    archive: Path

    @property
    def archive_path(self) -> str:
        """The path of its archive, relative to the run."""
        return f"{BATCH_ARCHIVES}/{self.archive.name}"

    @property
    def size_bytes(self) -> int:
        return _list_members(*archive_state(self.archive))[self.path]

    def is_file(self) -> bool:
        """Return that the file exists, as it was listed."""
        return True

    def read_bytes(self) -> bytes:
        """Return the content.

        Raises:
            OSError: the archive is damaged.
        """
        return read_member(self.archive, self.archive_path, self.path)

    def __str__(self) -> str:
        return f"{self.archive}/{self.path}"


@dataclass(frozen=True)
class SingleFile(_SmallFile):
    """A file by itself, or the member of an archive into which it has moved since it was listed.

    A job archives while others read, and network file systems show a folder as it was a minute ago.
    """

    run_directory: Path

    @property
    def archive_path(self) -> str:
        """The path of the archive into which it has moved, relative to the run; empty where it has not."""
        moved = self._find_moved()
        return moved.archive_path if moved else ""

    @property
    def size_bytes(self) -> int:
        moved = self._find_moved()
        return moved.size_bytes if moved else self._file.stat().st_size

    @property
    def _file(self) -> Path:
        return self.run_directory / self.path

    def _find_moved(self) -> ArchivedFile | None:
        return None if os.path.lexists(self._file) else FileStore(self.run_directory).archived.get(self.path)

    def is_file(self) -> bool:
        return self._file.is_file() or self._find_moved() is not None

    def read_bytes(self) -> bytes:
        """Return the content.

        Raises:
            OSError: it is gone, or cannot be read.
        """
        try:
            return self._file.read_bytes()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE) or not (moved := self._find_moved()):
                raise
            return moved.read_bytes()

    def open(self, mode: str = "rb") -> io.BufferedReader | io.BytesIO:
        """Return a stream of the content; a file by itself may be large, such as a log."""
        try:
            return self._file.open("rb")
        except OSError:
            return super().open(mode)

    def __str__(self) -> str:
        return str(self._file)


StoredFile = Path | SingleFile | ArchivedFile


def file_size(file: StoredFile) -> int:
    return file.stat().st_size if isinstance(file, Path) else file.size_bytes


class FileStore:
    """The small files of a run as they were when this was made.

    Args:
        run_directory: the folder of the run.
        jobs: only the archives of batches whose name begins so, such as `corpus.filter.main.laws.`.

    Attributes:
        problems: a sentence for each archive that cannot be read, by its path relative to the run.
    """

    def __init__(self, run_directory: Path, jobs: str = "") -> None:
        self.run_directory = run_directory
        self.problems: dict[str, str] = {}
        self._jobs = jobs
        self._archived: dict[str, ArchivedFile] = {}
        self._archives: list[Path] = []
        self._list_archives()

    def _list_archives(self) -> None:
        """List the archives that are new since the last time."""
        known = {*self._archives}
        archives = BATCH_ARCHIVE.glob(self.run_directory, job=f"{self._jobs}*")
        for archive in sorted((archive for archive in archives if archive not in known), key=archive_sort_key):
            path = f"{BATCH_ARCHIVES}/{archive.name}"
            if not BATCH_ARCHIVE.parse(path):  # somebody else's: `verify` names it
                continue
            try:
                members = _list_members(*archive_state(archive))
            except FileNotFoundError:  # a later invocation has rewritten it
                continue
            except InputError as error:
                self.problems[path] = str(error)
            except OSError as error:
                self.problems[path] = f"{path} cannot be read: {error.strerror}"
            else:
                for name in members:
                    other = self._archived.get(name)
                    if other is None or archive_sort_key(other.archive) < archive_sort_key(archive):
                        self._archived[name] = ArchivedFile(name, archive)
            self._archives.append(archive)

    @property
    def archives(self) -> dict[str, list[str]]:
        """The names of the members of each archive that can be read, by its path relative to the run."""
        places = {f"{BATCH_ARCHIVES}/{archive.name}": archive for archive in self._archives}
        readable = {place: archive for place, archive in places.items() if place not in self.problems}
        return {place: [*_list_members(*archive_state(archive))] for place, archive in readable.items()}

    @property
    def archived(self) -> Mapping[str, ArchivedFile]:
        """The newest member of each path relative to the run, where there is a file by itself or not."""
        return self._archived

    def find(self, path: str) -> StoredFile:
        """Return a file by its path relative to the run; one that does not exist is one by itself."""
        if not os.path.lexists(self.run_directory / path):
            if path not in self._archived:
                self._list_archives()
            if path in self._archived:
                return self._archived[path]
        return SingleFile(path, self.run_directory)

    def find_all(self, place: PathTemplate, **values: object) -> list[StoredFile]:
        """Return the files of a kind, in the order of their paths; values are as in `PathTemplate.glob`."""
        pattern = place.glob_pattern(**values)
        single = place.glob(self.run_directory, **values)
        self._list_archives()  # after the files: what is archived meanwhile is listed once at least
        files: dict[str, StoredFile] = {}
        files |= {path: file for path, file in self._archived.items() if fnmatchcase(path, pattern)}
        paths = (path.relative_to(self.run_directory).as_posix() for path in single)
        files |= {path: SingleFile(path, self.run_directory) for path in paths}
        return [files[path] for path in sorted(files)]

    def archive(self, job: str, paths: Iterable[Path]) -> Path | None:
        """Move files by themselves into a new archive of a batch; return it, None where there are no files.

        The archive is complete before any file is removed.

        Raises:
            DiskFull: the disk is full; all files stay.
        """
        run, files, states = self.run_directory.absolute(), dict[str, bytes](), dict[Path, tuple[int, int]]()
        for path in paths:
            with suppress(FileNotFoundError):  # another process of this batch has archived it
                file_stat = path.stat()
                files[path.absolute().relative_to(run).as_posix()] = path.read_bytes()
                states[path] = file_stat.st_mtime_ns, file_stat.st_size
        if not files:
            return None
        self._list_archives()
        stamp = next_archive_timestamp(self._archives)
        archive = BATCH_ARCHIVE.path(self.run_directory, stamp=stamp, process=os.getpid(), job=job)
        for left in archive.parent.glob(f".partial-*.{glob.escape(job)}.zip"):  # of a killed process
            left.unlink(missing_ok=True)
        write_archive(archive, sorted(files.items()))
        remove_archived(states)
        return archive

    def remove_from_archives(self, paths: Iterable[str]) -> None:
        """Rewrite archives without some members, of every archive that has them.

        Raises:
            InputError: an archive is damaged, and stays.
        """
        gone = {*paths}
        for archive in self._archives:
            place = f"{BATCH_ARCHIVES}/{archive.name}"
            names = {} if place in self.problems else _list_members(*archive_state(archive))
            if gone.isdisjoint(names):
                continue
            try:
                kept = [(name, ArchivedFile(name, archive).read_bytes()) for name in names if name not in gone]
            except OSError as error:
                raise InputError(f"{place} is damaged: put it back, or delete it, and its units run again") from error
            if not write_archive(archive, kept):
                archive.unlink(missing_ok=True)
