"""The interval of a planned time, and notes on what it is computed from and what it leaves out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, NamedTuple

from pipeline.core.errors import InputError
from pipeline.core.formatting import format_count
from pipeline.energy.energy_forecast import (
    CostForecast,
    CostPrediction,
    CostRange,
    forecast_chain,
    relative_interval,
    student_quantile,
    widen_interval,
)
from pipeline.plan.plan_tables import format_quantity
from pipeline.plan.settings import ForecastPlan, ModelPlan, PlatformPlan, StepCost
from pipeline.plan.training_time import estimate_training_time, find_similar_trainings, list_missing_figures

STEP_ERROR = 0.108
"""Standard deviation of the logarithm of measured over counted seconds of a step, of shapes that nothing was fitted on:
the 34 published rows of docs/results/plan.md, each shape by the others."""
STEP_ERROR_DEGREES_OF_FREEDOM = 8
"""Its degrees of freedom: the rows have ten shapes, on two machines whose rates were fitted."""
MACHINE_ERROR = 0.115
"""What comes on top where no training was measured on the machine, in the same measure: of three published speeds that
nothing was fitted on, TinyLlama's and GPT-NL's two, it is 0.158 in all."""
MINIMUM_DEGREES_OF_FREEDOM = 2
"""With one, a 95 % interval is a factor of ten and more, and `student_quantile` is too narrow."""
FORMULAS = {
    "low_seconds": "seconds x exp(the mean m of ln(measured / planned seconds of a step) of n trainings of calibration "
    "runs on this platform - t s sqrt(1 + 1 / n)); s, the standard deviation, is theirs pooled with 0.108 of 8 degrees "
    "of freedom (34 published rows); without such runs m = 0 and s sqrt(1 + 1 / n) = sqrt(0.108^2 + 0.115^2), for "
    "nothing was measured on the machine; a time by model_flops_utilization has none without three of them",
    "high_seconds": "the same with + t s sqrt(1 + 1 / n)",
}


class TimeRatio(NamedTuple):
    """How many times as long as planned a step of a finished training took."""

    training: str
    value: float


class TimeInterval(NamedTuple):
    """The factors between which the measured over the planned time lies 95 times of 100."""

    low: float
    high: float


def measure_time_ratios(plan: ForecastPlan | None, platform: PlatformPlan, is_counted: bool) -> list[TimeRatio]:
    """Return what the calibration runs on the platform tell of times that are planned in the same way.

    Args:
        is_counted: whether by operations, bytes and bandwidths, not by the platform's model_flops_utilization.
    """
    found = []
    for run in plan.runs if plan else ():
        for name, training in run.trainings.items() if run.platform == platform.name else ():
            planned = estimate_training_time(training.model, platform, training.processes)["step_seconds"]
            if planned and is_counted == (not list_missing_figures(training.model, platform, training.processes)):
                found.append(TimeRatio(f"{name} of {run.folder}", training.step_seconds / planned))
    return found


def fit_time_interval(found: list[TimeRatio], is_counted: bool) -> TimeInterval | None:
    """Return the factors by which a planned time is multiplied at both ends; None where nothing tells them."""
    logarithms = [math.log(ratio.value) for ratio in found]
    number, mean = len(logarithms), fmean(logarithms) if logarithms else 0.0
    freedom = STEP_ERROR_DEGREES_OF_FREEDOM if is_counted else 0
    squares = freedom * STEP_ERROR**2 + sum((one - mean) ** 2 for one in logarithms)
    freedom += max(number - 1, 0)
    if freedom < MINIMUM_DEGREES_OF_FREEDOM:
        return None
    variance = squares / freedom
    spread = math.sqrt(variance * (1 + 1 / number) if number else variance + MACHINE_ERROR**2)
    reach = student_quantile(freedom) * spread
    return TimeInterval(math.exp(mean - reach), math.exp(mean + reach))


def add_time_interval(
    planned: dict[str, Any], model: ModelPlan, platform: PlatformPlan, plan: ForecastPlan | None
) -> dict[str, Any]:
    """Return a model's entry of the plan with the ends of its time."""
    none = {"low_seconds": None, "high_seconds": None}
    if planned["seconds"] is None:
        return planned | none
    is_counted = not list_missing_figures(model, platform, planned["devices_used"])
    found = fit_time_interval(measure_time_ratios(plan, platform, is_counted), is_counted)
    if found is None:
        return planned | none
    return planned | {f"{end}_seconds": planned["seconds"] * factor for end, factor in found._asdict().items()}


