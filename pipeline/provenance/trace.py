"""Lineage by records: of a file back to raw data and licences, and of a source forward to all that has it inside.

A job of a unit has a source inside where it is a unit of that source; any other job where it read something that has.
So a text of another source, which was compared with this one for copies, is not among them.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pipeline import layout
from pipeline.core.command_lines import compress_numbered_paths
from pipeline.core.errors import InputError
from pipeline.core.formatting import format_count
from pipeline.core.hashing import hash_file
from pipeline.core.records import Attempt, FileEntry, Record, load_records, map_producers, read_job_files
from pipeline.core.settings import Pretrained
from pipeline.energy.energy_accounting import JOULE, EnergyAccounting, EnergyFigure, read_energy_accounting, sum_energy
from pipeline.provenance.content_differences import flatten_json
from pipeline.provenance.crate_graph import format_license, read_source_description

SHOWN_FILES = 6
INDENT = "  "
SHOWN_PATHS = 4
STAGE_ORDER = ("sources", "corpus", "opt_out", "tokenizer", "tokens", "pretrain", "evaluate", "report", "provenance")
RELATIVE_TOLERANCE = 1e-9  # of a number that was written as text and read again


class _Lineage:
    """Writes the tree of jobs behind a file; each job is told once and then referred to."""

    def __init__(self, run_directory: Path) -> None:
        self.run_directory = run_directory
        records = load_records(run_directory)
        self.made = map_producers(records)
        page = next((record for record in records if record.step == "report.page"), None)
        taken = (page.settings.get("pretrained") or {}) if page else {}
        self.pretrained = {name: Pretrained.model_validate(model) for name, model in taken.items()}
        self.account: EnergyAccounting | None = read_energy_accounting(run_directory)
        self.attempts: dict[tuple[object, ...], list[Attempt]] = {}
        attempts, self.problems = read_job_files(Attempt, layout.ATTEMPT.glob(run_directory), strict=True)
        for attempt in attempts:
            self.attempts.setdefault(_job(attempt), []).append(attempt)
        self.lines: list[str] = []
        self.told: dict[str, Record] = {}
        self.licences: dict[str, str] = {}

    def write(self, depth: int, text: str) -> None:
        self.lines.append(INDENT * depth + text)

    def energy(self, record: Record) -> EnergyFigure:
        """The energy of what computed a job's outputs, by the account of the run's report."""
        return self.account.attempt_energy(record.computed_by) if self.account else EnergyFigure()

    def lost(self, record: Record) -> list[tuple[Attempt, EnergyFigure]]:
        """The attempts at a job that failed, were refused or killed, with their energy."""
        names = {record.attempt, record.computed_by}
        return [
            (attempt, self.account.attempt_energy(Path(attempt.file).name) if self.account else EnergyFigure())
            for attempt in self.attempts.get(_job(record), [])
            if Path(attempt.file).name not in names and attempt.status != "finished"
        ]

    def told_energy(self, figure: EnergyFigure) -> str:
        return figure.text(JOULE) if self.account else "not known before the report is written"

    def job(self, record: Record, depth: int) -> None:
        """Tell one job, and before what it read the jobs behind that."""
        if record.file in self.told:
            self.write(depth, f"made by {record.title}, told above")
            return
        self.told[record.file] = record
        self.write(depth, f"made by {record.title}")
        self.write(depth + 1, f"record: {record.file}")
        self.write(depth + 1, f"command: {shlex.join(record.full_command)}")
        self.write(depth + 1, f"code: {record.code_version}, environment: {record.environment_version}")
        self.write(depth + 1, f"energy: {self.told_energy(self.energy(record))}")
        for attempt, figure in self.lost(record):
            why = f": {attempt.error.splitlines()[0]}" if attempt.error else ""
            state = "killed" if attempt.status == "running" else attempt.status
            energy = self.told_energy(figure)
            self.write(
                depth + 1,
                f"lost attempt {attempt.file}: {state} after {attempt.wall_seconds:g} s{why}; energy: {energy}",
            )
        groups: dict[str, list[FileEntry]] = {}
        for entry in record.inputs:
            maker = self.made[entry.path][0].file if entry.path in self.made else ""
            groups.setdefault(maker, []).append(entry)
        for maker, entries in sorted(groups.items()):
            self.inputs(record, entries, depth + 1)
            if maker:
                self.job(self.made[entries[0].path][0], depth + 2)

    def inputs(self, record: Record, entries: list[FileEntry], depth: int) -> None:
        """Tell the files of one maker that a job read; raw files with their source's licence."""
        for entry in entries[:SHOWN_FILES]:
            licence = self.licence(record) if entry.is_outside else ""
            self.write(depth, f"read {entry.path} (sha256 {entry.sha256[:16]}, {entry.bytes} bytes){licence}")
        if len(entries) > SHOWN_FILES:
            self.write(depth, f"read {len(entries) - SHOWN_FILES} more files with them")

    def licence(self, record: Record) -> str:
        """The source and licence of a job's raw files, or of a model's, in words; nothing for others."""
        if record.step == "pretrain.adopt" and (taken := self.pretrained.get(str(record.instance["model"]))):
            self.licences[f"model {taken.title}"] = taken.license
            return f", model {taken.title}, licence {taken.license}"
        name = str(record.instance.get("source", ""))
        manifest = layout.MANIFEST.path(self.run_directory, source=name)
        if not name or not manifest.is_file():
            return ""
        licence = self.licences[f"source {name}"] = format_license(read_source_description(manifest))
        return f", source {name}, licence {licence}"


