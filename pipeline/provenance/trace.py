"""Lineage by records: a file back to raw data and licenses, a source forward to its derivatives, a report's figure.

A job of a unit derives from the source of that unit; any other job derives from a source if one of its inputs does. So
texts of other sources that were only compared with a source for copies do not count.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pipeline import layout
from pipeline.core.archived_run_files import FileStore
from pipeline.core.display_text import pluralize
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_command_lines import compress_numbered_paths
from pipeline.core.job_records import Attempt, FileEntry, Record, load_records, map_producers, read_job_files
from pipeline.core.settings import Pretrained
from pipeline.energy.run_energy_report_reader import (
    JOULE,
    EnergyAccounting,
    EnergyFigure,
    read_energy_accounting,
    sum_energy,
)
from pipeline.provenance.content_differences import flatten_json
from pipeline.provenance.crate_graph import format_license_and_rights, read_source_description

SHOWN_FILES = 6
INDENT = "  "
SHOWN_PATHS = 4
COMMAND_CHARACTERS = 60  # up to the settings, which fill screens
STAGE_ORDER = ("sources", "corpus", "opt_out", "tokenizer", "tokens", "pretrain", "evaluate", "report", "provenance")
RELATIVE_TOLERANCE = 1e-9  # of a number that was written as text and read again


def _read_pretrained_models(records: list[Record], step: str, key: str) -> dict[str, Pretrained]:
    """Return the models that the settings of a step name, which have the licenses of today; none without its record."""
    record = next((record for record in records if record.step == step), None)
    models = (record.settings.get(key) or {}) if record else {}
    return {name: Pretrained.model_validate(model) for name, model in models.items()}


class _FileLineage:
    """Writes the tree of jobs behind a file; a job that occurs again is only referred to."""

    def __init__(self, run_directory: Path, records: list[Record], whole_commands: bool) -> None:
        self.run_directory = run_directory
        self.whole_commands = whole_commands
        self.made = map_producers(records)
        self.pretrained = _read_pretrained_models(records, "report.page", "pretrained")
        self.classifiers = _read_pretrained_models(records, "provenance.crate", "classifiers")
        self.account: EnergyAccounting | None = read_energy_accounting(run_directory)
        self.attempts: dict[tuple[object, ...], list[Attempt]] = {}
        files = FileStore(run_directory).find_all(layout.ATTEMPT)
        attempts, self.problems = read_job_files(Attempt, files, strict=True)
        for attempt in attempts:
            self.attempts.setdefault(_job_key(attempt), []).append(attempt)
        self.lines: list[str] = []
        self.written: dict[str, Record] = {}
        self.licenses: dict[str, str] = {}

    def add_line(self, depth: int, text: str) -> None:
        self.lines.append(INDENT * depth + text)

    def energy(self, record: Record) -> EnergyFigure:
        """Return the energy of the attempt that computed a job's outputs, from the report's energy accounting."""
        return self.account.attempt_energy(record.computing_attempt_file_name) if self.account else EnergyFigure()

    def lost_attempts(self, record: Record) -> list[tuple[Attempt, EnergyFigure]]:
        """Return the attempts at a job that failed, were refused or were killed, with their energy."""
        names = {record.attempt, record.computing_attempt_file_name}
        return [
            (attempt, self.account.attempt_energy(Path(attempt.file).name) if self.account else EnergyFigure())
            for attempt in self.attempts.get(_job_key(record), [])
            if Path(attempt.file).name not in names and attempt.status != "finished"
        ]

    def format_energy(self, figure: EnergyFigure) -> str:
        return figure.text(JOULE) if self.account else "not known before the report is written"

    def write_job(self, record: Record, depth: int) -> None:
        """Write a job, its inputs, and below each input the job that made it."""
        if record.file in self.written:
            self.add_line(depth, f"made by {record.title}, see above")
            return
        self.written[record.file] = record
        self.add_line(depth, f"made by {record.title}")
        self.add_line(depth + 1, f"record: {record.file}{f', in {record.archive}' if record.archive else ''}")
        command = shlex.join(record.full_command)
        is_cut = len(command) > COMMAND_CHARACTERS and not self.whole_commands
        self.add_line(depth + 1, f"command: {command[:COMMAND_CHARACTERS]} …" if is_cut else f"command: {command}")
        self.add_line(depth + 1, f"code: {record.code_version}, environment: {record.environment_version}")
        self.add_line(depth + 1, f"energy: {self.format_energy(self.energy(record))}")
        for attempt, figure in self.lost_attempts(record):
            why = f": {attempt.error.splitlines()[0]}" if attempt.error else ""
            state = "killed" if attempt.status == "running" else attempt.status
            energy = self.format_energy(figure)
            self.add_line(
                depth + 1,
                f"lost attempt {attempt.file}: {state} after {attempt.wall_seconds:g} s{why}; energy: {energy}",
            )
        groups: dict[str, list[FileEntry]] = {}
        for entry in record.inputs:
            maker = self.made[entry.path][0].file if entry.path in self.made else ""
            groups.setdefault(maker, []).append(entry)
        for maker, entries in sorted(groups.items()):
            self.write_inputs(record, entries, depth + 1)
            if maker:
                self.write_job(self.made[entries[0].path][0], depth + 2)

    def write_inputs(self, record: Record, entries: list[FileEntry], depth: int) -> None:
        """Write the files from one job that another job read; raw files with the license of their source."""
        for entry in entries[:SHOWN_FILES]:
            license = self.describe_job_license(record) if entry.is_outside_run else ""
            self.add_line(depth, f"read {entry.path} (sha256 {entry.sha256[:16]}, {entry.bytes} bytes){license}")
        if len(entries) > SHOWN_FILES:
            self.add_line(depth, f"read {len(entries) - SHOWN_FILES} more files with them")

    def describe_job_license(self, record: Record) -> str:
        """Return source and license of a job's raw files or of an imported model; empty for other jobs."""
        if record.step == "pretrain.adopt" and (taken := self.pretrained.get(str(record.instance["model"]))):
            self.licenses[f"model {taken.display_name}"] = taken.license
            return f", model {taken.display_name}, license {taken.license}"
        if record.step == "corpus.classify":
            used = self.classifiers.get(f"{record.instance['corpus']}/{record.instance['classifier']}")
            if used is None:  # no crate yet
                return ""
            self.licenses[f"classifier {used.display_name}"] = used.license
            return f", classifier {used.display_name}, license {used.license}"
        name = str(record.instance.get("source", ""))
        manifest = layout.MANIFEST.path(self.run_directory, source=name)
        if not name or not manifest.is_file():
            return ""
        license = self.licenses[f"source {name}"] = format_license_and_rights(read_source_description(manifest))
        return f", source {name}, license {license}"


