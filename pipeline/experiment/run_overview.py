"""List all runs below a folder of results, with what is set otherwise and measured, and write them to MLflow."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import layout
from pipeline.core.archived_run_files import FileStore
from pipeline.core.display_text import align_columns, escape_to_one_line, pluralize, truncate_text
from pipeline.core.errors import InputError
from pipeline.core.job_records import SEGMENT_STEP, Record, load_records
from pipeline.energy.run_energy_report_reader import JOULE, EnergyUnit, choose_energy_unit
from pipeline.job.invocation_snapshots import read_newest_snapshot
from pipeline.provenance.content_differences import flatten_json
from pipeline.provenance.trace import ReportFigure, read_figures

NOTHING = ""
SHOWN_CHARACTERS = 60
"""Of a setting: a longer one would widen its column in every row."""
LABELED = ("estimated", "stated")
"""Labels that are shown with a figure; all others are measured, counted or computed."""
INTERVAL_NOTE = (
    "Figures are shown without their intervals, which are in each run's report; `polder compare A B` shows "
    "whether one of two models really answers better, and report/experiments/NAME.html which cells really differ."
)
MODEL_FIGURE = re.compile(r"model\.(?P<model>[^.]+)\.(?P<key>\w+)|(?P<energy>energy)\.model\.(?P<trained>[^.]+)")
MODEL_COLUMNS = {
    "parameters": "parameters",
    "active_parameters": "parameters that a token uses",
    "steps": "steps",
    "tokens_seen": "tokens seen",
    "validation_loss": "validation loss, nats per token",
    "validation_bits_per_byte": "validation loss, bits per byte",
    "energy": "energy",
}
"""By the key of a model's figure, the head of its column."""


class RunSummary(NamedTuple):
    """A run: its last configuration by dotted keys, its figures, and its state."""

    settings: Mapping[str, str]
    figures: Mapping[str, ReportFigure]
    state: str


def find_runs_in_folder(results: Path) -> dict[str, RunSummary]:
    """Find the runs below a folder, or the run that it is, by their path within it.

    Raises:
        InputError: there is none.
    """
    if not results.exists():
        raise InputError(f"there is no folder {results}: name the folder of results, or run a configuration first")
    try:
        folders = list(_find_run_folders(results))
    except OSError as error:
        raise InputError(f"{error.filename or results} cannot be read: {error.strerror}") from None
    if not folders:
        raise InputError(f"there is no run in {results}: give the folder that holds the results of runs")
    return {path.relative_to(results).as_posix() if path != results else path.name: _read_run(path) for path in folders}


def run_folder(results: Path, name: str) -> Path:
    """Return the folder of a run that `find_runs_in_folder` names."""
    return results if layout.RECORDS.path(results).is_dir() else results / name


def find_last_segments(folder: Path) -> dict[str, Record]:
    """Return the record of the last segment of each model of a run, by the model's name, in order."""
    last: dict[str, Record] = {}
    for record in load_records(folder):
        if record.step == SEGMENT_STEP:
            model = str(record.instance["model"])
            last[model] = max(last.get(model, record), record, key=lambda one: int(one.instance["step"]))
    return dict(sorted(last.items()))


