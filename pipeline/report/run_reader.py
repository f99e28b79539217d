"""Read the files of a run that the report is computed from, once and in a fixed order, and sum up its attempts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pipeline import layout
from pipeline.core.archived_run_files import FileStore, StoredFile
from pipeline.core.errors import InputError, anonymize_paths
from pipeline.core.job_records import SEGMENT_STEP, Attempt, Record, read_job_files, select_record_files
from pipeline.core.shared_environment_files import read_environment
from pipeline.energy.external_meters.meter_tables import collect_external_readings
from pipeline.layout import PathTemplate

Json = dict[str, Any]
UNCOUNTED_STAGES = ("report.", "provenance.")  # these run after, or while, the page is written
JobFile = TypeVar("JobFile", bound=Record | Attempt)


@dataclass(frozen=True)
class Artifact:
    """The content of one file, the name it goes by and the link from the page to it."""

    name: str
    link: str
    content: Json
    lines: list[Json] = field(default_factory=list)


def link_job(job: Record | Attempt) -> str:
    """Return the link from a page of the report to a record or an attempt, or to the archive that has it."""
    return f"../{job.archive or job.file}"


@dataclass(frozen=True)
class UnreadableFile:
    """A record, attempt or other evidence that the report had to leave out: the link to it, and what is wrong."""

    link: str
    reason: str


class RunReader:
    """What the report says is computed from the attributes of this: artifacts sorted by their links.

    A record, an attempt or a file of Slurm's accounting that is cut off loses its own part alone, and is listed in
    `unreadable`. Attempts, readings, accounting, frozen starts and the signer are looked up in the folder of the run;
    artifacts and records are read only where they are given, since a folder may hold those of an earlier configuration.

    Args:
        folder: the folder of the run.
        files: the records and artifacts to read; a list of the records of units counts as these.
        page: links are relative to its folder; by default the report's place in the run.

    Raises:
        InputError: an artifact that the figures rest on is not what its name says.
    """

    def __init__(self, folder: Path, files: Iterable[StoredFile], page: Path | None = None) -> None:
        self.folder = folder
        self._linked_from = (page or layout.REPORT_PAGE.path(folder)).absolute().parent
        given = [*files]
        self._files = sorted(file for file in given if isinstance(file, Path))
        store = FileStore(folder)
        archived = [file for file in given if not isinstance(file, Path)]
        records = [*select_record_files(store, self._files), *archived]
        self.unreadable = [UnreadableFile(self._link(folder / path), text) for path, text in store.problems.items()]
        self.records = [self._with_environment(record) for record in self._read_jobs(Record, records)]
        self.attempts = self._read_jobs(Attempt, store.find_all(layout.ATTEMPT))
        self.starts = self._read_evidence(self._list_folder(layout.FROZEN))
        self.accounting = self._read_evidence(
            self._list_folder(layout.ACCOUNTING), "job", "comment", "cause", "allocations", "total"
        )
        self.statistics = self._read_artifacts(layout.STATISTICS, "corpus", "sources", "totals")
        self.fertility = self._read_artifacts(layout.FERTILITY, "languages")
        self.metrics = [
            Artifact(path.parent.name, self._link(path), {}, read_json_lines(path))
            for path in self._select_files(layout.METRICS)
        ]
        self.document_losses = {path.parent.name: path for path in self._select_files(layout.DOCUMENT_LOSSES)}
        self.differences = self._read_artifacts(layout.DIFFERENCES, "comparisons")
        self.evaluation = sorted(
            self._read_artifacts(layout.RESULTS, "model", "step", "tasks"),
            key=lambda results: (results.content["model"], int(results.content["step"])),
        )
        self.answers = self._select_files(layout.ANSWERS)
        self.samples = self._read_artifacts(layout.SAMPLES, "model", "samples", "written", "held_out")
        self.data_sets = self._read_artifacts(layout.DATASET, "corpus", "domains")
        self.manifests = self._read_artifacts(layout.MANIFEST, "source", "files", "bytes")
        self.indexes = self._read_artifacts(layout.TOKEN_INDEX, "train", "validation")
        self.later_suites = self._read_artifacts(layout.LATER_SUITES, "corpus", "contamination")
        self.forgotten = self._read_artifacts(layout.FORGOTTEN, "corpus", "before", "after", "searched")
        self.remains = self._read_artifacts(layout.REMAINS, "tokens", "places")
        self.plan = next(iter(self._read_artifacts(layout.PLAN)), Artifact("plan", "", {}))
        self.readings = store.find_all(layout.READINGS.child("*.jsonl"))
        self.external_readings = collect_external_readings(folder)
        signers = [path for path in [layout.SIGNER.path(folder)] if path.is_file()]
        self.signer: Json | None = next(
            (one.content for one in self._read_evidence(signers, "owner", "algorithm", "key_sha256", "timestamp")), None
        )

    def records_of(self, step: str, /, **instance: str) -> list[Record]:
        """Return the records of one step whose instance has the given values."""
        return [
            record for record in self.records if record.step == step and instance.items() <= record.instance.items()
        ]

    def segments(self, **instance: str) -> list[Record]:
        """Return the records of the trainings' segments, in the order of their files' names."""
        return self.records_of(SEGMENT_STEP, **instance)

    def find_token_index(self, segments: Iterable[Record]) -> Artifact | None:
        """Return the index of the tokens that segments read; None where that is not known."""
        read = {entry.path for segment in segments for entry in segment.inputs}
        return next(
            (index for index in self.indexes if layout.TOKEN_INDEX.relative_path(tokens=index.name) in read), None
        )

    def exclude_models(self, names: Collection[str]) -> RunReader:
        """Return the same run without the artifacts of some models; records and attempts are still those of all."""
        kept = copy(self)
        kept.metrics = [one for one in self.metrics if one.name not in names]
        kept.evaluation = [one for one in self.evaluation if one.content["model"] not in names]
        kept.answers = [path for path in self.answers if path.parent.parent.name not in names]
        kept.samples = [one for one in self.samples if one.content["model"] not in names]
        return kept

    def _select_files(self, place: PathTemplate) -> list[Path]:
        run = self.folder.absolute()
        return [path for path in self._files if place.parse(path.absolute().relative_to(run).as_posix()) is not None]

    def _list_folder(self, folder: PathTemplate) -> list[Path]:
        return sorted(path for path in folder.path(self.folder).glob("*.json") if not path.name.startswith("."))

    def _link(self, path: Path) -> str:
        return Path(os.path.relpath(path.absolute(), self._linked_from)).as_posix()

    def _read_artifacts(self, place: PathTemplate, *keys: str) -> list[Artifact]:
        artifacts = [
            Artifact(path.parent.name, self._link(path), _read_object(path, keys)) for path in self._select_files(place)
        ]
        return sorted(artifacts, key=lambda artifact: artifact.link)

    def _read_evidence(self, paths: Iterable[Path], *keys: str) -> list[Artifact]:
        artifacts = []
        for path in paths:
            try:
                artifacts.append(Artifact(path.stem, self._link(path), _read_object(path, keys)))
            except InputError as error:
                self.unreadable.append(UnreadableFile(self._link(path), anonymize_paths(str(error))))
        return artifacts

    def _read_jobs(self, kind: type[JobFile], files: Iterable[StoredFile]) -> list[JobFile]:
        jobs, problems = read_job_files(kind, files)
        self.unreadable += [
            UnreadableFile(self._link(self.folder / path), anonymize_paths(text)) for path, text in problems.items()
        ]
        return [job for job in jobs if not job.step.startswith(UNCOUNTED_STAGES)]

    def _with_environment(self, record: Record) -> Record:
        """Return a record that has the content of the file with its packages."""
        try:
            return replace(record, environment=read_environment(self.folder, record))
        except InputError as error:
            self.unreadable.append(UnreadableFile(self._link(self.folder / record.file), str(error)))
            return replace(record, environment={})


def _read_object(path: Path, keys: Iterable[str]) -> Json:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not readable as JSON ({error}): rerun the step that writes it") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object: rerun the step that writes it")
    missing = [key for key in keys if key not in content]
    if missing:
        raise InputError(f"{path} lacks the key {missing[0]!r}: rerun the step that writes it")
    return content


def read_json_lines(path: Path) -> list[Json]:
    """Return the JSON objects of a file, one per line, in the order of their steps."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return sorted(lines, key=lambda line: int(line["step"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not readable as metrics ({error!r}): rerun pretrain.export") from None


