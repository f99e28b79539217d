"""The interval of a planned time: by how much longer than planned the steps of finished trainings took."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any, NamedTuple

from pipeline.core.formatting import counted
from pipeline.energy.forecast import student_95
from pipeline.plan.run_time import obstacles, run_time
from pipeline.plan.settings import ForecastPlan, ModelPlan, PlatformPlan
from pipeline.plan.table import readable

STEP_ERROR = 0.108
"""Standard deviation of the logarithm of measured over counted seconds of a step, of shapes that nothing was fitted on:
the 34 published rows of docs/plan.md, each shape by the others."""
STEP_ERROR_FREEDOM = 8
"""Its degrees of freedom: the rows have ten shapes, on two machines whose rates were fitted."""
MACHINE_ERROR = 0.115
"""What comes on top where no training was measured on the machine, in the same measure: of three published speeds that
nothing was fitted on, TinyLlama's and GPT-NL's two, it is 0.158 in all."""
LEAST_FREEDOM = 2
"""With one, a 95 % interval is a factor of ten and more, and `student_95` is too narrow."""
FORMULAS = {
    "low_seconds": "seconds x exp(the mean m of ln(measured / planned seconds of a step) of n trainings of calibration "
    "runs on this platform - t s sqrt(1 + 1 / n)); s, the standard deviation, is theirs pooled with 0.108 of 8 degrees "
    "of freedom (34 published rows); without such runs m = 0 and s sqrt(1 + 1 / n) = sqrt(0.108^2 + 0.115^2), for "
    "nothing was measured on the machine; a time by model_flops_utilization has none without three of them",
    "high_seconds": "the same with + t s sqrt(1 + 1 / n)",
}


class Ratio(NamedTuple):
    """How many times as long as planned a step of a finished training took."""

    training: str
    value: float


class Interval(NamedTuple):
    """The factors between which the measured over the planned time lies 95 times of 100."""

    low: float
    high: float


def ratios(plan: ForecastPlan | None, platform: PlatformPlan, is_counted: bool) -> list[Ratio]:
    """Return what the calibration runs on the platform tell of times that are planned in the same way.

    Args:
        is_counted: whether by operations, bytes and bandwidths, not by the platform's model_flops_utilization.
    """
    found = []
    for run in plan.runs if plan else ():
        for name, training in run.trainings.items() if run.platform == platform.name else ():
            planned = run_time(training.model, platform, training.processes)["step_seconds"]
            if planned and is_counted == (not obstacles(training.model, platform, training.processes)):
                found.append(Ratio(f"{name} of {run.folder}", training.step_seconds / planned))
    return found


def interval(found: list[Ratio], is_counted: bool) -> Interval | None:
    """Return the factors by which a planned time is multiplied at both ends; None where nothing tells them."""
    logarithms = [math.log(ratio.value) for ratio in found]
    number, mean = len(logarithms), fmean(logarithms) if logarithms else 0.0
    freedom = STEP_ERROR_FREEDOM if is_counted else 0
    squares = freedom * STEP_ERROR**2 + sum((one - mean) ** 2 for one in logarithms)
    freedom += max(number - 1, 0)
    if freedom < LEAST_FREEDOM:
        return None
    variance = squares / freedom
    spread = math.sqrt(variance * (1 + 1 / number) if number else variance + MACHINE_ERROR**2)
    reach = student_95(freedom) * spread
    return Interval(math.exp(mean - reach), math.exp(mean + reach))


def with_interval(
    planned: dict[str, Any], model: ModelPlan, platform: PlatformPlan, plan: ForecastPlan | None
) -> dict[str, Any]:
    """Return a model's entry of the plan with the ends of its time."""
    none = {"low_seconds": None, "high_seconds": None}
    if planned["seconds"] is None:
        return planned | none
    is_counted = not obstacles(model, platform, planned["devices_used"])
    found = interval(ratios(plan, platform, is_counted), is_counted)
    if found is None:
        return planned | none
    return planned | {f"{end}_seconds": planned["seconds"] * factor for end, factor in found._asdict().items()}


def interval_note(planned: Mapping[str, Any], found: list[Ratio]) -> str:
    """Return the interval of a model's time in one sentence, with what it is known by."""
    if planned["low_seconds"] is None:
        return (
            "no interval of the time: three finished trainings on this platform tell one "
            "(energy: {calibration: [results/SMALL, results/LARGER]})"
        )
    told = " to ".join(readable("seconds", planned[end]) for end in ("low_seconds", "high_seconds"))
    if not found:
        return f"time {told} (95 %) by the error on published trainings; none was measured on this platform"
    values = ", ".join(f"{ratio.value:.3g} ({ratio.training})" for ratio in found)
    return (
        f"time {told} (95 %) by {counted(len(found), 'training')} on this platform, whose steps took as many times as "
        f"long as planned: {values}"
    )