def _find_run_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders of runs, in order; no run is within another one."""
    if layout.RECORDS.path(folder).is_dir():
        yield folder
        return
    for below in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        yield from _find_run_folders(below)


def _read_run(folder: Path) -> RunSummary:
    """Read a run, without figures if its report cannot be read."""
    start = read_newest_snapshot(folder) or {}
    settings = dict(flatten_json(_key_sections_by_name(start["configuration"]))) if "configuration" in start else {}
    try:
        return RunSummary(settings, read_figures(folder), "with a report")
    except InputError:
        jobs = pluralize(len(FileStore(folder).find_all(layout.RECORD)), "job")
        broken = layout.KEY_FIGURES.path(folder).exists()
        return RunSummary(settings, {}, f"{jobs}, {'a report that cannot be read' if broken else 'no report'}")


def _key_sections_by_name(value: Any) -> Any:
    """Turn lists of named sections into mappings, so that an added source changes no other one's keys."""
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
        value = {str(item["name"]): item for item in value}
    return {key: _key_sections_by_name(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def format_runs(runs: Mapping[str, RunSummary]) -> list[str]:
    """Format a table with a column for each run: its state, the settings that differ, and figures but of models."""
    every = [run.settings for run in runs.values()]
    keys = sorted({key for settings in every for key in settings})
    differing = [key for key in keys if len({settings.get(key) for settings in every}) > 1 and key != "run.name"]
    every_figure = dict.fromkeys(name for run in runs.values() for name in run.figures)
    figures = [name for name in every_figure if not MODEL_FIGURE.fullmatch(name)]
    rows = [["", *runs], ["state", *(run.state for run in runs.values())]]
    rows += [
        [key, *(truncate_text(run.settings.get(key, NOTHING), SHOWN_CHARACTERS) for run in runs.values())]
        for key in differing
    ]
    rows += [_format_figure(name, [run.figures.get(name) for run in runs.values()]) for name in figures]
    return align_columns([[escape_to_one_line(cell) for cell in row] for row in rows])


def format_models(runs: Mapping[str, RunSummary]) -> list[str]:
    """Format a table with a row for each model of a report, cells of experiments included; none without models.

    Within a run the model with the lowest bits per byte is first.
    """
    rows: list[tuple[str, float, str, dict[str, ReportFigure]]] = []
    for run, summary in runs.items():
        models: dict[str, dict[str, ReportFigure]] = {}
        for name, figure in summary.figures.items():
            if match := MODEL_FIGURE.fullmatch(name):
                model, key = match["model"] or match["trained"], match["key"] or match["energy"]
                models.setdefault(model, {})[key] = figure
        run_rows = [
            (run, min(_list_numbers([figures.get("validation_bits_per_byte")]), default=math.inf), model, figures)
            for model, figures in models.items()
        ]
        rows += sorted(run_rows, key=lambda row: row[1:3])
    if not rows:
        return []
    columns = {key: head for key, head in MODEL_COLUMNS.items() if any(key in figures for *_, figures in rows)}
    joules = _list_numbers(figures.get("energy") for *_, figures in rows)
    unit = choose_energy_unit(max(joules)) if joules else None
    heads = [f"{head}, {unit.name}" if key == "energy" and unit else head for key, head in columns.items()]
    table = [["model", *heads]]
    for run, _, model, figures in rows:
        cells = [_format_cell(figures.get(key), unit if key == "energy" else None) for key in columns]
        table.append([f"{run}/{model}", *cells])
    return align_columns([[escape_to_one_line(cell) for cell in row] for row in table])


def _list_numbers(figures: Iterable[ReportFigure | None]) -> list[float]:
    return [figure.value for figure in figures if figure and isinstance(figure.value, float | int)]


def _format_figure(name: str, figures: list[ReportFigure | None]) -> list[str]:
    """Return the row of a figure: name and unit, and the value of each run; joules in the unit of the report."""
    known = [figure for figure in figures if figure is not None]
    unit = next((figure.unit for figure in known), None)
    joules = _list_numbers(known) if unit == JOULE.name else []
    shown = choose_energy_unit(max(joules)) if joules else None
    unit = shown.name if shown else unit
    is_named = unit is None or name.endswith(f".{unit}")  # a score's metric is its unit
    return [name if is_named else f"{name}, {unit}", *(_format_cell(figure, shown) for figure in figures)]


def _format_cell(figure: ReportFigure | None, unit: EnergyUnit | None) -> str:
    if figure is None:
        return NOTHING
    value = figure.value / unit.size if unit and isinstance(figure.value, float | int) else figure.value
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f"{text} {figure.how}" if figure.how in LABELED else text
