"""Read the scores of a checkpoint, and return them as lm-eval and the cards of Hugging Face have them.

A score keeps its unit, its interval and its standard error where a format has a place for them. What a format requires
and a run does not know is left out, or is "not stated" or "unknown" in the words of the format. A metric that Polder
computes and lm-eval does not has the prefix `polder_`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.job_records import SEGMENT_STEP, Record, load_records
from pipeline.core.shared_environment_files import read_environment
from pipeline.evaluate.text_metrics import OWN_METRICS

Json = dict[str, Any]
PREFIX = "polder_"
POLDER_METRICS = (*OWN_METRICS, "acc_slor", "answer_bits_per_byte")


@dataclass(frozen=True)
class CheckpointScores:
    """The scores of a checkpoint, and what the formats ask about it and the evaluation.

    Attributes:
        name: of the model for others, such as NAMESPACE/NAME.
        content: of results.json.
        record: of the evaluation.
        packages: versions by name, of the evaluation.
        config: that of the model, in the layout of Hugging Face.
        parameters: of the model; None where that is not recorded.
        provider: None if the run does not state one.
        trained_from_scratch: the records show that its training began with random weights.
    """

    name: str
    content: Json
    record: Record
    packages: dict[str, str]
    config: Json
    parameters: int | None
    provider: str | None
    trained_from_scratch: bool

    @property
    def rows(self) -> list[Json]:
        return [row for row in self.content["tasks"] if row["value"] is not None]


def read_scores(run: Path, model: str, step: int, name: str | None = None) -> CheckpointScores:
    """Read the scores of a checkpoint of a run.

    Raises:
        InputError: the run has no evaluation of it, or its files are missing.
    """
    records = load_records(run)
    instance = {"model": model, "step": str(step)}
    evaluations = [record for record in records if record.step == "evaluate.suites"]
    record = next((each for each in evaluations if each.instance == instance), None)
    if record is None:
        known = ", ".join(f"{each.instance['model']} {each.instance['step']}" for each in evaluations) or "none"
        raise InputError(f"{run} has no evaluation of {model} {step}: {known}")
    milestone = layout.MILESTONE.path(run, model=model, step=step)
    config = milestone / layout.CHECKPOINT_MODEL / "config.json"
    segment = next((each for each in records if each.step == SEGMENT_STEP and each.instance == instance), None)
    return CheckpointScores(
        name or f"{run.resolve().name}/{model}-{step}",
        _read_json(layout.RESULTS.path(run, model=model, step=step)),
        record,
        read_environment(run, record).get("packages") or {},
        _read_json(config) if config.is_file() else {},
        segment.counts.get("parameters") if segment else None,
        _read_provider(run, [record, *(each for each in records if each.step == "report.page")]),
        _is_trained_from_scratch(records, segment),
    )


def _read_provider(run: Path, records: Iterable[Record]) -> str | None:
    """Return `run.provider` of the first of the frozen configurations of records that has one."""
    for record in records:
        path = run / record.frozen.path if record.frozen else None
        stated = _read_json(path)["configuration"]["run"].get("provider") if path and path.is_file() else None
        if stated:
            return str(stated)
    return None


def _is_trained_from_scratch(records: Iterable[Record], segment: Record | None) -> bool:
    """Return whether a chain of segments, each from the milestone of the one before it, begins without a milestone."""
    makers = {entry.path: each for each in records if each.step == SEGMENT_STEP for entry in each.outputs}
    while segment:
        before = next((entry.path for entry in segment.inputs if entry.name == "previous"), None)
        if before is None:
            return True
        segment = makers.get(before)
    return False


def _read_json(path: Path) -> Json:
    try:
        content: Json = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}; run Snakemake again") from None
    return content


def external_metric(metric: str) -> str:
    """Return the name of a metric outside of Polder: its own ones have a prefix."""
    name, _, kind = metric.partition(",")
    own = f"{PREFIX}{name}" if name in POLDER_METRICS else name
    return f"{own},{kind}" if kind else own


def read_interval(row: Json) -> tuple[float, float] | None:
    return None if row["low"] is None else (row["low"], row["high"])


def read_protocol(row: Json) -> Json:
    return row.get("protocol") or {}


def group_by_task(rows: Iterable[Json]) -> dict[str, list[Json]]:
    """Return the rows of each task by its name, which is TASK@SUITE if tasks of two suites have one name."""
    rows_by_task: dict[tuple[str, str], list[Json]] = {}
    for row in rows:
        rows_by_task.setdefault((row["task"], row["suite"]), []).append(row)
    uses = Counter(task for task, _ in rows_by_task)
    return {f"{task}@{suite}" if uses[task] > 1 else task: of_task for (task, suite), of_task in rows_by_task.items()}


def format_lm_eval(scores: CheckpointScores) -> Json:
    """Return the content of lm-eval's results_DATE.json, as `lm_eval.utils.make_table` reads it.

    It has no place for intervals: they are in `metadata` of `configs`. Hashes of samples, which it also has, need the
    texts of items, which results do not hold.
    """
    tasks = group_by_task(scores.rows)
    results: dict[str, Json] = {}
    for task, rows in tasks.items():
        task_results: Json = {"name": task, "alias": task, "sample_len": max(row["examples"] for row in rows)}
        for row in rows:
            metric, _, kind = external_metric(row["metric"]).partition(",")
            task_results[f"{metric},{kind or 'none'}"] = row["value"]
            error = row["standard_error"]
            task_results[f"{metric}_stderr,{kind or 'none'}"] = "N/A" if error is None else error
        results[task] = task_results
    settings = scores.record.settings
    first = {task: rows[0] for task, rows in tasks.items()}
    counts = {
        task: (read_protocol(row).get("examples_available"), results[task]["sample_len"]) for task, row in first.items()
    }
    return {
        "results": results,
        "group_subtasks": {task: [] for task in tasks},
        "configs": {task: _lm_eval_config(scores, task, rows) for task, rows in tasks.items()},
        "versions": {task: read_protocol(row).get("version") for task, row in first.items()},
        "n-shot": {task: read_protocol(row)["num_fewshot"] for task, row in first.items() if read_protocol(row)},
        "higher_is_better": {
            task: {external_metric(row["metric"]).partition(",")[0]: row["higher_is_better"] for row in rows}
            for task, rows in tasks.items()
        },
        "n-samples": {
            task: {"original": known, "effective": asked}
            for task, (known, asked) in counts.items()
            if known is not None
        },
        "config": {
            "model": "polder",
            "model_args": {"pretrained": scores.name},
            **({"model_num_parameters": scores.parameters} if scores.parameters else {}),
            "batch_size": str(settings["batch_size"]),
            "bootstrap_iters": 0,
            "random_seed": settings["seed"],
            "fewshot_seed": settings["seed"],
        },
        "date": scores.record.started_seconds,
        "lm_eval_version": scores.content["lm_eval_version"],
        **({"transformers_version": version} if (version := scores.packages.get("transformers")) else {}),
        "model_source": "polder",
        "model_name": scores.name,
        "model_name_sanitized": scores.name.replace("/", "__"),
    }


def _lm_eval_config(scores: CheckpointScores, task: str, rows: Sequence[Json]) -> Json:
    protocol = read_protocol(rows[0])
    data_set = protocol.get("data_set")
    known = {
        "dataset_path": data_set,
        "dataset_name": protocol.get("configuration"),
        "test_split": protocol.get("split"),
        "output_type": protocol.get("output_type"),
        "num_fewshot": protocol.get("num_fewshot"),
    }
    intervals = {external_metric(row["metric"]): read_interval(row) for row in rows if read_interval(row)}
    metadata = {
        "version": protocol.get("version"),
        "protocol_sha256": protocol.get("sha256"),
        "dataset_revision": scores.content.get("data_sets", {}).get(data_set),
        "intervals_95": intervals,
    }
    return {
        "task": task,
        **{key: value for key, value in known.items() if value is not None},
        "metadata": {key: value for key, value in metadata.items() if value is not None},
    }


def format_model_index(name: str, content: Json, rows: Iterable[Json] | None = None) -> list[Json]:
    """Return the `model-index` of a model card, as `huggingface_hub.ModelCardData` reads it; empty without scores.

    A metric's name has the interval, which the format has no place for, and the task, since tasks of one data set are
    merged by what reads them.

    Args:
        name: of the model.
        content: of results.json.
        rows: the scores to list; by default all.
    """
    results = []
    given = content["tasks"] if rows is None else rows
    for task, of_task in group_by_task(row for row in given if row["value"] is not None).items():
        protocol = read_protocol(of_task[0])
        data_set = protocol.get("data_set")
        dataset_fields = {
            "name": task,
            "type": data_set or task,
            "config": protocol.get("configuration"),
            "split": protocol.get("split") if data_set else None,
            "revision": content.get("data_sets", {}).get(data_set),
            "args": {"num_fewshot": protocol["num_fewshot"], "protocol_sha256": protocol["sha256"]}
            if protocol
            else None,
        }
        results.append(
            {
                "task": {"type": "text-generation"},
                "dataset": {key: value for key, value in dataset_fields.items() if value is not None},
                "metrics": [
                    {"type": external_metric(row["metric"]), "value": row["value"], "name": _describe_metric(task, row)}
                    for row in of_task
                ],
            }
        )
    return [{"name": name, "results": results}] if results else []


def _describe_metric(task: str, row: Json) -> str:
    ends = read_interval(row)
    interval = f"95 % interval {ends[0]:.4g} to {ends[1]:.4g}, " if ends else ""
    return f"{task}: {external_metric(row['metric'])} ({interval}{row['examples']} examples)"
