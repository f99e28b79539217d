"""One figure of a run's report: its value, how it is known, and the proof behind it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.hashing import sha256_of
from pipeline.core.records import FileEntry, Record, load_records, producers
from pipeline.energy.energy_accounting import Figure, read_energy_accounting
from pipeline.provenance.contents import flat
from pipeline.provenance.trace import trace

SAME = 1e-9  # of a number that was written as text and read again


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
    """The figures of a run's report by their names."""
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
    """What a figure is, how it is known, whether its proof holds, and the lineage of what it comes from, as lines."""
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
        unit += f" ({Figure(joules=float(figure.value)).value})"  # as the page has them, such as 3.76 Wh
    lines = [f"{figure.figure}: {figure.label}", f"  {figure.value}{unit}, {figure.how}"]
    lines += [f"  command: {figure.command}"] if figure.command else []
    records = load_records(run_directory)
    made = producers(records)
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
    if sha256_of(file) != recorded:
        return f"ALTERED: {who} says {recorded}"
    return "whose bytes are those of its record" if path in made else "whose bytes are those that a job of the run read"


def _numbers(file: Path) -> dict[str, str]:
    """The leaves of a JSON file by their keys; those of JSON lines have the number of their line before them."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".jsonl":
        return dict(flat(json.loads(text)))
    lines = enumerate(text.splitlines(), 1)
    return {f"line {number}: {key}": leaf for number, line in lines for key, leaf in flat(json.loads(line))}


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
        return abs(float(text) - value) <= SAME * abs(value)
    except ValueError:
        return False