def _job(one: Attempt | Record) -> tuple[object, ...]:
    return one.step, *sorted(one.instance.items())


def is_of_the_run(run_directory: Path, file: str) -> bool:
    """Whether a record says where a file or folder comes from."""
    return bool(_inside(_relative(run_directory, file), map_producers(load_records(run_directory))))


def _inside(path: str, files: Iterable[str]) -> list[str]:
    return sorted(name for name in files if name == path or name.startswith(f"{path}/"))


def _relative(run_directory: Path, file: str) -> str:
    """The file's path as records name it, from a path below the run or from the working folder."""
    path = Path(file)
    if path.is_absolute() or (not (run_directory / path).exists() and path.exists()):
        path = path.absolute()
        if path.is_relative_to(run_directory.absolute()):
            return path.relative_to(run_directory.absolute()).as_posix()
    return path.as_posix()


def trace(run_directory: Path, file: str) -> list[str]:
    """The lineage of a file as the lines of an indented tree, and its sources and joules summed up at the end.

    A directory, such as a milestone, is traced by the job that made it.
    """
    lineage = _Lineage(run_directory)
    path = _relative(run_directory, file)
    inside = _inside(path, lineage.made)
    if not inside:
        raise InputError(
            f"no record in {run_directory / layout.RECORDS} says where {file} comes from: give a file of the run"
        )
    makers = {lineage.made[name][0].file: lineage.made[name][0] for name in inside}
    lineage.write(0, path if inside != [path] else f"{path} (sha256 {lineage.made[path][1].sha256})")
    for _, record in sorted(makers.items()):
        lineage.job(record, 1)
    by_attempt = {record.computed_by: lineage.energy(record) for record in lineage.told.values()}
    unknown = sum(not lineage.energy(record).is_known for record in lineage.told.values())
    without = f"; {unknown} of the jobs without a reading" if lineage.account and unknown else ""
    energy = lineage.told_energy(sum_energy(by_attempt.values()))
    lineage.write(0, f"behind it: {format_count(len(lineage.told), 'job')}, energy: {energy}{without}")
    lost = [entry for record in lineage.told.values() for entry in lineage.lost(record)]
    lineage.lines += [f"not counted: {problem}" for problem in lineage.problems.values()]
    if lost:
        energy = lineage.told_energy(sum_energy(figure for _, figure in lost))
        lineage.write(0, f"lost on the way: {format_count(len(lost), 'attempt')}, energy: {energy}")
    lineage.lines += [f"{name}: {licence}" for name, licence in sorted(lineage.licences.items())]
    return lineage.lines