REPLACED_ATTEMPT = "finished, replaced by a later one"


@dataclass
class StepUsage:
    """A sum over attempts; `lost` counts those without valid outputs.

    A training holds a device per process, an evaluation one, and no other step any.
    """

    name: str
    attempts: int = 0
    lost: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    device_seconds: float = 0.0
    lost_device_seconds: float = 0.0
    of_unknown_devices: int = 0

    def add(self, job: Record | Attempt, *, is_lost: bool, devices: int | None) -> None:
        """Add one record or attempt; nobody knows the devices of a training of which no segment was finished."""
        self.attempts += 1
        self.lost += is_lost
        seconds = job.wall_seconds
        self.wall_seconds += seconds
        self.device_seconds += seconds * (devices or 0)
        self.lost_device_seconds += seconds * (devices or 0) * is_lost
        self.of_unknown_devices += devices is None
        self.cpu_seconds += job.cpu_seconds


@dataclass(frozen=True)
class LostAttempt:
    """An attempt without valid outputs, and its fate."""

    attempt: Attempt
    fate: str


@dataclass(frozen=True)
class Consumption:
    """What each step took, in the order of the pipeline, all of them together, and the attempts that were lost."""

    steps: list[StepUsage]
    total: StepUsage
    attempts: list[LostAttempt]