def format_interval_note(planned: Mapping[str, Any], found: list[TimeRatio]) -> str:
    """Return the interval of a model's time in one sentence, with what it is known by."""
    if planned["low_seconds"] is None:
        return (
            "no interval of the time: three finished trainings on this platform tell one "
            "(energy: {calibration: [results/SMALL, results/LARGER]})"
        )
    told = " to ".join(format_quantity("seconds", planned[end]) for end in ("low_seconds", "high_seconds"))
    if not found:
        return f"time {told} (95 %) by the error on published trainings; none was measured on this platform"
    values = ", ".join(f"{ratio.value:.3g} ({ratio.training})" for ratio in found)
    return (
        f"time {told} (95 %) by {format_count(len(found), 'training')} on this platform, whose steps took as many "
        f"times as long as planned: {values}"
    )


OMITTED_PARTS = {
    "validation_seconds": "validations, for training.validation_tokens is not stated",
    "start_seconds": "starts of jobs, for the platform does not state job_start_seconds (from the start of a job to "
    "its first step: a finished job's log has both)",
    "queue_seconds": "waiting in the queue, for the platform does not state job_queue_seconds (sacct has Submit and "
    "Start of jobs of as many nodes)",
    "checkpoint_write_seconds": "the interval between checkpoints by Young and Daly, for the platform does not state "
    "storage_bytes_per_second (time dd of 10 GB with oflag=direct to its scratch)",
}
OVERLAPPED_PARTS = "loading, and checkpoints written beside the training"


PRETRAINED_NOTE = (
    "begins with weights that were trained before: its shape is theirs, and laws of trainings from the first token on "
    "tell neither its loss nor its rate"
)
EXPERTS_NOTE = (
    "operations are those of the experts that a token visits, memory that of all; time and memory are those of tokens "
    "shared equally, which take longer and hold more where some experts are liked better; laws of models without "
    "experts tell neither its loss nor its rate"
)


def list_time_notes(
    model: ModelPlan, platform: PlatformPlan, planned: dict[str, Any], forecast: ForecastPlan | None = None
) -> list[str]:
    """Return what a reader must know of a model's time; `planned` is its entry in the plan."""
    began = [PRETRAINED_NOTE] * model.pretrained + [EXPERTS_NOTE] * bool(model.architecture.experts)
    found = list_missing_figures(model, platform, planned["devices_used"])
    if planned["seconds"] is None:
        return [*began, f"no time: {'; '.join(found)}"]
    ends = format_interval_note(planned, measure_time_ratios(forecast, platform, is_counted=not found))
    if found:
        told = f"time by the platform's model_flops_utilization {platform.model_flops_utilization:g}, steps alone"
        return [*began, f"{told}, for {'; '.join(found)}", ends, *_list_published_trainings(platform, planned)]
    rate = "at the platform's rate"
    if platform.failures_per_device_hour is None:
        rate = "as often as those of Llama 3 405B, for the platform does not state failures_per_device_hour"
    missing = [words for key, words in OMITTED_PARTS.items() if planned[key] is None]
    return [
        *began,
        f"time by operations, bytes and bandwidths; failures {rate}",
        ends,
        f"not in it: {'; '.join([OVERLAPPED_PARTS, *missing])}",
        *_list_published_trainings(platform, planned),
    ]


def _list_published_trainings(platform: PlatformPlan, planned: dict[str, Any]) -> list[str]:
    least, most, own = (planned[key] for key in ("published_least_seconds", "published_most_seconds", "seconds"))
    trainings = [
        f"{one.name} {one.device_hours:,.0f} hours of {one.device} for {one.tokens:.3g} tokens, "
        f"{100 * one.utilization:.0f} % of the peak ({one.source})"
        for one in find_similar_trainings(planned["active_parameters"])
    ]
    took = " to ".join(dict.fromkeys(format_quantity("seconds", value) for value in (least, most)))
    told = (
        f"published runs of this size took as much of their peak that this one would take {took} on "
        f"{format_count(planned['devices_used'], 'device')} of {platform.name}: {'; '.join(trainings)}"
    )
    if own < least:
        told += f"; the plan is {most / own:.2g} times as fast as the slowest of them, and faster than all"
    return [told]


