"""List all runs below a folder of results, with what is set otherwise and measured, and write them to MLflow."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import layout
from pipeline.core.disk_space import is_disk_full
from pipeline.core.errors import InputError
from pipeline.core.formatting import align_columns, escape_to_one_line, format_count, truncate_text
from pipeline.core.records import SEGMENT_STEP, Record, is_training_segment, load_records
from pipeline.job.run_snapshot import read_newest_snapshot
from pipeline.provenance.content_differences import flatten_json
from pipeline.provenance.trace import ReportFigure, read_figures

NOTHING = ""
SHOWN_CHARACTERS = 60
"""Of a setting: one long text would make its column that wide in every row."""
SAID = ("estimated", "stated")
"""How a figure is known, where it has to be said with it: all others are measured, counted or computed."""
UNCERTAIN = (
    "Figures stand here without their intervals, which each run's report has; `polder compare A B` tells "
    "whether one of two models really answers better."
)


class RunSummary(NamedTuple):
    """A run: its configuration at its last start, by dotted keys, and its figures, or why there are none."""

    settings: Mapping[str, str]
    figures: Mapping[str, ReportFigure]
    state: str


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
        yield f"{name}: {format_count(len(models), 'finished model')} in MLflow, {written} of them written now"


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
        if record.step == SEGMENT_STEP:
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
    jobs = format_count(len(layout.RECORD.glob(folder)), "job")
    start = read_newest_snapshot(folder) or {}
    settings = dict(flatten_json(_by_name(start["configuration"]))) if "configuration" in start else {}
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
    rows += [
        [key, *(truncate_text(run.settings.get(key, NOTHING), SHOWN_CHARACTERS) for run in runs.values())]
        for key in differing
    ]
    rows += [
        [_label(figure), *(_cell(run.figures.get(name)) for run in runs.values())] for name, figure in figures.items()
    ]
    return align_columns([[escape_to_one_line(cell) for cell in row] for row in rows])


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


VARIABLES = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
"""What MLflow reads: it reports to nobody, and writes a file store, which its newer versions do only when asked."""
NOT_INSTALLED = (
    "MLflow cannot be imported ({error}), so nothing was written: `python -m pip install mlflow-skinny jinja2 "
    "pydantic`, best in an environment of its own, whose Python then runs this command"
)
KEY_CHARACTERS = 200
VALUE_CHARACTERS = 500
"""As many as every version of MLflow takes; files are named by keys, and the run has the whole text of a value."""
NO_CURVES = ("step", "ended_unix_seconds")
ENDED = ("FINISHED", "FAILED")
IDENTITY = ("polder.folder", "polder.model")
MOST_RUNS = 50_000
"""As many as MLflow gives at once."""


class LoggedModel(NamedTuple):
    """What MLflow is told of a finished model; a metric is its key, value, milliseconds since 1970, and step."""

    tags: dict[str, str]
    params: dict[str, str]
    metrics: list[tuple[str, float, int, int]]
    started_milliseconds: int
    ended_milliseconds: int
    status: str


def models_of(folder: Path, settings: Mapping[str, str], figures: Mapping[str, ReportFigure]) -> Iterator[LoggedModel]:
    """Yield the exported models of a run, in the order of their names.

    Raises:
        InputError: a record or the metrics of a model cannot be read.
    """
    records = load_records(folder)
    for export in records:
        if export.step == "pretrain.export":
            name = export.instance["model"]
            own = [one for one in records if is_training_segment(name, one.step, one.instance)]
            segments = sorted(own, key=lambda record: int(record.instance["step"]))
            yield _model(folder, export, segments, settings, figures)


def _model(
    folder: Path,
    export: Record,
    segments: Sequence[Record],
    settings: Mapping[str, str],
    figures: Mapping[str, ReportFigure],
) -> LoggedModel:
    name, last = str(export.instance["model"]), (segments or [export])[-1]
    start, end = int(1000 * (segments or [export])[0].started_seconds), int(1000 * export.ended_seconds)
    path = layout.METRICS.path(folder, model=name)
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        metrics = [*_curves(lines, start), *_figures(name, figures, lines[-1]["step"] if lines else 0, end)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} does not hold the metrics of a training: {error!r}") from None
    outcome = export.counts.get("outcome")
    tags = {
        "polder.folder": str(folder.resolve()),
        "polder.model": name,
        "polder.record_sha256": hashlib.sha256((folder / export.file).read_bytes()).hexdigest(),
        "polder.code_version": last.code_version,
        "polder.environment_version": last.environment_version,
        "polder.outcome": outcome["status"] if outcome else "trained",
    }
    if commit := (last.git or {}).get("commit"):
        tags["mlflow.source.git.commit"] = commit
    told = {key: value for key, value in settings.items() if not key.startswith(("models.", "experiments."))}
    params = {key: _text(json.loads(value)) for key, value in told.items()}
    params |= {key: _text(value) for key, value in export.settings.get("hyperparameters", {}).items()}
    return LoggedModel(
        {key: escape_to_one_line(value) for key, value in tags.items()},
        {_key(key): value for key, value in params.items()},
        metrics,
        start,
        end,
        "FAILED" if outcome else "FINISHED",
    )


def _curves(lines: Sequence[Mapping[str, Any]], start_milliseconds: int) -> Iterator[tuple[str, float, int, int]]:
    """Every number of the metrics by step; a line without a clock has the one before it."""
    clock = start_milliseconds
    for line in lines:
        ended = line.get("ended_unix_seconds")
        clock = clock if ended is None else round(1000 * ended)
        for name, value in line.items():
            if name not in NO_CURVES and isinstance(value, int | float) and not isinstance(value, bool):
                yield _key(name), float(value), clock, int(line["step"] or 0)


def _figures(
    model: str, figures: Mapping[str, ReportFigure], last_step: int, end: int
) -> Iterator[tuple[str, float, int, int]]:
    """The scores of a model's checkpoints, and its joules by the way in which they are known."""
    for figure in figures.values():
        kind, _, rest = figure.figure.partition(f".{model}.")
        step, _, name = rest.partition(".")
        if kind == "score":
            yield _key(f"score.{name}"), float(figure.value), end, int(step)
        elif figure.figure == f"energy.model.{model}":
            yield f"energy_joules_{figure.how}", float(figure.value), end, last_step


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return truncate_text(escape_to_one_line(text), VALUE_CHARACTERS)