def is_source(run_directory: Path, name: str) -> bool:
    """Whether the run has a source of that name."""
    return "/" not in name and layout.SOURCE.path(run_directory, source=name).is_dir()


def holders(records: Iterable[Record], source: str) -> list[Record]:
    """The jobs whose outputs have a source inside, in the order in which they ended."""
    inside: set[str] = set()
    found = []
    for record in sorted(records, key=lambda record: (record.ended, record.file)):
        own = record.instance.get("source")
        given = own == source if own is not None else any(entry.path in inside for entry in record.inputs)
        if given:
            found.append(record)
            inside.update(entry.path for entry in record.outputs)
            inside.add(record.file)
    return found


def trace_source(run_directory: Path, source: str) -> list[str]:
    """Everything that has a source inside, as lines by step, for a removal.

    Raises:
        InputError: the run has no records.
    """
    found = holders(load_records(run_directory), source)
    manifest = layout.MANIFEST.path(run_directory, source=source)
    lines = [f"source {source}"]
    if manifest.is_file():
        described = read_source_description(manifest)
        rights = described.get("rights") or {}
        lines.append(f"  licence {described.get('license', 'not stated')}, language {described.get('language')}")
        lines += [f"  {name}: {rights.get(name) or 'not stated'}" for name in ("basis", "holder", "url")]
    own = (record for record in found if record.instance.get("source") == source)
    raw = sorted(
        {entry.path for record in own for entry in record.inputs if entry.is_outside and entry.name == "files"}
    )
    lines += [f"  raw file {path}" for path in raw[:SHOWN_PATHS]]
    lines += [f"  and {len(raw) - SHOWN_PATHS} more raw files"] if len(raw) > SHOWN_PATHS else []
    for room in STAGE_ORDER:
        of_room = [record for record in found if record.step.startswith(f"{room}.")]
        for record in sorted(of_room, key=lambda record: record.file):
            kept = record.counts.get("documents_out") if "source" in record.instance else None
            documents = f": {kept} of {record.counts.get('documents_in')} documents kept" if kept is not None else ""
            lines.append(f"{record.title}{documents}")
            paths = compress_numbered_paths(sorted(entry.path for entry in record.outputs))
            lines += [f"  {path}" for path in paths[:SHOWN_PATHS]]
            lines += [f"  and {len(paths) - SHOWN_PATHS} more"] if len(paths) > SHOWN_PATHS else []
    files = sum(len(record.outputs) for record in found)
    lines.append(
        f"{files} files of {len(found)} jobs have {source} inside, or were computed from what has ({layout.RECORDS})"
    )
    lines.append(
        "what the listed jobs wrote elsewhere (scratch, private texts, other runs) is searched by opt_out.remains"
    )
    return lines


