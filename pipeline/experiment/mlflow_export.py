"""Write the finished models of runs into a file store of MLflow."""

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
from pipeline.core.display_text import escape_to_one_line, pluralize, truncate_text
from pipeline.core.errors import InputError
from pipeline.core.full_disk_errors import is_disk_full
from pipeline.core.job_records import Record, is_training_segment, load_records
from pipeline.experiment.run_overview import RunSummary, run_folder
from pipeline.provenance.trace import ReportFigure

MLFLOW_VARIABLES = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
"""MLflow's variables: no telemetry, and a file store, which newer versions write only if a variable allows it."""


NOT_INSTALLED = (
    "MLflow cannot be imported ({error}), so nothing was written: `python -m pip install mlflow-skinny jinja2 "
    "pydantic typer`, best in an environment of its own, whose Python then runs this command"
)


KEY_CHARACTERS = 200


VALUE_CHARACTERS = 500
"""Limits of all versions of MLflow; files are named by keys, and the run has the whole text of a value."""


NOT_METRICS = ("step", "ended_unix_seconds")


FINAL_STATES = ("FINISHED", "FAILED")


IDENTITY = ("polder.folder", "polder.model")


MOST_RUNS = 50_000
"""The most that MLflow returns at once."""


class LoggedModel(NamedTuple):
    """A finished model in the terms of MLflow; a metric is (key, value, milliseconds since 1970, step)."""

    tags: dict[str, str]
    params: dict[str, str]
    metrics: list[tuple[str, float, int, int]]
    started_milliseconds: int
    ended_milliseconds: int
    status: str


def export_runs(store: Path, results: Path, runs: Mapping[str, RunSummary]) -> Iterator[str]:
    """Write the finished models of the runs below a folder into a store of MLflow; yield a line for each run.

    Raises:
        InputError: the store cannot be written.
    """
    for name, run in runs.items():
        folder = run_folder(results, name)
        try:
            models = list(collect_models(folder, run.settings, run.figures))
        except InputError as error:
            yield f"{name} is left out of MLflow: {error}"
            continue
        written = write_models(store, folder.resolve().name, models)
        yield f"{name}: {pluralize(len(models), 'finished model')} in MLflow, {written} of them written now"


def collect_models(
    folder: Path, settings: Mapping[str, str], figures: Mapping[str, ReportFigure]
) -> Iterator[LoggedModel]:
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
            yield _collect_model(folder, export, segments, settings, figures)


def _collect_model(
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
        metrics = [*_metric_curves(lines, start), *_score_points(name, figures, lines[-1]["step"] if lines else 0, end)]
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
    shared = {key: value for key, value in settings.items() if not key.startswith(("models.", "experiments."))}
    params = {key: _param_text(json.loads(value)) for key, value in shared.items()}
    params |= {key: _param_text(value) for key, value in export.settings.get("hyperparameters", {}).items()}
    return LoggedModel(
        {key: escape_to_one_line(value) for key, value in tags.items()},
        {_mlflow_key(key): value for key, value in params.items()},
        metrics,
        start,
        end,
        "FAILED" if outcome else "FINISHED",
    )


def _metric_curves(
    lines: Sequence[Mapping[str, Any]], start_milliseconds: int
) -> Iterator[tuple[str, float, int, int]]:
    """Yield every number of the metrics by step; a line without a time has that of the line before."""
    clock = start_milliseconds
    for line in lines:
        ended = line.get("ended_unix_seconds")
        clock = clock if ended is None else round(1000 * ended)
        for name, value in line.items():
            if name not in NOT_METRICS and isinstance(value, int | float) and not isinstance(value, bool):
                yield _mlflow_key(name), float(value), clock, int(line["step"] or 0)


def _score_points(
    model: str, figures: Mapping[str, ReportFigure], last_step: int, end: int
) -> Iterator[tuple[str, float, int, int]]:
    """Yield the scores of a model's checkpoints, and its joules by their label."""
    for figure in figures.values():
        kind, _, rest = figure.figure.partition(f".{model}.")
        step, _, name = rest.partition(".")
        if kind == "score":
            yield _mlflow_key(f"score.{name}"), float(figure.value), end, int(step)
        elif figure.figure == f"energy.model.{model}":
            yield f"energy_joules_{figure.how}", float(figure.value), end, last_step


def _param_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return truncate_text(escape_to_one_line(text), VALUE_CHARACTERS)


def _mlflow_key(name: str) -> str:
    """Return a name that is valid in MLflow and as a file, with a hash if characters were replaced.

    A slash becomes a dot: MLflow would make a folder, where a file of that name may exist.
    """
    dotted = name.replace("/", ".")
    if re.fullmatch(rf"\w[\w.-]{{,{KEY_CHARACTERS}}}", dotted, re.ASCII):
        return dotted
    shown = re.sub(r"^\W|[^\w.-]", "_", dotted, flags=re.ASCII)[:KEY_CHARACTERS]
    return f"{shown}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def import_mlflow_without_telemetry() -> None:
    """Import MLflow without telemetry and with file stores.

    Raises:
        InputError: it is not installed.
    """
    os.environ.update(MLFLOW_VARIABLES)
    try:
        importlib.import_module("mlflow")
    except ImportError as error:
        raise InputError(NOT_INSTALLED.format(error=error)) from None


def write_models(store: Path, name: str, models: Sequence[LoggedModel]) -> int:
    """Write the models of a run into the experiment of that name; return the number of new or changed ones.

    A model is identified by its folder and name, and written again only if it has changed; its old version is deleted,
    as is an incomplete one of a killed call. Call `import_mlflow_without_telemetry` before.

    Raises:
        InputError: MLflow cannot write there.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    if not models:
        return 0
    try:
        client = MlflowClient(store.resolve().as_uri())
        return _write_changed_models(client, escape_to_one_line(name)[:VALUE_CHARACTERS], models)
    except (OSError, MlflowException) as error:
        if is_disk_full(error):
            raise
        raise InputError(f"MLflow cannot write into {store}: {escape_to_one_line(str(error))}") from None


def _write_changed_models(client: Any, name: str, models: Sequence[LoggedModel]) -> int:
    written = 0
    existing_experiment = client.get_experiment_by_name(name)
    experiment = existing_experiment.experiment_id if existing_experiment else client.create_experiment(name)
    there = client.search_runs([experiment], max_results=MOST_RUNS)
    for model in models:
        content = json.dumps(model, sort_keys=True).encode()
        tags = {**model.tags, "polder.exported_sha256": hashlib.sha256(content).hexdigest()}
        before = [run for run in there if all(run.data.tags.get(key) == tags[key] for key in IDENTITY)]
        same = [run for run in before if run.info.status in FINAL_STATES and tags.items() <= run.data.tags.items()][:1]
        if not same:
            _write_model(client, experiment, model, tags)
            written += 1
        for run in before:
            if run not in same:
                client.delete_run(run.info.run_id)
    return written


def _write_model(client: Any, experiment: str, model: LoggedModel, tags: dict[str, str]) -> None:
    """Write a run of MLflow; delete it if it cannot be completed."""
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
