"""List all runs below a folder of results: the settings that differ, and the figures of their reports."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.formatting import aligned, counted, printable
from pipeline.core.records import Record, load_records
from pipeline.experiment.mlflow_store import check_installed, keep, models_of
from pipeline.job.frozen import newest
from pipeline.provenance.contents import flat
from pipeline.provenance.trace import ReportFigure, read_figures

NOTHING = ""
SHOWN_CHARACTERS = 60
"""Of a setting: one long text would make its column that wide in every row."""
SAID = ("estimated", "stated")
"""How a figure is known, where it has to be said with it: all others are measured, counted or computed."""
UNCERTAIN = (
    "Figures stand here without their intervals, which each run's report has; `python -m pipeline compare A B` tells "
    "whether one of two models really answers better."
)


class RunSummary(NamedTuple):
    """A run: its configuration at its last start, by dotted keys, and its figures, or why there are none."""

    settings: Mapping[str, str]
    figures: Mapping[str, ReportFigure]
    state: str


def main(arguments: list[str]) -> int:
    """Print a column for each run below a folder: what is set otherwise in another one, and what its report says."""
    parser = argparse.ArgumentParser(prog="python -m pipeline runs", description=main.__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=Path("results"), help="a folder that holds runs")
    parser.add_argument("--mlflow", type=Path, metavar="FOLDER", help="a file store of MLflow to write models into")
    options = parser.parse_args(arguments)
    if options.mlflow:
        check_installed()
    runs = runs_below(options.results)
    print("\n".join([*runs_table(runs), "", UNCERTAIN]))
    if options.mlflow:
        print("\n".join(map(printable, ["", *keep_in_mlflow(options.mlflow, options.results, runs)])))
    return 0


def keep_in_mlflow(store: Path, results: Path, runs: Mapping[str, RunSummary]) -> Iterator[str]:
    """Write the finished models of the runs below a folder into a store of MLflow; yield a line for each run.

    Raises:
        InputError: the store cannot be written.
    """
    for name, run in runs.items():
        folder = folder_of(results, name)
        try:
            models = list(models_of(folder, run.settings, run.figures))
        except InputError as error:
            yield f"{name} is left out of MLflow: {error}"
            continue
        written = keep(store, folder.resolve().name, models)
        yield f"{name}: {counted(len(models), 'finished model')} in MLflow, {written} of them written now"


def runs_below(results: Path) -> dict[str, RunSummary]:
    """The runs below a folder, or the run that it is, by their path within it.

    Raises:
        InputError: there is none.
    """
    try:
        folders = list(_folders(results))
    except OSError as error:
        raise InputError(f"{error.filename or results} cannot be read: {error.strerror}") from None
    if not folders:
        raise InputError(f"there is no run in {results}: give the folder that holds the results of runs")
    return {path.relative_to(results).as_posix() if path != results else path.name: _run(path) for path in folders}


def folder_of(results: Path, name: str) -> Path:
    """The folder of a run that `runs_below` names."""
    return results if layout.RECORDS.path(results).is_dir() else results / name


def last_segments(folder: Path) -> dict[str, Record]:
    """The record of the last segment of each model of a run, by the model's name, in order."""
    last: dict[str, Record] = {}
    for record in load_records(folder):
        if record.step == "pretrain.segment":
            model = str(record.instance["model"])
            last[model] = max(last.get(model, record), record, key=lambda one: int(one.instance["step"]))
    return dict(sorted(last.items()))


def _folders(folder: Path) -> Iterator[Path]:
    """The folders of runs, in order; no run lies within another one."""
    if layout.RECORDS.path(folder).is_dir():
        yield folder
        return
    for below in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        yield from _folders(below)


def _run(folder: Path) -> RunSummary:
    """Read a run; one whose report cannot be read has no figures, so that it hides no other one."""
    jobs = counted(len(layout.RECORD.glob(folder)), "job")
    start = newest(folder) or {}
    settings = dict(flat(_by_name(start["configuration"]))) if "configuration" in start else {}
    try:
        return RunSummary(settings, read_figures(folder), f"{jobs}, with a report")
    except InputError:
        broken = layout.KEY_FIGURES.path(folder).exists()
        return RunSummary(settings, {}, f"{jobs}, {'a report that cannot be read' if broken else 'no report'}")


def _by_name(value: Any) -> Any:
    """A configuration whose lists of named sections are mappings: another source more moves no other one's keys."""
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
        value = {str(item["name"]): item for item in value}
    return {key: _by_name(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def runs_table(runs: Mapping[str, RunSummary]) -> list[str]:
    """Lines of a table with a column for each run: its state, settings that differ between them, and all figures."""
    every = [run.settings for run in runs.values()]
    keys = sorted({key for settings in every for key in settings})
    differing = [key for key in keys if len({settings.get(key) for settings in every}) > 1 and key != "run.name"]
    figures = {name: figure for run in runs.values() for name, figure in run.figures.items()}
    rows = [["", *runs], ["jobs", *(run.state for run in runs.values())]]
    rows += [[key, *(_shown(run.settings.get(key, NOTHING)) for run in runs.values())] for key in differing]
    rows += [
        [_label(figure), *(_cell(run.figures.get(name)) for run in runs.values())] for name, figure in figures.items()
    ]
    return aligned([[printable(cell) for cell in row] for row in rows])


def _shown(setting: str) -> str:
    return setting if len(setting) <= SHOWN_CHARACTERS else f"{setting[: SHOWN_CHARACTERS - 1]}…"


def _label(figure: ReportFigure) -> str:
    """The name of a figure with its unit; of a score the metric is both."""
    is_told = figure.unit is None or figure.figure.endswith(f".{figure.unit}")
    return figure.figure if is_told else f"{figure.figure}, {figure.unit}"


def _cell(figure: ReportFigure | None) -> str:
    """A figure with how it is known, where that has to be said."""
    if figure is None:
        return NOTHING
    value = f"{figure.value:.6g}" if isinstance(figure.value, float) else str(figure.value)
    return f"{value} {figure.how}" if figure.how in SAID else value
