"""Write the finished models of runs into a file store of MLflow: `python -m pipeline runs RESULTS --mlflow FOLDER`."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import layout
from pipeline.core.disk_space import is_full
from pipeline.core.errors import InputError
from pipeline.core.formatting import printable
from pipeline.core.records import Record, load_records
from pipeline.provenance.trace import ReportFigure

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
            own = [one for one in records if one.step == "pretrain.segment" and one.instance["model"] == name]
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
    start, end = _milliseconds((segments or [export])[0].started), _milliseconds(export.ended)
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
        {key: printable(value) for key, value in tags.items()},
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


def _milliseconds(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp() * 1000)


def _text(value: Any) -> str:
    text = printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= VALUE_CHARACTERS else f"{text[: VALUE_CHARACTERS - 1]}…"


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
        return _keep(client, printable(name)[:VALUE_CHARACTERS], models)
    except (OSError, MlflowException) as error:
        if is_full(error):
            raise
        raise InputError(f"MLflow cannot write into {store}: {printable(str(error))}") from None


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