def _job_key(one: Attempt | Record) -> tuple[object, ...]:
    return one.step, *sorted(one.instance.items())


def _find_inside(path: str, files: Iterable[str]) -> list[str]:
    return sorted(name for name in files if name == path or name.startswith(f"{path}/"))


class RunTracer:
    """Traces files, sources and figures of one run, whose records are read once.

    Args:
        run_directory: the folder of the run.
        whole_commands: whether the lineage of a file shows command lines with their settings and files.
    """

    def __init__(self, run_directory: Path, *, whole_commands: bool = False) -> None:
        self.run_directory = run_directory
        self.whole_commands = whole_commands

    @cached_property
    def records(self) -> list[Record]:
        """The records of the run.

        Raises:
            InputError: the run has none, or one of them is broken.
        """
        return load_records(self.run_directory)

    def trace(self, what: str) -> list[str]:
        """Return the lineage of a file, a source or a figure as lines.

        Raises:
            InputError: the run has none of that name.
        """
        if "/" in what or _find_inside(self._relative_path(what), map_producers(self.records)):
            return self.trace_file(what)
        if layout.SOURCE.path(self.run_directory, source=what).is_dir():
            return self.trace_source(what)
        return self.trace_figure(what)

    def _relative_path(self, file: str) -> str:
        """Return a path as records name it, from a path below the run or below the working directory."""
        path, run = Path(file), self.run_directory
        if path.is_absolute() or (not (run / path).exists() and path.exists()):
            path = path.absolute()
            if path.is_relative_to(run.absolute()):
                return path.relative_to(run.absolute()).as_posix()
        return path.as_posix()

    def trace_file(self, file: str) -> list[str]:
        """Return the lineage of a file or folder as an indented tree, then its sources and its energy in all.

        Raises:
            InputError: no record has the file.
        """
        lineage = _FileLineage(self.run_directory, self.records, self.whole_commands)
        path = self._relative_path(file)
        inside = _find_inside(path, lineage.made)
        if not inside:
            raise InputError(f"no record in {self.run_directory / layout.RECORDS} has {file}: give a file of the run")
        makers = {lineage.made[name][0].file: lineage.made[name][0] for name in inside}
        lineage.add_line(0, path if inside != [path] else f"{path} (sha256 {lineage.made[path][1].sha256})")
        for _, record in sorted(makers.items()):
            lineage.write_job(record, 1)
        jobs = lineage.written.values()
        by_attempt = {record.computing_attempt_file_name: lineage.energy(record) for record in jobs}
        unknown = sum(not lineage.energy(record).is_known for record in jobs)
        without = f"; {unknown} of the jobs without a reading" if lineage.account and unknown else ""
        energy = lineage.format_energy(sum_energy(by_attempt.values()))
        lineage.add_line(0, f"behind it: {pluralize(len(jobs), 'job')}, energy: {energy}{without}")
        lost = [entry for record in jobs for entry in lineage.lost_attempts(record)]
        lineage.lines += [f"not counted: {problem}" for problem in lineage.problems.values()]
        if lost:
            energy = lineage.format_energy(sum_energy(figure for _, figure in lost))
            lineage.add_line(0, f"lost on the way: {pluralize(len(lost), 'attempt')}, energy: {energy}")
        lineage.lines += [f"{name}: {license}" for name, license in sorted(lineage.licenses.items())]
        return lineage.lines

    def trace_source(self, source: str) -> list[str]:
        """Return every file that derives from a source, by step, for a removal."""
        derived = _find_derived_jobs(self.records, source)
        manifest = layout.MANIFEST.path(self.run_directory, source=source)
        lines = [f"source {source}"]
        if manifest.is_file():
            described = read_source_description(manifest)
            rights = described.get("rights") or {}
            lines.append(f"  license {described.get('license', 'not stated')}, language {described.get('language')}")
            lines += [f"  {name}: {rights.get(name) or 'not stated'}" for name in ("basis", "holder", "url")]
        own = (record for record in derived if record.instance.get("source") == source)
        raw = sorted(
            {entry.path for record in own for entry in record.inputs if entry.is_outside_run and entry.name == "files"}
        )
        lines += [f"  raw file {path}" for path in raw[:SHOWN_PATHS]]
        lines += [f"  and {len(raw) - SHOWN_PATHS} more raw files"] if len(raw) > SHOWN_PATHS else []
        for stage in STAGE_ORDER:
            of_stage = [record for record in derived if record.step.startswith(f"{stage}.")]
            for record in sorted(of_stage, key=lambda record: record.file):
                counts = record.counts if "source" in record.instance else {}
                kept = counts.get("documents_out")
                documents = f": {kept} of {counts.get('documents_in')} documents kept" if kept is not None else ""
                lines.append(f"{record.title}{documents}")
                paths = compress_numbered_paths(sorted(entry.path for entry in record.outputs))
                lines += [f"  {path}" for path in paths[:SHOWN_PATHS]]
                lines += [f"  and {len(paths) - SHOWN_PATHS} more"] if len(paths) > SHOWN_PATHS else []
        files = sum(len(record.outputs) for record in derived)
        return [
            *lines,
            f"{files} files of {len(derived)} jobs derive from {source} ({layout.RECORDS})",
            "files of these jobs elsewhere (scratch, private texts, other runs) are searched by opt_out.remains",
        ]

    def trace_figure(self, name: str) -> list[str]:
        """Return value and method of a figure, whether its files are unaltered, and the lineage of each of them.

        Raises:
            InputError: the report has no such figure.
        """
        figures = read_figures(self.run_directory)
        if name not in figures:
            near = difflib.get_close_matches(name, figures, n=3, cutoff=0.4)
            raise InputError(
                f"{name} is no file, no figure and no source of {self.run_directory}: "
                f"{'did you mean ' + ' or '.join(near) if near else f'{layout.KEY_FIGURES} lists the figures'}"
            )
        figure = figures[name]
        unit = f" {figure.unit}" if figure.unit else ""
        if figure.unit == "J" and isinstance(figure.value, int | float):
            unit += f" ({EnergyFigure(joules=float(figure.value)).value})"  # as the page has them, such as 3.76 Wh
        lines = [f"{figure.figure}: {figure.label}", f"  {figure.value}{unit}, {figure.how}"]
        lines += [f"  command: {figure.command}"] if figure.command else []
        made = map_producers(self.records)
        read = {entry.path: entry.sha256 for record in self.records for entry in record.inputs}
        lines += [
            f"  from {path}, {_describe_file_state(self.run_directory, path, made, read)}" for path in figure.sources
        ]
        lines += [f"  recomputed: {line}" for line in _locate_value(self.run_directory, figure)]
        return [*lines, *(line for path in figure.sources if path in made for line in self.trace_file(path))]


