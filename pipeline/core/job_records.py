"""Records, attempts and batch records of a run: their types, and the only code that reads and writes their files.

A finished job has a record, each try at a job an attempt, and a job of several units a batch record.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from pipeline.core.archived_run_files import FileStore, StoredFile
from pipeline.core.atomic_files import write_json
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_command_lines import command_option, replace_settings_by_digest, settings_digest, settings_json
from pipeline.core.json_validation import parse_json, validate_fields
from pipeline.core.output_archives import output_sizes
from pipeline.layout import ATTEMPT, ATTEMPTS, BATCH_ARCHIVES, BATCHES, RECORD, RECORDS, UNIT_RECORDS

PLACE_FIELDS = ("file", "archive")
"""The fields of a record or attempt that say where it was read, and are not in its file."""
SEGMENT_STEP = "pretrain.segment"
"""The step that trains a model from one milestone to the next."""
Versions = tuple[str, str, str]
"""The settings of a job as JSON, its code version and its environment version."""


class FileEntry(NamedTuple):
    """One input or output file: `path` is relative to the run, or `data:` and a name for a file outside of it."""

    name: str
    path: str
    sha256: str
    bytes: int

    @property
    def is_outside_run(self) -> bool:
        """Whether the file is raw data, which no step of the run made."""
        return self.path.startswith("data:")

    def resolve_path(self, run_directory: Path) -> Path:
        """Return the path of the file; one outside of the run is below the working directory."""
        return Path(self.path.removeprefix("data:")) if self.is_outside_run else run_directory / self.path

    def matches_file(self, file: Path) -> bool:
        """Return whether a file is there with the bytes of the entry."""
        return file.is_file() and hash_file(file) == self.sha256


class BatchFile(NamedTuple):
    """One file that a unit of a batch wrote."""

    path: str
    bytes: int


class FileReference(NamedTuple):
    """A file of the run that several records share, such as the configuration that their jobs were planned with."""

    path: str
    sha256: str


class ReusedResult(NamedTuple):
    """The record whose outputs a job reused, and the attempt that computed them."""

    record: str | None = None
    attempt: str | None = None


def _to_json_value(value: Any) -> Any:
    if isinstance(value, FileEntry | BatchFile | FileReference | ReusedResult):
        return value._asdict()
    return [_to_json_value(entry) for entry in value] if isinstance(value, tuple) else value


@dataclass(frozen=True, kw_only=True)
class _JobFile:
    """The fields and methods that the files share.

    `file` is the path of the file itself, relative to the run, and `archive` that of its archive, if it is in one.
    """

    noun: ClassVar[str]
    folder: ClassVar[str]
    left_out: ClassVar[tuple[str, ...]] = ()
    """The fields that are not written where they have no value."""

    step: str
    instance: dict[str, str]
    file: str = ""
    archive: str = ""

    @property
    def name(self) -> str:
        """The name of its file without the suffix, such as `corpus.filter.main.laws.0`."""
        return os.path.basename(self.file).removesuffix(".json")

    @property
    def title(self) -> str:
        """The step and its instance, such as `corpus.filter (corpus=main, source=laws, unit=0)`."""
        instance = ", ".join(f"{key}={value}" for key, value in self.instance.items())
        return f"{self.step} ({instance})" if instance else self.step

    @classmethod
    def parse(cls, text: bytes | str, file: str = "", *, archive: str = "", strict: bool = True) -> Self:
        """Parse the JSON text of a file; `strict` refuses duplicate keys and takes 1.3 times as long.

        Raises:
            InputError: the text is not valid; the sentence names the file and the field.
        """
        try:
            content = parse_json(text, allow_nan=True) if strict else json.loads(text)
            return cls(**{**validate_fields(cls, content), "file": file, "archive": archive})
        except (ValueError, RecursionError) as error:
            raise InputError(f"{file} is not a valid {cls.noun}: {error}") from None

    @classmethod
    def load(cls, path: StoredFile, *, strict: bool = False) -> Self:
        """Read a file.

        Raises:
            InputError: it is missing, cannot be read, or is not valid; the sentence names the file and the field.
        """
        file = f"{cls.folder}/{path.name}"
        if not path.is_file():  # reading a pipe never ends
            raise InputError(f"{file} is missing, or is no file")
        try:
            text = path.read_bytes()
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from None
        archive = "" if isinstance(path, Path) else path.archive_path
        return cls.parse(text, file, archive=archive, strict=strict)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file."""
        names = [one.name for one in fields(self) if one.name not in PLACE_FIELDS]
        content = {name: _to_json_value(getattr(self, name)) for name in names}
        return {name: value for name, value in content.items() if value is not None or name not in self.left_out}

    def write(self, path: Path) -> None:
        """Write the file atomically.

        Raises:
            DiskFull: the disk is full; no partial file is left.
        """
        write_json(path, self.to_dict())