class ReportFigure(BaseModel):
    """A number of the report: `sources` are the files, relative to the run, that it comes from."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    figure: str
    label: str
    value: Any
    unit: str | None = None
    how: Literal["measured", "estimated", "stated", "counted", "computed"]
    sources: list[str] = Field(alias="from")
    command: str | None = None


def read_figures(run_directory: Path) -> dict[str, ReportFigure]:
    """The figures of a run's report by their names.

    Raises:
        InputError: the report lists none, or the list is broken.
    """
    path = run_directory / layout.KEY_FIGURES
    if not path.is_file():
        raise InputError(
            f"{path} is missing, which lists the figures of the report: run `snakemake report`, or trace a file"
        )
    try:
        found = TypeAdapter(list[ReportFigure]).validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        raise InputError(
            f"{path} is no list of figures: the field {field}: {problem['msg']}: make the report again"
        ) from None
    return {figure.figure: figure for figure in found}


def trace_figure(run_directory: Path, name: str) -> list[str]:
    """What a figure is, how it is known, whether its proof holds, and the lineage of what it comes from, as lines.

    Raises:
        InputError: the report has no such figure.
    """
    figures = read_figures(run_directory)
    if name not in figures:
        near = difflib.get_close_matches(name, figures, n=3, cutoff=0.4)
        raise InputError(
            f"{name} is no file, no figure and no source of {run_directory}: "
            f"{'did you mean ' + ' or '.join(near) if near else f'{layout.KEY_FIGURES} lists the figures'}"
        )
    figure = figures[name]
    unit = f" {figure.unit}" if figure.unit else ""
    if figure.unit == "J" and isinstance(figure.value, int | float):
        unit += f" ({EnergyFigure(joules=float(figure.value)).value})"  # as the page has them, such as 3.76 Wh
    lines = [f"{figure.figure}: {figure.label}", f"  {figure.value}{unit}, {figure.how}"]
    lines += [f"  command: {figure.command}"] if figure.command else []
    records = load_records(run_directory)
    made = map_producers(records)
    read = {entry.path: entry.sha256 for record in records for entry in record.inputs}
    lines += [f"  from {path}, {_state(run_directory, path, made, read)}" for path in figure.sources]
    lines += [f"  recomputed: {line}" for line in _recomputed(run_directory, figure)]
    for path in figure.sources:
        if path in made:
            lines += trace(run_directory, path)
    return lines


def _state(
    run_directory: Path, path: str, made: Mapping[str, tuple[Record, FileEntry]], read: Mapping[str, str]
) -> str:
    """Whether what a figure comes from is here, and still is what its record, or the job that read it, says."""
    file = run_directory / path
    if file.is_dir():
        return f"a folder of {len(list(file.iterdir()))} files"
    if not file.is_file():
        return "which is missing: nothing can be recomputed from it"
    if path in made:
        recorded, who = made[path][1].sha256, "its record"
    elif path in read:
        recorded, who = read[path], "the job that read it"
    else:
        return "which no record lists"
    if hash_file(file) != recorded:
        return f"ALTERED: {who} says {recorded}"
    return "whose bytes are those of its record" if path in made else "whose bytes are those that a job of the run read"


def _numbers(file: Path) -> dict[str, str]:
    """The leaves of a JSON file by their keys; those of JSON lines have the number of their line before them."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".jsonl":
        return dict(flatten_json(json.loads(text)))
    lines = enumerate(text.splitlines(), 1)
    return {f"line {number}: {key}": leaf for number, line in lines for key, leaf in flatten_json(json.loads(line))}


def _recomputed(run_directory: Path, figure: ReportFigure) -> Iterable[str]:
    """Where the number stands in what it comes from, and for the energy of the run that its parts add up to it."""
    if not isinstance(figure.value, int | float) or isinstance(figure.value, bool):
        return
    found = False
    for path in figure.sources:
        file = run_directory / path
        if file.suffix not in (".json", ".jsonl") or not file.is_file():
            continue
        try:
            numbers = _numbers(file)
        except ValueError:
            yield f"{path} is not valid JSON"
            continue
        keys = [key for key, text in numbers.items() if _is_number(text, float(figure.value))]
        if keys:
            found = True
            yield f"{path} has it under {', '.join(keys[:3])}{' and others' if len(keys) > 3 else ''}"
    account = read_energy_accounting(run_directory) if figure.figure == "energy.total" else None
    if account:
        parts = {name: getattr(account, name).joules for name in ("finished", "lost", "idle", "snakemake")}
        told = " + ".join(f"{joules:.3f} J {name}" for name, joules in parts.items())
        yield f"{told} = {sum(parts.values()):.3f} J"
    elif not found:
        yield "no key of these files has this very number: it is computed from several, by the command"


def _is_number(text: str, value: float) -> bool:
    try:
        return abs(float(text) - value) <= RELATIVE_TOLERANCE * abs(value)
    except ValueError:
        return False
