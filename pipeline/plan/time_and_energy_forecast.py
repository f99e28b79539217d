"""Forecast time and energy from finished runs with 95 % intervals, and list the notes on a planned time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, NamedTuple

from pipeline.core.confidence_intervals import student_t_quantile
from pipeline.core.display_text import pluralize
from pipeline.core.errors import InputError
from pipeline.energy.energy_forecast import (
    CostForecast,
    CostPrediction,
    CostRange,
    add_independent_error,
    forecast_steps,
    relative_interval,
)
from pipeline.plan.plan_tables import format_quantity
from pipeline.plan.settings import ForecastPlan, ModelPlan, PlatformPlan, StepCost
from pipeline.plan.training_time import (
    estimate_training_time,
    explain_unknown_step_time,
    find_similar_published_trainings,
)

STEP_ERROR = 0.052
"""Standard deviation of ln(measured / planned seconds of a step), for shapes that nothing was fitted on:
the 34 published rows of docs/results/plan.md, each shape by the others."""
STEP_ERROR_DEGREES_OF_FREEDOM = 5
"""The rows have ten shapes, and five figures are fitted on them."""
MACHINE_ERROR = 0.064
"""The additional deviation of a machine without a measured training. The total deviation of three published speeds that
nothing was fitted on, TinyLlama's and GPT-NL's two, is 0.083."""
MINIMUM_DEGREES_OF_FREEDOM = 2
"""With one degree of freedom a 95 % interval spans a factor of ten."""
FORMULAS = {
    "low_seconds": "seconds x exp(the mean m of ln(measured / planned seconds of a step) of n trainings of calibration "
    "runs on this platform - t s sqrt(1 + 1 / n)); s, the standard deviation, is theirs pooled with 0.052 of 5 degrees "
    "of freedom (34 published rows); without such runs m = 0 and s sqrt(1 + 1 / n) = sqrt(0.052^2 + 0.064^2), for "
    "nothing was measured on the machine; a time by model_flops_utilization has none without three of them",
    "high_seconds": "the same with + t s sqrt(1 + 1 / n)",
}


class TimeRatio(NamedTuple):
    """The ratio of measured to planned step time of a finished training."""

    training: str
    value: float


class TimeInterval(NamedTuple):
    """The factors that bound measured / planned time in 95 of 100 cases."""

    low: float
    high: float


def measure_time_ratios(plan: ForecastPlan | None, platform: PlatformPlan, is_counted: bool) -> list[TimeRatio]:
    """Return the time ratio of each calibration training on the platform that is planned in the same way.

    Args:
        is_counted: whether the time is planned from operations, bytes and bandwidths, and not from the platform's
            model_flops_utilization.
    """
    ratios = []
    for run in plan.runs if plan else ():
        for name, training in run.trainings.items() if run.platform == platform.name else ():
            planned = estimate_training_time(training.model, platform, training.processes)["step_seconds"]
            if planned and is_counted == (not explain_unknown_step_time(training.model, platform, training.processes)):
                ratios.append(TimeRatio(f"{name} of {run.folder}", training.step_seconds / planned))
    return ratios


def fit_time_interval(ratios: list[TimeRatio], is_counted: bool) -> TimeInterval | None:
    """Return the factors from a planned time to the ends of its 95 % interval; None without enough measurements."""
    logarithms = [math.log(ratio.value) for ratio in ratios]
    number, mean = len(logarithms), fmean(logarithms) if logarithms else 0.0
    freedom = STEP_ERROR_DEGREES_OF_FREEDOM if is_counted else 0
    squares = freedom * STEP_ERROR**2 + sum((value - mean) ** 2 for value in logarithms)
    freedom += max(number - 1, 0)
    if freedom < MINIMUM_DEGREES_OF_FREEDOM:
        return None
    variance = squares / freedom
    deviation = math.sqrt(variance * (1 + 1 / number) if number else variance + MACHINE_ERROR**2)
    half_width = student_t_quantile(freedom) * deviation
    return TimeInterval(math.exp(mean - half_width), math.exp(mean + half_width))


def add_time_interval(
    planned: dict[str, Any], model: ModelPlan, platform: PlatformPlan, plan: ForecastPlan | None
) -> dict[str, Any]:
    """Return a model's entry of the plan with `low_seconds` and `high_seconds`."""
    none = {"low_seconds": None, "high_seconds": None}
    if planned["seconds"] is None:
        return planned | none
    is_counted = not explain_unknown_step_time(model, platform, planned["devices_used"])
    interval = fit_time_interval(measure_time_ratios(plan, platform, is_counted), is_counted)
    if interval is None:
        return planned | none
    return planned | {f"{end}_seconds": planned["seconds"] * factor for end, factor in interval._asdict().items()}


