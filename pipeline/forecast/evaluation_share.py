"""Estimate what evaluation, validation and checkpoints take of a training, before anything runs."""

from __future__ import annotations

from typing import Any, NamedTuple

from pipeline.config.configuration import Config
from pipeline.core.errors import InputError
from pipeline.energy.energy_forecast import CostRange, add_independent_error, relative_interval
from pipeline.evaluate.settings import Suite
from pipeline.evaluate.task_file_reader import list_item_files, read_data_rows
from pipeline.model.size_and_cost import active_parameter_count
from pipeline.plan.training_time import count_validations

BYTES_PER_TOKEN = 4
"""Of text, before a tokenizer exists: about what Llama 3's has in English; a small vocabulary has half."""
FORMULAS = {
    "evaluation_items": "items of the suites' local files, at most `limit` of each",
    "evaluation_tokens": "their UTF-8 bytes / 4, read once by each evaluated milestone and model before its first step",
    "evaluation_flops": "2 x active_parameters x evaluation_tokens (Kaplan et al. 2020)",
    "evaluation_share": "evaluation_flops / (peak_flops_per_second x utilization_share) / (seconds x devices_used); "
    "evaluation_flops / model_flops where the time is unknown",
    "evaluation_energy_joules": "facility_energy_joules x evaluation_share",
    "validation_share": "validation_seconds / seconds; where the time is unknown, validation tokens / 3 / tokens",
    "checkpoint_writes": "milestones, and the steps of checkpoint_every that are none",
    "checkpoint_share": "checkpoint_writes x checkpoint_write_seconds / seconds, during the training",
    "failure_share": "failure_seconds / seconds",
}
EVALUATION_STEPS, TRAINING_STEP = ("evaluate.suites", "evaluate.baselines"), "pretrain.segment"
NOT_CALIBRATED = (
    "energy.calibration names no finished run; `polder run SMALLER.yaml` with these suites on less text measures "
    "starts of jobs and generated texts, and energy: {calibration: [results/SMALLER]} uses them"
)
EXCLUDED = "starts of jobs, few-shot examples, texts that models write, and the search for copied text"


class SuiteSize(NamedTuple):
    items: int
    bytes: int
    unknown: tuple[str, ...] = ()


def measure_suite_size(suites: list[Suite]) -> SuiteSize:
    """Return the size of the suites with local data; the others are named, each with the reason."""
    items = size = 0
    unknown = list[str]()
    for suite in suites:
        if suite.tasks:
            unknown.append(f"{suite.name}: lm-eval knows which files its tasks read")
            continue
        try:
            for file in list_item_files(suite):
                if file.task.endswith(": examples"):
                    continue
                rows = read_data_rows(file.path)
                share = min(1.0, (suite.limit or len(rows)) / len(rows))
                items += round(share * len(rows))
                size += round(share * sum(_text_bytes(row, file.fields) for row in rows))
        except InputError as error:
            unknown.append(f"{suite.name}: {error}")
    return SuiteSize(items, size, tuple(unknown))


