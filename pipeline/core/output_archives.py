"""The small outputs of many units, each a file by itself or in an archive of the job that wrote them.

File systems of clusters limit the number of files. When a batch has finished, the small outputs of its units move into
one ZIP file, and so do those of a folder with a file for each unit. A member has the path and the bytes that it had as
a file below the run, so unpacking an archive in the folder of the run restores them. A file by itself counts before a
member, and a later archive before an earlier one. When a unit was done again, its job writes one archive with the
newest of all units and deletes the earlier one, whose content may be about a document that is to be forgotten.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from io import BytesIO
from pathlib import Path, PurePath

from pipeline.core.errors import InputError
from pipeline.core.full_disk_errors import disk_full_error, is_disk_full, remove_path
from pipeline.core.output_lease import temporary_output_path
from pipeline.core.stored_files import ArchivedFile
from pipeline.layout import ARCHIVED_OUTPUTS, OUTPUT_ARCHIVES, PathTemplate

FEWEST_FILES = 20
"""A job with outputs of fewer units leaves them as they are: files to open by hand, and few."""
MOST_BYTES = 1_000_000
"""A larger output stays a file by itself: a job reads those of archives from copies."""
MOST_MEMBER_BYTES = 1 << 32
"""More than the members of any archive have together: one of somebody else may be made to fill a disk."""
_PLACES = {(place.split("/")[0], place.split("/")[2]): (place, jobs) for place, jobs in ARCHIVED_OUTPUTS.items()}
ARCHIVES = "archives"
"""The folder of the archives of a source or a corpus."""
_PATH_PARTS = 4  # of each of these outputs, below the run
_HEADER_BYTES = 30  # before the name of a member
# What `zipfile` raises for an archive with other bytes than were written.
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, KeyError)


def output_job(path: str) -> str | None:
    """Return how the names of jobs begin that may have archived an output, by its path in the run; None for others."""
    parts = path.split("/")
    if len(parts) != _PATH_PARTS or (known := _PLACES.get((parts[0], parts[2]))) is None:
        return None
    place, jobs = known
    values = place.parse(path)
    return None if values is None else jobs.format_map(values)


def _path_in_run(path: Path) -> str:
    """Return the path of an output or an archive relative to the run."""
    return "/".join(path.absolute().parts[-_PATH_PARTS:])


def is_archived(place: PathTemplate) -> bool:
    """Return whether outputs of a place, or the files in an output folder, move into archives if they are many."""
    return tuple(place.split("/")[:3:2]) in _PLACES


def may_hold(archive: str, path: str) -> bool:
    """Return whether an output may be in an archive, both by their paths relative to the run."""
    job, beginning = parse_archive(archive), output_job(path)
    is_near = archive.split("/")[:2] == path.split("/")[:2]
    return is_near and job is not None and beginning is not None and job.startswith(beginning)


def parse_archive(path: str) -> str | None:
    """Return the name of the job that wrote an archive of outputs, by its path relative to the run; None for others."""
    values = (place.parse(path) for place in OUTPUT_ARCHIVES)
    return next((value["job"] for value in values if value), None)


def _state(archive: Path) -> tuple[Path, int, int]:
    found = archive.stat()
    if not stat.S_ISREG(found.st_mode):  # reading a pipe never ends
        raise OSError(errno.EINVAL, "is no file")
    return archive, found.st_mtime_ns, found.st_size


@lru_cache(maxsize=64)
def _open_archive(
    archive: Path, modified_nanoseconds: int, size_bytes: int
) -> tuple[mmap.mmap, dict[str, zipfile.ZipInfo]]:
    """Return the content of an archive, mapped into memory, and its members by name."""
    with archive.open("rb") as file:
        with zipfile.ZipFile(file) as found:
            members = {member.filename: member for member in found.infolist()}
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), members


def _extract(content: mmap.mmap, member: zipfile.ZipInfo) -> bytes:
    """Return a member as `ZipFile.read` does, in a tenth of its time; a ValueError says that it was changed."""
    begin = member.header_offset + _HEADER_BYTES
    begin += sum(struct.unpack("<HH", content[begin - 4 : begin]))  # the lengths of name and extra field
    data = content[begin : begin + member.compress_size]
    if member.compress_type == zipfile.ZIP_DEFLATED:
        data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, member.file_size + 1)
    if len(data) != member.file_size or zlib.crc32(data) != member.CRC:
        raise ValueError
    return data


@cache
def _list_members(archive: Path, modified_nanoseconds: int, size_bytes: int) -> dict[str, int]:
    """Return the sizes of the members of an archive by name.

    Raises:
        InputError: it cannot be read, or a member is no output of its folder.
    """
    place = _path_in_run(archive)
    try:
        with zipfile.ZipFile(archive) as found:
            members = found.infolist()
    except (*_DAMAGED, OSError):
        raise InputError(f"{place} is damaged: it cannot be read as a ZIP file") from None
    sizes = {member.filename: member.file_size for member in members}
    if len(sizes) < len(members):
        raise InputError(f"{place} was changed: two members have one name")
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
        raise InputError(f"{place} was changed: a member has another compression")
    if sum(sizes.values()) > MOST_MEMBER_BYTES:
        raise InputError(f"{place} was changed: its members have {sum(sizes.values()):,} bytes")
    folder = place.rpartition(f"/{ARCHIVES}/")[0]
    for name in sizes:
        if output_job(name) is None or not name.startswith(f"{folder}/"):
            raise InputError(f"{place} was changed: its member {name!r} is no output of a unit")
    return sizes


@dataclass(frozen=True)
class ArchivedOutput(ArchivedFile):
    """An output in an archive; its path is relative to the run."""

    size: int

    @property
    def archive_path(self) -> str:
        return _path_in_run(self.archive)

    @property
    def size_bytes(self) -> int:
        return self.size

    @property
    def modified_nanoseconds(self) -> int:
        """When the archive was written, which is after the file."""
        return self.archive.stat().st_mtime_ns

    def read_bytes(self) -> bytes:
        try:
            content, members = _open_archive(*_state(self.archive))
            return _extract(content, members[self.path])
        except (*_DAMAGED, OSError) as error:
            raise OSError(errno.EIO, f"its archive {self.archive_path} is damaged") from error

    def copy_below(self, folder: Path) -> Path:
        """Return the path of a copy below a folder, where it has the same relative path as below the run."""
        copy = folder / self.path
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(self.read_bytes())
        return copy


def find_output(path: Path) -> Path | ArchivedOutput:
    """Return a file of a run by itself or, if it is an output in an archive, that; where there is none, the path."""
    return path if os.path.lexists(path) else _list_archived_with(path).get(_path_in_run(path), path)


def _list_archived_with(path: Path | str) -> Mapping[str, ArchivedOutput]:
    """Return what the archives hold that may have an output; they are listed again when their folder has changed."""
    run, *parts = os.path.abspath(path).rsplit("/", _PATH_PARTS)
    if (jobs := output_job("/".join(parts))) is None:
        return {}
    try:
        changed = os.stat(f"{run}/{parts[0]}/{parts[1]}/{ARCHIVES}").st_mtime_ns
    except FileNotFoundError:
        return {}
    return _list_folder(run, f"{parts[0]}/{parts[1]}", jobs, changed)


def find_outputs(run_directory: Path, place: PathTemplate, **values: object) -> list[Path | ArchivedOutput]:
    """Return the outputs of a kind, in the order of their paths; values are as in `PathTemplate.glob`."""
    pattern = place.glob_pattern(**values)
    parts = pattern.split("/")
    found: dict[str, Path | ArchivedOutput] = {}
    if is_archived(place):
        jobs = _PLACES[parts[0], parts[2]][1].format_map(defaultdict(lambda: "*", values))
        archives = OutputArchives(run_directory, "/".join(parts[:2]), jobs)
        found |= {path: file for path, file in archives.archived.items() if fnmatchcase(path, pattern)}
    found |= {_path_in_run(path): path for path in place.glob(run_directory, **values)}
    return [found[path] for path in sorted(found)]


def open_table(file: Path | ArchivedOutput) -> Path | BytesIO:
    """Return what pyarrow reads a table from."""
    return file if isinstance(file, Path) else BytesIO(file.read_bytes())


def output_sizes(run_directory: Path | str, paths: Iterable[str]) -> Iterator[int]:
    """Yield the bytes of outputs, by themselves or in archives, by their paths relative to the run.

    Raises:
        FileNotFoundError: there is none of a path.
    """
    archived: dict[str, Mapping[str, ArchivedOutput]] = {}  # looked up once for the units of a source
    for path in paths:
        try:
            yield os.stat(f"{run_directory}/{path}").st_size
        except FileNotFoundError:
            of_source = path.rsplit(".", 2)[0]
            if of_source not in archived:
                archived[of_source] = _list_archived_with(f"{run_directory}/{path}")
            if path not in archived[of_source]:
                raise
            yield archived[of_source][path].size


@lru_cache(maxsize=64)
def _list_folder(run: str, folder: str, jobs: str, changed_nanoseconds: int) -> dict[str, ArchivedOutput]:
    return OutputArchives(Path(run), folder, jobs).archived


def _order(archive: Path) -> tuple[str, ...]:
    """Return what orders archives: the time and the process in the name."""
    return tuple(archive.name.split(".")[:2])


class OutputArchives:
    """The archives of outputs of a run as they were when this was made.

    Args:
        run_directory: the folder of the run.
        folder: only those below this folder, such as `corpus/main`.
        jobs: only those of jobs whose name begins so, such as `corpus.matches.main.laws.`.

    Attributes:
        archived: the newest member of each path relative to the run, where there is a file by itself or not.
        problems: a sentence for each archive that cannot be read, by its path relative to the run.
    """

    def __init__(self, run_directory: Path, folder: PurePath | str = "*/*", jobs: str = "") -> None:
        self.run_directory = run_directory
        self.problems: dict[str, str] = {}
        self.archived: dict[str, ArchivedOutput] = {}
        self._folder, self._jobs = folder, jobs
        self._archives: list[Path] = []
        self._list_archives()

    def _list_archives(self) -> None:
        """List the archives that are new since the last time."""
        known = {*self._archives}
        found = self.run_directory.glob(f"{self._folder}/{ARCHIVES}/[!.]*.*.{self._jobs}*.zip")
        for archive in sorted((archive for archive in found if archive not in known), key=_order):
            path = _path_in_run(archive)
            if parse_archive(path) is None:  # somebody else's: `verify` names it
                continue
            try:
                members = _list_members(*_state(archive))
            except FileNotFoundError:  # a job has removed it
                continue
            except InputError as error:
                self.problems[path] = str(error)
            except OSError as error:
                self.problems[path] = f"{path} cannot be read: {error.strerror}"
            else:
                for name, size in members.items():
                    other = self.archived.get(name)
                    if other is None or _order(other.archive) < _order(archive):
                        self.archived[name] = ArchivedOutput(name, archive, size)
            self._archives.append(archive)

    def add(self, job: str, paths: Iterable[Path]) -> None:
        """Move the small ones of a job's outputs into a new archive, and remove what they supersede.

        The archive is complete before any file is removed. Outputs of few units stay files by themselves.

        Raises:
            DiskFull: the disk is full; all files stay.
            InputError: an earlier archive with some of these outputs is damaged, and stays.
        """
        outputs = sorted(path.absolute() for path in paths if output_job(_path_in_run(path)))
        if len(outputs) >= FEWEST_FILES:
            self._move(job, [path for path in outputs if path.is_file() and path.stat().st_size <= MOST_BYTES])
        self.remove(_path_in_run(path) for path in outputs if path.exists())

    def _move(self, job: str, paths: list[Path]) -> None:
        """Move files, and what earlier archives of the job have besides them, into one archive."""
        earlier = [
            archive
            for archive in self._archives
            if parse_archive(place := _path_in_run(archive)) == job and place not in self.problems
        ]
        if not paths and len(earlier) < 2:
            return
        states: dict[Path, tuple[int, int]] = {}
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        latest = max((_order(archive)[0] for archive in self._archives), default="")
        stamp = now if now > latest else f"{latest}1"  # the clock of another node is ahead
        archive = self.run_directory / self._folder / ARCHIVES / f"{stamp}.{os.getpid()}.{job}.zip"
        for left in archive.parent.glob(f".partial-*.{job}.zip"):  # of a killed process
            left.unlink(missing_ok=True)

        def read() -> Iterator[tuple[str, bytes]]:
            files: dict[str, Path | ArchivedOutput] = {
                name: file for name, file in self.archived.items() if file.archive in earlier
            }
            files |= {_path_in_run(path): path for path in paths}
            for name, file in sorted(files.items()):
                if isinstance(file, ArchivedOutput):
                    yield name, _read_member(file)
                    continue
                with suppress(FileNotFoundError):  # another process of this job has archived it
                    found, content = file.stat(), file.read_bytes()
                    states[file] = found.st_mtime_ns, found.st_size
                    yield name, content

        _write_archive(archive, read())
        for path, state in states.items():
            with suppress(FileNotFoundError):
                found = path.stat()
                if (found.st_mtime_ns, found.st_size) == state:
                    path.unlink()
        self._list_archives()
        newest = {name: file.archive for name, file in self.archived.items()}
        self._rewrite(lambda archive, name: newest.get(name) != archive)

    def remove(self, paths: Iterable[str]) -> None:
        """Write archives again without some members, in every archive that has them.

        Raises:
            InputError: an archive is damaged, and stays.
        """
        gone = {*paths}
        self._rewrite(lambda archive, name: name in gone)

    def _rewrite(self, is_gone: Callable[[Path, str], bool]) -> None:
        is_changed = False
        for archive in self._archives:
            path = _path_in_run(archive)
            try:
                names = [] if path in self.problems else [*_list_members(*_state(archive))]
            except FileNotFoundError:  # another process of this job has removed it
                continue
            kept = [name for name in names if not is_gone(archive, name)]
            if len(kept) == len(names):
                continue
            is_changed = True
            if not _write_archive(archive, ((name, _read_member(ArchivedOutput(name, archive, 0))) for name in kept)):
                archive.unlink(missing_ok=True)
        if is_changed:
            self._archives, self.archived = [], {}
            self._list_archives()


def _read_member(file: ArchivedOutput) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(
            f"{file.archive_path} is damaged: put it back, or delete it, and its units run again"
        ) from error


def _write_archive(path: Path, files: Iterable[tuple[str, bytes]]) -> bool:
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
                member = zipfile.ZipInfo(name)  # of the first time of ZIP files: the same files give the same bytes
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