def format_interval_note(planned: Mapping[str, Any], ratios: list[TimeRatio]) -> str:
    """Format the interval of a model's time and its source as one sentence."""
    if planned["low_seconds"] is None:
        return (
            "no interval of the time: it needs three finished trainings on this platform "
            "(energy: {calibration: [results/SMALL, results/LARGER]})"
        )
    interval = " to ".join(format_quantity("seconds", planned[end]) for end in ("low_seconds", "high_seconds"))
    if not ratios:
        return f"time {interval} (95 %), from the errors on published trainings; none was measured on this platform"
    values = ", ".join(f"{ratio.value:.3g} ({ratio.training})" for ratio in ratios)
    return (
        f"time {interval} (95 %), from {pluralize(len(ratios), 'training')} on this platform, with measured / "
        f"planned time of a step: {values}"
    )


OMITTED_PARTS = {
    "validation_seconds": "validations, because training.validation_tokens is not set",
    "start_seconds": "starts of jobs, because the platform does not state job_start_seconds (from the start of a job "
    "to its first step: the log of a finished job has both)",
    "queue_seconds": "waiting in the queue, because the platform does not state job_queue_seconds (sacct shows Submit "
    "and Start of jobs with as many nodes)",
    "checkpoint_write_seconds": "the interval between checkpoints by Young and Daly, because the platform does not "
    "state storage_bytes_per_second (polder platform measure --folder FOLDER)",
}
OVERLAPPED_PARTS = "loading, and checkpoints that are written during the training"


PRETRAINED_NOTE = (
    "begins with pretrained weights: its shape is theirs, and the scaling laws, which hold for training from the first "
    "token, predict neither its loss nor its learning rate"
)
EXPERTS_NOTE = (
    "operations count the experts that a token visits, memory counts all experts; time and memory assume a balanced "
    "load and are larger where some experts get more tokens; the scaling laws, which hold for models without experts, "
    "predict neither its loss nor its learning rate"
)


def list_time_notes(
    model: ModelPlan, platform: PlatformPlan, planned: dict[str, Any], forecast: ForecastPlan | None = None
) -> list[str]:
    """Return the notes on a model's time: method, interval, omitted parts and published trainings.

    Args:
        planned: the model's entry in the plan.
    """
    notes = [PRETRAINED_NOTE] * model.pretrained + [EXPERTS_NOTE] * bool(model.architecture.experts)
    missing = explain_unknown_step_time(model, platform, planned["devices_used"])
    if planned["seconds"] is None:
        return [*notes, f"no time: {'; '.join(missing)}"]
    interval = format_interval_note(planned, measure_time_ratios(forecast, platform, is_counted=not missing))
    if missing:
        method = (
            f"time of the steps alone, by the platform's model_flops_utilization {platform.model_flops_utilization:g}"
        )
        return [
            *notes,
            f"{method}, because {'; '.join(missing)}",
            interval,
            *_list_published_training_notes(platform, planned),
        ]
    rate = "at the platform's rate"
    if platform.failures_per_device_hour is None:
        rate = "at the rate of Llama 3 405B, because the platform does not state failures_per_device_hour"
    omitted = [words for key, words in OMITTED_PARTS.items() if planned[key] is None]
    return [
        *notes,
        f"time by operations, bytes and bandwidths; failures {rate}",
        interval,
        f"not included: {'; '.join([OVERLAPPED_PARTS, *omitted])}",
        *_list_published_training_notes(platform, planned),
    ]


def _list_published_training_notes(platform: PlatformPlan, planned: dict[str, Any]) -> list[str]:
    least, most, own = (planned[key] for key in ("published_least_seconds", "published_most_seconds", "seconds"))
    trainings = [
        f"{one.name} {one.device_hours:,.0f} hours of {one.device} for {format_quantity('tokens', one.tokens)} tokens, "
        f"{100 * one.utilization:.0f} % of the peak ({one.source})"
        for one in find_similar_published_trainings(planned["active_parameters"])
    ]
    took = " to ".join(dict.fromkeys(format_quantity("seconds", value) for value in (least, most)))
    note = (
        f"at the share of the peak that published trainings of this size reached, this one takes {took} on "
        f"{pluralize(planned['devices_used'], 'device')} of {platform.name}: {'; '.join(trainings)}"
    )
    if own < least:
        note += f"; the plan is faster than all of them, and {most / own:.2g} times as fast as the slowest"
    return [note]


