"""Forecast energy and time of the planned run from finished small runs, by step and in all, with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.core.errors import InputError
from pipeline.energy.energy_forecast import (
    CostPrediction,
    Forecast,
    Range,
    accounting_interval,
    forecast_chain,
    widen_interval,
)
from pipeline.plan.settings import ForecastPlan, StepCost

NO_RUNS = (
    "No forecast by measured runs: make two finished runs of the same steps on less text, of two sizes, and name their "
    "folders in the configuration: energy: {calibration: [results/SMALL, results/LARGER]} (docs/howto/plan-a-run.md)."
)
SCOPE = (
    "Of the jobs whose outputs stand, their seconds added up as if one ran after another; without lost attempts, idle "
    "nodes, Snakemake's own process, plan, report and crate."
)


def calibrated_forecast(plan: ForecastPlan, platform: str) -> dict[str, Any]:
    """Return the forecast as JSON: of each step seconds and joules with 95 % intervals, or why there is none."""
    fitted: dict[str, Forecast] = {}
    work: dict[str, float] = {}
    steps: dict[str, dict[str, Any]] = {}
    ends: dict[str, tuple[float, float]] = {}
    for step, planned in plan.work.items():
        told: dict[str, Any] = {"work": planned.amount, "unit": planned.unit}
        try:
            if planned.amount is None:
                raise InputError(planned.refused or "its work is not known before the run")
            rows = _rows(plan, step)
            fitted[step] = Forecast.fit([(row.work, row.seconds, row.joules) for row in rows])
            work[step] = planned.amount
            ends[step] = _account_ends(rows)
            steps[step] = told | _prediction_json(fitted[step].predict(planned.amount), ends[step])
        except InputError as error:
            steps[step] = told | {"refused": str(error)}
    return {
        "label": "estimated",
        "scope": SCOPE,
        "calibration": [{"folder": run.folder, "platform": run.platform, "known": run.known} for run in plan.runs],
        "notes": _notes(plan, platform),
        "steps": steps,
        "chain": _chain(steps, fitted, work, ends),
    }


def _rows(plan: ForecastPlan, step: str) -> list[StepCost]:
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


def _account_ends(rows: Iterable[StepCost]) -> tuple[float, float]:
    """Return the widest ends of the account's own intervals: a model's mistake no scatter of the runs tells."""
    ends = [accounting_interval(row.joules, row.low_joules, row.high_joules) for row in rows]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _prediction_json(prediction: CostPrediction, ends: tuple[float, float]) -> dict[str, float]:
    """Return a prediction as JSON, its joules with the ends of the account's own interval."""
    low, high = widen_interval(Range(prediction.joules, prediction.low, prediction.high), ends)[1:]
    return {
        "seconds": prediction.seconds,
        "low_seconds": prediction.seconds_low,
        "high_seconds": prediction.seconds_high,
        "joules": prediction.joules,
        "low_joules": low,
        "high_joules": high,
    }


def _chain(
    steps: Mapping[str, Mapping[str, Any]],
    fitted: Mapping[str, Forecast],
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
    return _prediction_json(whole, (low, high))


def _notes(plan: ForecastPlan, platform: str) -> list[str]:
    return [
        f"{run.folder} ran on the platform {run.platform}, this run is planned for {platform}: the forecast is of a "
        f"run on {run.platform}."
        for run in plan.runs
        if run.platform != platform
    ]