def valid_attempts(reader: RunReader) -> set[str | None]:
    """Return the attempts with a record, including those with outputs reused by a record of another name."""
    return {name for record in reader.records for name in (record.attempt, record.computing_attempt_file_name)}


def find_lost_attempts(reader: RunReader) -> list[LostAttempt]:
    """Return the attempts without a record: failed, refused, killed, or finished and replaced later."""
    valid = valid_attempts(reader)
    cut_off = tuple(file.link.rsplit("/", 1)[-1].removesuffix("json") for file in reader.unreadable)

    def attempt_has_unreadable_record(attempt: Attempt) -> bool:
        return f"{attempt.name}.json".startswith(cut_off)

    lost = []
    for attempt in _sort_by_start(reader.attempts):
        if f"{attempt.name}.json" in valid:
            continue
        status = attempt.status
        if status == "running" and not attempt.ended:
            status = "killed"
        if status == "finished":
            status = (
                "finished, but its record cannot be read"
                if attempt_has_unreadable_record(attempt)
                else REPLACED_ATTEMPT
            )
        lost.append(LostAttempt(attempt, status))
    return lost


def _sort_by_start(jobs: Iterable[JobFile]) -> list[JobFile]:
    return sorted(jobs, key=lambda job: (job.started, job.file))


def _make_device_counter(reader: RunReader) -> Callable[[Record | Attempt], int | None]:
    """Return a function that counts the devices of a job; an attempt has as many as a finished segment of its model."""
    processes = {
        record.instance["model"]: record.counts.get("world_size") for record in _sort_by_start(reader.segments())
    }

    def count_job_devices(job: Record | Attempt) -> int | None:
        if job.step != SEGMENT_STEP:
            return int(job.step in ("evaluate.suites", "evaluate.baselines"))
        own: int | None = job.counts.get("world_size") if isinstance(job, Record) else None
        return own or processes.get(job.instance["model"])

    return count_job_devices


def summarize_step_usage(reader: RunReader) -> Consumption:
    """Return the time of every step in the order of the pipeline, lost attempts among it, and of all together.

    A job that reused the outputs of another one counts with its own short time.
    """
    own = {record.attempt for record in reader.records}
    lost = find_lost_attempts(reader)
    lost_jobs = [one.attempt for one in lost]
    reused = valid_attempts(reader) - own
    others = [attempt for attempt in reader.attempts if f"{attempt.name}.json" in reused]
    steps: dict[str, StepUsage] = {}
    total = StepUsage("all attempts")
    lost_files = {job.file for job in lost_jobs}
    devices = _make_device_counter(reader)
    jobs: list[Record | Attempt] = [*reader.records, *others, *lost_jobs]
    for job in _sort_by_start(jobs):
        for use in (steps.setdefault(job.step, StepUsage(job.step)), total):
            use.add(job, is_lost=job.file in lost_files, devices=devices(job))
    return Consumption([*steps.values()], total, lost)