def _find_derived_jobs(records: Iterable[Record], source: str) -> list[Record]:
    """Return the jobs whose outputs derive from a source, in the order in which they ended."""
    files: set[str] = set()
    derived = []
    for record in sorted(records, key=lambda record: (record.ended, record.file)):
        own = record.instance.get("source")
        if own == source if own is not None else any(entry.path in files for entry in record.inputs):
            derived.append(record)
            files.update(entry.path for entry in record.outputs)
            files.add(record.file)
    return derived


class ReportFigure(BaseModel):
    """A number of the report; `sources` are the files, relative to the run, that it was computed from."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    figure: str
    label: str
    value: Any
    unit: str | None = None
    how: Literal["measured", "estimated", "stated", "counted", "computed"]
    sources: list[str] = Field(alias="from")
    command: str | None = None


def read_figures(run_directory: Path) -> dict[str, ReportFigure]:
    """Return the figures of a run's report by name.

    Raises:
        InputError: the report lists none, or the list is broken.
    """
    path = run_directory / layout.KEY_FIGURES
    if not path.is_file():
        raise InputError(
            f"{path} is missing, which lists the figures of the report: run `snakemake report`, or trace a file"
        )
    try:
        figures = TypeAdapter(list[ReportFigure]).validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        raise InputError(
            f"{path} is no list of figures: the field {field}: {problem['msg']}: make the report again"
        ) from None
    return {figure.figure: figure for figure in figures}


def _describe_file_state(
    run_directory: Path, path: str, made: Mapping[str, tuple[Record, FileEntry]], read: Mapping[str, str]
) -> str:
    """Return whether a file of a figure is here, with the bytes that its record or the job that read it has."""
    file = run_directory / path
    if file.is_dir():
        return f"a folder of {len(list(file.iterdir()))} files"
    if not file.is_file():
        return "missing: nothing can be recomputed from it"
    if path in made:
        recorded, who = made[path][1].sha256, "its record"
    elif path in read:
        recorded, who = read[path], "the job that read it"
    else:
        return "in no record"
    if hash_file(file) != recorded:
        return f"ALTERED: {who} says {recorded}"
    return "unaltered by its record" if path in made else "unaltered by the record of the job that read it"


def _flatten_file(file: Path) -> dict[str, str]:
    """Return the leaves of a JSON file by key; keys of JSON Lines begin with the number of the line."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".jsonl":
        return dict(flatten_json(json.loads(text)))
    lines = enumerate(text.splitlines(), 1)
    return {f"line {number}: {key}": leaf for number, line in lines for key, leaf in flatten_json(json.loads(line))}