@dataclass(frozen=True, kw_only=True)
class _PlannedFile(_JobFile):
    """The planned versions of a job, which Snakemake compares with the current ones."""

    code_version: str
    environment_version: str


@dataclass(frozen=True, kw_only=True)
class Record(_PlannedFile):
    """The settings, files, versions, machine and cost of a finished job."""

    noun, folder, left_out = "record", RECORDS, ("environment", "environment_file")

    settings: dict[str, Any]
    operation: dict[str, Any] = field(default_factory=dict)
    command: list[str]
    inputs: tuple[FileEntry, ...]
    outputs: tuple[FileEntry, ...]
    environment: dict[str, Any] | None = None
    environment_file: FileReference | None = None
    frozen: FileReference | None = None
    launch: str | None = None
    taken_over_from: ReusedResult | None = None
    counts: dict[str, Any] = field(default_factory=dict)
    host: str | None = None
    slurm: dict[str, Any] | None = None
    git: dict[str, Any] | None = None
    machine: dict[str, Any] | None = None
    container: str | None = None
    modules: list[str] = field(default_factory=list)
    started: str
    ended: str
    wall_seconds: float
    cpu_seconds: float
    peak_memory_bytes: int
    attempt: str | None = None

    @property
    def planned_settings_and_versions(self) -> Versions:
        """The settings as JSON, the code version and the environment version."""
        return settings_json(self.settings), self.code_version, self.environment_version

    @property
    def full_command(self) -> list[str]:
        """The command line with the settings, of which the file of a record has the hash alone."""
        settings = settings_json(self.settings)
        digest = settings_digest(settings)
        return [settings if word == digest else word for word in self.command]

    def with_short_command(self) -> Record:
        """Return the record with its settings as a digest in its command line, if the command has the same settings."""
        is_same = command_option(self.command, "--settings") == settings_json(self.settings)
        return replace(self, command=replace_settings_by_digest(self.command)) if is_same else self

    def matches_versions(self, versions: Versions) -> bool:
        """Return whether the job was planned with these settings and versions."""
        return versions == self.planned_settings_and_versions

    @property
    def computing_attempt_file_name(self) -> str | None:
        """The file name of the attempt that computed the outputs: its own, or that of the reused result."""
        return (self.taken_over_from and self.taken_over_from.attempt) or self.attempt

    @property
    def started_seconds(self) -> float:
        """When the job began, in seconds since 1970."""
        return datetime.fromisoformat(self.started).timestamp()

    @property
    def ended_seconds(self) -> float:
        """When the job ended, in seconds since 1970."""
        return datetime.fromisoformat(self.ended).timestamp()


@dataclass(frozen=True, kw_only=True)
class Attempt(_JobFile):
    """One try at a job, finished or not; a killed one stays `running`."""

    noun, folder = "attempt", ATTEMPTS

    command: list[str]
    snakemake: str | None = None
    host: str | None = None
    slurm: dict[str, Any] | None = None
    started: str
    last_seen: str
    ended: str | None = None
    status: str
    error: str | None = None
    wall_seconds: float
    cpu_seconds: float
    peak_memory_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class BatchRecord(_PlannedFile):
    """The files that the units of a batch wrote, and their planned versions; `of` is a hash of the inputs.

    The settings are in the records of the units. Batches of earlier versions hold them too, and list the records, each
    a file by itself, among the outputs.
    """

    noun, folder, left_out = "batch", BATCHES, ("settings", "settings_digest")

    settings: dict[str, Any] | None = None
    settings_digest: str | None = None
    of: str | None = None
    outputs: tuple[BatchFile, ...]

    def matches_versions(self, versions: Versions) -> bool:
        """Return whether the batch was planned with these settings and versions."""
        digest = self.settings_digest or settings_digest(settings_json(self.settings or {}))
        return (settings_digest(versions[0]), *versions[1:]) == (digest, self.code_version, self.environment_version)