FORECAST_SCOPE = (
    "Of the jobs whose outputs stand, their seconds added up as if one ran after another; without lost attempts, idle "
    "nodes, Snakemake's own process, plan, report and crate."
)


def forecast_costs(plan: ForecastPlan, platform: str) -> dict[str, Any]:
    """Return the forecast as JSON: of each step seconds and joules with 95 % intervals, or why there is none."""
    fitted: dict[str, CostForecast] = {}
    work: dict[str, float] = {}
    steps: dict[str, dict[str, Any]] = {}
    ends: dict[str, tuple[float, float]] = {}
    for step, planned in plan.work.items():
        told: dict[str, Any] = {"work": planned.amount, "unit": planned.unit}
        try:
            if planned.amount is None:
                raise InputError(planned.refused or "its work is not known before the run")
            rows = _calibration_costs(plan, step)
            fitted[step] = CostForecast.fit([(row.work, row.seconds, row.joules) for row in rows])
            work[step] = planned.amount
            ends[step] = _widest_accounting_interval(rows)
            steps[step] = told | _prediction_to_json(fitted[step].predict(planned.amount), ends[step])
        except InputError as error:
            steps[step] = told | {"refused": str(error)}
    return {
        "label": "estimated",
        "scope": FORECAST_SCOPE,
        "calibration": [{"folder": run.folder, "platform": run.platform, "known": run.known} for run in plan.runs],
        "notes": _list_platform_notes(plan, platform),
        "steps": steps,
        "chain": _forecast_all_steps(steps, fitted, work, ends),
    }


def _calibration_costs(plan: ForecastPlan, step: str) -> list[StepCost]:
    """Return what a step took in the calibration runs.

    Raises:
        InputError: a run did no such step, or its energy is not known.
    """
    rows = []
    for run in plan.runs:
        row = run.steps.get(step)
        if row is None:
            raise InputError(f"{run.folder} did no {step}: take a calibration run that does the same steps")
        if row.refused is not None:
            raise InputError(row.refused)
        rows.append(row)
    return rows


def _widest_accounting_interval(rows: Iterable[StepCost]) -> tuple[float, float]:
    """Return the widest ends of the account's own intervals: a model's mistake no scatter of the runs tells."""
    ends = [relative_interval(row.joules, row.low_joules, row.high_joules) for row in rows]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _prediction_to_json(prediction: CostPrediction, ends: tuple[float, float]) -> dict[str, float]:
    """Return a prediction as JSON, its joules with the ends of the account's own interval."""
    low, high = widen_interval(CostRange(prediction.joules, prediction.low, prediction.high), ends)[1:]
    return {
        "seconds": prediction.seconds,
        "low_seconds": prediction.seconds_low,
        "high_seconds": prediction.seconds_high,
        "joules": prediction.joules,
        "low_joules": low,
        "high_joules": high,
    }


def _forecast_all_steps(
    steps: Mapping[str, Mapping[str, Any]],
    fitted: Mapping[str, CostForecast],
    work: Mapping[str, float],
    ends: Mapping[str, tuple[float, float]],
) -> dict[str, Any]:
    """Return the forecast of all steps together; none where a step has none, for a part is not the whole."""
    missing = [step for step, told in steps.items() if "refused" in told]
    if missing or not steps:
        words = ", ".join(missing) if len(missing) < len(steps) else "any step"
        return {"refused": f"no forecast, because there is none of {words}"}
    whole = forecast_chain(fitted, work)
    joules = {step: float(told["joules"]) for step, told in steps.items()}
    # The same meter or model is wrong alike in all steps: the ends of its intervals are added as they are.
    low, high = (
        math.log(sum(joules[step] * math.exp(ends[step][side]) for step in steps) / sum(joules.values()))
        for side in (0, 1)
    )
    return _prediction_to_json(whole, (low, high))


def _list_platform_notes(plan: ForecastPlan, platform: str) -> list[str]:
    return [
        f"{run.folder} ran on the platform {run.platform}, this run is planned for {platform}: the forecast is of a "
        f"run on {run.platform}."
        for run in plan.runs
        if run.platform != platform
    ]