def _locate_value(run_directory: Path, figure: ReportFigure) -> Iterable[str]:
    """Yield the keys that have a figure's value in its files and, for the energy of a run, the sum of its parts."""
    if not isinstance(figure.value, int | float) or isinstance(figure.value, bool):
        return
    is_located = False
    for path in figure.sources:
        file = run_directory / path
        if file.suffix not in (".json", ".jsonl") or not file.is_file():
            continue
        try:
            numbers = _flatten_file(file)
        except ValueError:
            yield f"{path} is not valid JSON"
            continue
        keys = [key for key, text in numbers.items() if _equals_number(text, float(figure.value))]
        if keys:
            is_located = True
            yield f"{path} has it under {', '.join(keys[:3])}{' and others' if len(keys) > 3 else ''}"
    account = read_energy_accounting(run_directory) if figure.figure in ("energy.facility", "energy.total") else None
    if account:
        parts = {name: getattr(account, name).joules for name in ("finished", "lost", "idle", "snakemake")}
        terms = " + ".join(f"{joules:.3f} J {name}" for name, joules in parts.items())
        yield f"{terms} = {sum(parts.values()):.3f} J"
        if figure.figure == "energy.facility":
            yield f"times the PUE in the settings of report.page = {figure.value:.3f} J"
    elif not is_located:
        yield "no key of these files has this very number: it is computed from several, by the command"


def _equals_number(text: str, value: float) -> bool:
    try:
        return abs(float(text) - value) <= RELATIVE_TOLERANCE * abs(value)
    except ValueError:
        return False
