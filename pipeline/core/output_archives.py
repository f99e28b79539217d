"""The small outputs of many units, each a file by itself or in an archive of the job that wrote them.

File systems of clusters limit the number of files. When a batch has finished, the small outputs of its units move into
one ZIP file, and so do those of a folder with a file for each unit. A member has the path and the bytes that it had as
a file below the run, so unpacking an archive in the folder of the run restores them. A file by itself counts before a
member, and a later archive before an earlier one. When a unit was done again, its job writes one archive with the
newest of all units and deletes the earlier one, whose content may be about a document that is to be forgotten.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from io import BytesIO
from pathlib import Path, PurePath

from pipeline.core.archived_run_files import ArchivedFile
from pipeline.core.errors import InputError
from pipeline.core.zip_archives import (
    archive_sort_key,
    archive_state,
    list_members,
    next_archive_timestamp,
    remove_archived,
    write_archive,
)
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


def archiving_job_name_prefix(path: str) -> str | None:
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


def is_archivable(place: PathTemplate) -> bool:
    """Return whether outputs of a place, or the files in an output folder, move into archives if they are many."""
    return tuple(place.split("/")[:3:2]) in _PLACES


def may_hold(archive: str, path: str) -> bool:
    """Return whether an output may be in an archive, both by their paths relative to the run."""
    job, beginning = parse_archive_job_name(archive), archiving_job_name_prefix(path)
    is_near = archive.split("/")[:2] == path.split("/")[:2]
    return is_near and job is not None and beginning is not None and job.startswith(beginning)


def parse_archive_job_name(path: str) -> str | None:
    """Return the name of the job that wrote an archive of outputs, by its path relative to the run; None for others."""
    values = (place.parse(path) for place in OUTPUT_ARCHIVES)
    return next((value["job"] for value in values if value), None)


@cache
def _list_members(archive: Path, *state: int) -> dict[str, int]:
    """Return the sizes of the members of an archive by name.

    Raises:
        InputError: it cannot be read, or a member is no output of its folder.
    """
    place = _path_in_run(archive)
    sizes = list_members(archive, place, MOST_MEMBER_BYTES)
    folder = place.rpartition(f"/{ARCHIVES}/")[0]
    for name in sizes:
        if archiving_job_name_prefix(name) is None or not name.startswith(f"{folder}/"):
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

    def copy_into_folder(self, folder: Path) -> Path:
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
    if (jobs := archiving_job_name_prefix("/".join(parts))) is None:
        return {}
    try:
        changed = os.stat(f"{run}/{parts[0]}/{parts[1]}/{ARCHIVES}").st_mtime_ns
    except FileNotFoundError:
        return {}
    return _list_folder(run, f"{parts[0]}/{parts[1]}", jobs, changed)


def glob_outputs(run_directory: Path, place: PathTemplate, **values: object) -> list[Path | ArchivedOutput]:
    """Return the outputs of a kind, in the order of their paths; values are as in `PathTemplate.glob`."""
    pattern = place.glob_pattern(**values)
    parts = pattern.split("/")
    outputs: dict[str, Path | ArchivedOutput] = {}
    if is_archivable(place):
        jobs = _PLACES[parts[0], parts[2]][1].format_map(defaultdict(lambda: "*", values))
        archives = OutputArchives(run_directory, "/".join(parts[:2]), jobs)
        outputs |= {path: file for path, file in archives.archived.items() if fnmatchcase(path, pattern)}
    outputs |= {_path_in_run(path): path for path in place.glob(run_directory, **values)}
    return [outputs[path] for path in sorted(outputs)]


def get_parquet_source(file: Path | ArchivedOutput) -> Path | BytesIO:
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
        archives = self.run_directory.glob(f"{self._folder}/{ARCHIVES}/[!.]*.*.{self._jobs}*.zip")
        for archive in sorted((archive for archive in archives if archive not in known), key=archive_sort_key):
            path = _path_in_run(archive)
            if parse_archive_job_name(path) is None:  # somebody else's: `verify` names it
                continue
            try:
                members = _list_members(*archive_state(archive))
            except FileNotFoundError:  # a job has removed it
                continue
            except InputError as error:
                self.problems[path] = str(error)
            except OSError as error:
                self.problems[path] = f"{path} cannot be read: {error.strerror}"
            else:
                for name, size in members.items():
                    other = self.archived.get(name)
                    if other is None or archive_sort_key(other.archive) < archive_sort_key(archive):
                        self.archived[name] = ArchivedOutput(name, archive, size)
            self._archives.append(archive)

    def add(self, job: str, paths: Iterable[Path]) -> None:
        """Move the small ones of a job's outputs into a new archive, and remove what they supersede.

        The archive is complete before any file is removed. Outputs of few units stay files by themselves.

        Raises:
            DiskFull: the disk is full; all files stay.
            InputError: an earlier archive with some of these outputs is damaged, and stays.
        """
        outputs = sorted(path.absolute() for path in paths if archiving_job_name_prefix(_path_in_run(path)))
        if len(outputs) >= FEWEST_FILES:
            self._move(job, [path for path in outputs if path.is_file() and path.stat().st_size <= MOST_BYTES])
        self.remove(_path_in_run(path) for path in outputs if path.exists())

    def _move(self, job: str, paths: list[Path]) -> None:
        """Move files, and what earlier archives of the job have besides them, into one archive."""
        earlier = [
            archive
            for archive in self._archives
            if parse_archive_job_name(place := _path_in_run(archive)) == job and place not in self.problems
        ]
        if not paths and len(earlier) < 2:
            return
        states: dict[Path, tuple[int, int]] = {}
        name = f"{next_archive_timestamp(self._archives)}.{os.getpid()}.{job}.zip"
        archive = self.run_directory / self._folder / ARCHIVES / name
        for left in archive.parent.glob(f".partial-*.{job}.zip"):  # of a killed process
            left.unlink(missing_ok=True)

        def iterate_files_to_archive() -> Iterator[tuple[str, bytes]]:
            files: dict[str, Path | ArchivedOutput] = {
                name: file for name, file in self.archived.items() if file.archive in earlier
            }
            files |= {_path_in_run(path): path for path in paths}
            for name, file in sorted(files.items()):
                if isinstance(file, ArchivedOutput):
                    yield name, _read_member(file)
                    continue
                with suppress(FileNotFoundError):  # another process of this job has archived it
                    file_stat, content = file.stat(), file.read_bytes()
                    states[file] = file_stat.st_mtime_ns, file_stat.st_size
                    yield name, content

        write_archive(archive, iterate_files_to_archive())
        remove_archived(states)
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
                names = [] if path in self.problems else [*_list_members(*archive_state(archive))]
            except FileNotFoundError:  # another process of this job has removed it
                continue
            kept = [name for name in names if not is_gone(archive, name)]
            if len(kept) == len(names):
                continue
            is_changed = True
            if not write_archive(archive, ((name, _read_member(ArchivedOutput(name, archive, 0))) for name in kept)):
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