@dataclass(frozen=True, kw_only=True)
class UnitRecords(_JobFile):
    """The records of the units of a batch.

    What reads the results of a batch waits for its `BatchRecord`, which stays the same where a unit was done again with
    the same result. What reads records waits for this one.
    """

    noun, folder = "list of records", BATCH_ARCHIVES

    records: tuple[FileReference, ...]


JobFile = TypeVar("JobFile", bound=_JobFile)


def is_training_segment(model: str, step: str, instance: Mapping[str, str]) -> bool:
    """Return whether a job of this step and instance trains a segment of a model."""
    return step == SEGMENT_STEP and instance.get("model") == model


def read_job_files(
    kind: type[JobFile], paths: Iterable[StoredFile], *, strict: bool = False
) -> tuple[list[JobFile], dict[str, str]]:
    """Return the files that can be read, in the order of their names, and the problem of each of the others by path."""
    files, problems = [], {}
    was_enabled = gc.isenabled()
    gc.disable()  # it would go through all objects read before again and again, and find no garbage
    try:
        for path in sorted(paths, key=lambda path: path.name):
            try:
                files.append(kind.load(path, strict=strict))
            except InputError as error:
                problems[f"{kind.folder}/{path.name}"] = str(error)
    finally:
        if was_enabled:
            gc.enable()
    return files, problems


def read_records(run_directory: Path) -> tuple[list[Record], dict[str, str]]:
    """Return all records that can be read, in the order of their file names, and the problems of the others by path."""
    store = FileStore(run_directory)
    records, problems = read_job_files(Record, store.find_all(RECORD), strict=True)
    return records, {**problems, **store.problems}


def select_record_files(store: FileStore, files: Iterable[Path]) -> list[StoredFile]:
    """Return the records among some files, and those that the lists of units' records among them name.

    Raises:
        InputError: a list is broken.
    """
    run, record_files = store.run_directory.absolute(), list[StoredFile]()
    for path in files:
        name = path.absolute().relative_to(run).as_posix()
        if RECORD.parse(name):
            record_files.append(path)
        elif UNIT_RECORDS.parse(name):
            record_files += [store.find(record.path) for record in UnitRecords.load(path).records]
    return record_files


def load_records(run_directory: Path) -> list[Record]:
    """Return all records of a run, in the order of their file names.

    Raises:
        InputError: there is none, or one of them is broken.
    """
    records, problems = read_records(run_directory)
    for problem in problems.values():
        raise InputError(problem)
    if not records:
        raise InputError(f"{run_directory} holds no records in {RECORDS}: give the folder of a run's results")
    return records


def load_run_attempts(run_directory: Path) -> list[Attempt]:
    """Return all attempts of a run, in the order of their file names; an empty list if there is none.

    Raises:
        InputError: one of them is broken.
    """
    store = FileStore(run_directory)
    attempts, problems = read_job_files(Attempt, store.find_all(ATTEMPT), strict=True)
    for problem in (*problems.values(), *store.problems.values()):
        raise InputError(problem)
    return attempts


def map_producers(records: Iterable[Record]) -> dict[str, tuple[Record, FileEntry]]:
    """Return the record and the output that made each file, by path."""
    return {output.path: (record, output) for record in records for output in record.outputs}


def outputs_exist(run_directory: str | Path, outputs: Iterable[FileEntry | BatchFile]) -> bool:
    """Return whether outputs that a record lists exist with their sizes, by themselves or in archives."""
    try:
        listed = {entry.path: entry.bytes for entry in outputs}
        return [*output_sizes(run_directory, listed)] == [*listed.values()]
    except FileNotFoundError:
        return False