def _key(name: str) -> str:
    """A name as MLflow takes one and as a file can have it; of one that it refuses a hash keeps it from being another.

    A slash is a dot: MLflow would make a folder, where there may be a file of that name.
    """
    dotted = name.replace("/", ".")
    if re.fullmatch(rf"\w[\w.-]{{,{KEY_CHARACTERS}}}", dotted, re.ASCII):
        return dotted
    shown = re.sub(r"^\W|[^\w.-]", "_", dotted, flags=re.ASCII)[:KEY_CHARACTERS]
    return f"{shown}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def check_installed() -> None:
    """Have MLflow report to nobody and write file stores, and import it.

    Raises:
        InputError: it is not installed.
    """
    os.environ.update(VARIABLES)
    try:
        importlib.import_module("mlflow")
    except ImportError as error:
        raise InputError(NOT_INSTALLED.format(error=error)) from None


def keep(store: Path, name: str, models: Sequence[LoggedModel]) -> int:
    """Write the models of a run into the experiment of that name, and return how many were not there as they are.

    A model is told again, by its folder and name, only where anything of it is another; what was told then is deleted,
    as is what an earlier call was killed at. `check_installed` comes before.

    Raises:
        InputError: MLflow cannot write there.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    if not models:
        return 0
    try:
        client = MlflowClient(store.resolve().as_uri())
        return _keep(client, escape_to_one_line(name)[:VALUE_CHARACTERS], models)
    except (OSError, MlflowException) as error:
        if is_disk_full(error):
            raise
        raise InputError(f"MLflow cannot write into {store}: {escape_to_one_line(str(error))}") from None


def _keep(client: Any, name: str, models: Sequence[LoggedModel]) -> int:
    written = 0
    found = client.get_experiment_by_name(name)
    experiment = found.experiment_id if found else client.create_experiment(name)
    there = client.search_runs([experiment], max_results=MOST_RUNS)
    for model in models:
        told = json.dumps(model, sort_keys=True).encode()
        tags = {**model.tags, "polder.told_sha256": hashlib.sha256(told).hexdigest()}
        before = [run for run in there if all(run.data.tags.get(key) == tags[key] for key in IDENTITY)]
        same = [run for run in before if run.info.status in ENDED and tags.items() <= run.data.tags.items()][:1]
        if not same:
            _write(client, experiment, model, tags)
            written += 1
        for run in before:
            if run not in same:
                client.delete_run(run.info.run_id)
    return written


def _write(client: Any, experiment: str, model: LoggedModel, tags: dict[str, str]) -> None:
    """Write a run of MLflow; one that cannot be written to its end is deleted."""
    from mlflow.entities import Metric, Param

    run = client.create_run(experiment, model.started_milliseconds, tags, model.tags["polder.model"]).info.run_id
    params, metrics = [Param(*pair) for pair in model.params.items()], [Metric(*metric) for metric in model.metrics]
    try:
        client.log_batch(run, metrics, params, synchronous=True)
        client.set_terminated(run, model.status, model.ended_milliseconds)
    except BaseException:
        with suppress(Exception):
            client.delete_run(run)
        raise