def _text_bytes(value: Any, fields: tuple[str, ...] | None = None) -> int:
    """Return the bytes of all text in a value, of an item only in the given fields."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, dict):
        return sum(_text_bytes(one) for key, one in value.items() if fields is None or key in fields)
    return sum(map(_text_bytes, value)) if isinstance(value, list) else 0


def add_evaluation_share(config: Config, plan: dict[str, Any]) -> dict[str, Any]:
    """Return the plan with the keys of `FORMULAS` for each model, and with the basis in its notes.

    A suite of unknown size is named in the notes, and the evaluation's figures are then a lower bound.
    """
    size = measure_suite_size(config.suites())
    models, notes = {}, {}
    for name, planned in plan["models"].items():
        models[name] = planned | _estimate_shares(config, name, planned, size, plan["platform"])
        basis = (
            f"evaluation by 2 FLOP for each parameter and token of {size.items:,} items, {BYTES_PER_TOKEN} bytes of "
            f"text in a token, at the training's utilization; without {EXCLUDED}"
        )
        if planned["seconds"] is None:
            basis += "; shares by operations, because the time is unknown"
        if size.unknown:
            models[name]["evaluation_lower_bound"] = True
        notes[name] = [*plan["notes"][name], basis, *(f"evaluation without {one}" for one in size.unknown)]
    formulas = plan["formulas"] | FORMULAS
    return plan | {"models": models, "notes": notes, "formulas": formulas, "evaluation": forecast_evaluation(plan)}


def forecast_evaluation(plan: dict[str, Any]) -> dict[str, Any]:
    """Return time and joules of all evaluation jobs as shares of those of all training jobs, from finished runs.

    The 95 % interval of the time takes the errors of both as independent. Joules have none: a meter's or power model's
    error is in both. Without a forecast of both there is the reason, `refused`.
    """
    if plan["forecast"] is None:
        return {"label": "estimated", "refused": NOT_CALIBRATED}
    steps = plan["forecast"]["steps"]
    evaluation = [steps[step] for step in EVALUATION_STEPS if step in steps]
    training = steps.get(TRAINING_STEP, {"refused": "this run trains nothing"})
    refused = [entry["refused"] for entry in (*evaluation, training) if "refused" in entry]
    if not evaluation or refused:
        return {"label": "estimated", "refused": refused[0] if evaluation else "this run evaluates nothing"}
    ends = ("seconds", "low_seconds", "high_seconds")
    down, up = relative_interval(*(training[end] for end in ends))
    seconds = CostRange(*(sum(entry[end] for entry in evaluation) for end in ends))
    share, low, high = (figure / training["seconds"] for figure in add_independent_error(seconds, (-up, -down)))
    joules = sum(entry["joules"] for entry in evaluation)
    return {
        "label": "estimated",
        "calibration": plan["forecast"]["calibration"],
        "time_share": share,
        "low_time_share": low,
        "high_time_share": high,
        "energy_share": joules / training["joules"] if training["joules"] else None,
    }


def _estimate_shares(
    config: Config, name: str, planned: dict[str, Any], size: SuiteSize, platform: dict[str, Any]
) -> dict[str, Any]:
    section, training = config.models[name], config.models[name].training
    evaluations = sum(model == name for model, _ in config.evaluated_milestones())
    evaluations += sum(model == name for model in config.baselines().values())
    tokens = evaluations * size.bytes / BYTES_PER_TOKEN
    flops = 2 * active_parameter_count(section.architecture, config.vocabulary_size(section.tokens)) * tokens
    every, milestones = training.checkpoint_every, {*training.milestone_steps()}
    saved = {*range(0, training.steps + 1, every)} if every else set[int]()
    writes = len(milestones) + sum(training.first_step < step for step in saved - milestones)
    seconds, write = planned["seconds"], planned["checkpoint_write_seconds"]
    share = None if size.unknown and not size.items else flops / planned["model_flops"]
    if seconds is not None and share is not None:
        rate = platform["peak_flops_per_second"] * planned["utilization_share"]
        share = flops / rate / (seconds * planned["devices_used"])
    energy = planned["facility_energy_joules"]
    return {
        "evaluation_items": size.items,
        "evaluation_tokens": round(tokens),
        "evaluation_flops": flops,
        "evaluation_share": share,
        "evaluation_energy_joules": None if energy is None or share is None else energy * share,
        "validation_share": _validation_share(planned, training),
        "checkpoint_writes": writes,
        "checkpoint_share": None if write is None or seconds is None else writes * write / seconds,
        "failure_share": None if seconds is None else (planned["failure_seconds"] or 0.0) / seconds,
    }


def _validation_share(planned: dict[str, Any], training: Any) -> float | None:
    if planned["seconds"] is not None and planned["validation_seconds"] is not None:
        return float(planned["validation_seconds"] / planned["seconds"])
    if not training.validation_every:
        return 0.0
    if training.validation_tokens is None:
        return None
    number = count_validations(training.first_step, training.steps, training.validation_every)
    return float(number * training.validation_tokens / 3 / planned["tokens"])