FORECAST_SCOPE = (
    "Covers the jobs with valid outputs, their seconds added up as if one ran after another; without lost attempts, "
    "idle nodes, Snakemake's own process, plan, report and crate."
)


def forecast_costs(plan: ForecastPlan, platform: str) -> dict[str, Any]:
    """Return the forecast as JSON: seconds and joules of each step with 95 % intervals, or the reason for none."""
    fitted: dict[str, CostForecast] = {}
    work: dict[str, float] = {}
    steps: dict[str, dict[str, Any]] = {}
    ends: dict[str, tuple[float, float]] = {}
    for step, planned in plan.work.items():
        entry: dict[str, Any] = {"work": planned.amount, "unit": planned.unit}
        try:
            if planned.amount is None:
                raise InputError(planned.refused or "its work is unknown before the run")
            rows = _calibration_costs(plan, step)
            fitted[step] = CostForecast.fit([(row.work, row.seconds, row.joules) for row in rows])
            work[step] = planned.amount
            ends[step] = _widest_accounting_interval(rows)
            steps[step] = entry | _prediction_to_json(fitted[step].predict(planned.amount), ends[step])
        except InputError as error:
            steps[step] = entry | {"refused": str(error)}
    return {
        "label": "estimated",
        "scope": FORECAST_SCOPE,
        "calibration": [{"folder": run.folder, "platform": run.platform, "known": run.known} for run in plan.runs],
        "notes": _list_platform_notes(plan, platform),
        "steps": steps,
        "chain": _forecast_total(steps, fitted, work, ends),
    }


def _calibration_costs(plan: ForecastPlan, step: str) -> list[StepCost]:
    """Return the cost of a step in each calibration run.

    Raises:
        InputError: a run has no such step, or its energy is unknown.
    """
    rows = []
    for run in plan.runs:
        row = run.steps.get(step)
        if row is None:
            raise InputError(f"{run.folder} has no job of {step}: name a calibration run with the same steps")
        if row.refused is not None:
            raise InputError(row.refused)
        rows.append(row)
    return rows


def _widest_accounting_interval(rows: Iterable[StepCost]) -> tuple[float, float]:
    """Return the widest ends of the accounting's own intervals: the scatter between runs hides a model's error."""
    ends = [relative_interval(row.joules, row.low_joules, row.high_joules) for row in rows]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _prediction_to_json(prediction: CostPrediction, ends: tuple[float, float]) -> dict[str, float]:
    """Return a prediction as JSON, with joules widened by the accounting's own interval."""
    low, high = add_independent_error(CostRange(prediction.joules, prediction.low, prediction.high), ends)[1:]
    return {
        "seconds": prediction.seconds,
        "low_seconds": prediction.seconds_low,
        "high_seconds": prediction.seconds_high,
        "joules": prediction.joules,
        "low_joules": low,
        "high_joules": high,
    }


def _forecast_total(
    steps: Mapping[str, Mapping[str, Any]],
    fitted: Mapping[str, CostForecast],
    work: Mapping[str, float],
    ends: Mapping[str, tuple[float, float]],
) -> dict[str, Any]:
    """Return the forecast of all steps together, or a refusal where one step has none."""
    missing = [step for step, entry in steps.items() if "refused" in entry]
    if missing or not steps:
        words = ", ".join(missing) if len(missing) < len(steps) else "any step"
        return {"refused": f"no forecast, because there is none for {words}"}
    whole = forecast_steps(fitted, work)
    joules = {step: float(entry["joules"]) for step, entry in steps.items()}
    # One meter or power model has the same error in all steps, so the ends of its intervals add up.
    low, high = (
        math.log(sum(joules[step] * math.exp(ends[step][side]) for step in steps) / sum(joules.values()))
        for side in (0, 1)
    )
    return _prediction_to_json(whole, (low, high))


def _list_platform_notes(plan: ForecastPlan, platform: str) -> list[str]:
    return [
        f"{run.folder} ran on the platform {run.platform}, this run is planned for {platform}: the forecast holds for "
        f"{run.platform}."
        for run in plan.runs
        if run.platform != platform
    ]
