"""The records and attempts of a run, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.strict_json import parse_json


class _Read(BaseModel):
    """Something read from JSON; a field that a later version adds is kept out of the way."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class FileEntry(_Read):
    """One input or output file: `path` is relative to the run, or `data:` and a name for what lies outside."""

    name: str
    path: str
    sha256: str
    bytes: int

    @property
    def is_outside(self) -> bool:
        """Whether the file is raw data, which no step of the run made."""
        return self.path.startswith("data:")


class Frozen(_Read):
    """What a job was planned by: the run as it was at a start."""

    path: str
    sha256: str


class TakenOver(_Read):
    """Whose outputs a job took over, instead of computing them."""

    attempt: str | None = None


class Record(_Read):
    """What a finished step wrote about itself; `file` is the record's own path, relative to the run."""

    file: str = ""
    step: str
    instance: dict[str, str | int]
    settings: dict[str, Any]
    operation: dict[str, Any] = {}
    command: list[str]
    inputs: list[FileEntry]
    outputs: list[FileEntry]
    code_version: str
    environment_version: str
    environment: dict[str, Any] = {}
    frozen: Frozen | None = None
    git: dict[str, Any] | None = None
    host: str | None = None
    slurm: dict[str, Any] | None = None
    started: str
    ended: str
    wall_seconds: float
    cpu_seconds: float
    peak_memory_bytes: int
    launch: str | None = None
    counts: dict[str, Any] = {}
    attempt: str | None = None
    taken_over_from: TakenOver | None = None

    @property
    def computed_by(self) -> str | None:
        """The attempt that computed the outputs: its own, or the one that they were taken over from."""
        return (self.taken_over_from and self.taken_over_from.attempt) or self.attempt

    @property
    def title(self) -> str:
        """The step and its instance, such as `corpus.filter (corpus=main, source=laws, unit=0)`."""
        instance = ", ".join(f"{key}={value}" for key, value in self.instance.items())
        return f"{self.step} ({instance})" if instance else self.step


class Attempt(_Read):
    """One try at a step, finished or not; a killed one stays `running`."""

    file: str = ""
    step: str
    instance: dict[str, str | int]
    command: list[str]
    host: str | None = None
    slurm: dict[str, Any] | None = None
    snakemake: str | None = None
    started: str
    last_seen: str
    ended: str | None = None
    status: str
    error: str | None = None
    wall_seconds: float
    cpu_seconds: float


Model = TypeVar("Model", Record, Attempt)


def _load(kind: type[Model], file: Path, name: str) -> Model:
    if not file.is_file():  # who opens a pipe waits for ever
        raise InputError(f"{name} is missing, or is no file")
    try:
        return kind.model_validate(parse_json(file.read_bytes(), allow_nan=True)).model_copy(update={"file": name})
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        where = f"the field {field}: " if field else ""
        raise InputError(f"{name} is not a valid {kind.__name__.lower()}: {where}{problem['msg']}") from None
    except ValueError as error:
        raise InputError(f"{name} is not a valid {kind.__name__.lower()}: {error}") from None


def load_record(file: Path) -> Record:
    """Read one record.

    Raises:
        InputError: it cannot be read, is no JSON, or lacks a field; the sentence names file and field.
    """
    return _load(Record, file, f"{layout.RECORDS}/{file.name}")


def load_attempt(file: Path) -> Attempt:
    """Read one attempt.

    Raises:
        InputError: it cannot be read, is no JSON, or lacks a field; the sentence names file and field.
    """
    return _load(Attempt, file, f"{layout.ATTEMPTS}/{file.name}")


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.json") if not file.name.startswith("."))


def read_records(run_directory: Path) -> tuple[list[Record], dict[str, str]]:
    """All records that can be read, in the order of their file names, and a problem for each of the others by path."""
    records, problems = [], {}
    for file in _files(run_directory / layout.RECORDS):
        try:
            records.append(load_record(file))
        except InputError as error:
            problems[f"{layout.RECORDS}/{file.name}"] = str(error)
    return records, problems


def load_records(run_directory: Path) -> list[Record]:
    """All records of a run, in the order of their file names.

    Raises:
        InputError: there is none, or one of them is broken.
    """
    records, problems = read_records(run_directory)
    for problem in problems.values():
        raise InputError(problem)
    if not records:
        raise InputError(f"{run_directory} holds no records in {layout.RECORDS}: give the folder of a run's results")
    return records


def read_attempts(run_directory: Path) -> tuple[list[Attempt], list[str]]:
    """All attempts that can be read, in the order of their file names, and a problem for each of the others."""
    attempts, problems = [], []
    for file in _files(run_directory / layout.ATTEMPTS):
        try:
            attempts.append(_load(Attempt, file, f"{layout.ATTEMPTS}/{file.name}"))
        except InputError as error:
            problems.append(str(error))
    return attempts, problems


def load_attempts(run_directory: Path) -> list[Attempt]:
    """All attempts of a run, in the order of their file names; an empty list if there is none.

    Raises:
        InputError: one of them is broken.
    """
    return [load_attempt(file) for file in _files(run_directory / layout.ATTEMPTS)]


def producers(records: list[Record]) -> dict[str, tuple[Record, FileEntry]]:
    """Which record made each file: path to record and output."""
    return {output.path: (record, output) for record in records for output in record.outputs}
