"""A larger run is forecast from small ones: better than published, and intervals cover the measured energy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.errors import InputError
from pipeline.energy import energy_forecast as module
from pipeline.energy.energy_forecast import (
    CostForecast,
    ForecastJob,
    forecast_remaining_jobs,
    forecast_steps,
)
from tests.energy.ear_jobs import LARGE, SMALL, STEPS, held_out, runs, summary, table, work_of

RUNS = runs(table(Path(__file__).with_name("ear_jobs.csv")))
BYTES = work_of(RUNS)
PUBLISHED = {"data_splitting": 0.144, "string_normalization": 0.155, "heuristic_filtering": 0.081}


def test_rows_equal_the_published_table() -> None:
    first = next(run for run in RUNS if run.step == "data_splitting" and run.documents == 1_000)
    assert first.joules == pytest.approx(337.576 * 8.89924, rel=1e-4), "two jobs on two nodes, their power summed"
    assert len(RUNS) == 24


def test_forecast_by_text_bytes_has_lower_errors_than_published() -> None:
    result = held_out(RUNS, BYTES)
    assert {step: round(one.error, 3) for step, one in result.items()} == {
        "data_splitting": 0.050,
        "string_normalization": 0.049,
        "heuristic_filtering": 0.044,
    }
    assert all(result[step].error < PUBLISHED[step] for step in STEPS)
    covered, half_width = summary(result)
    assert covered >= 0.9 and half_width <= 0.30


def test_forecast_by_documents_has_the_published_errors_and_its_interval_covers() -> None:
    result = held_out(RUNS, lambda run: run.documents)
    assert {step: round(one.error, 3) for step, one in result.items()} == PUBLISHED
    covered, half_width = summary(result)
    assert covered >= 0.9 and half_width <= 0.30


@pytest.mark.parametrize(
    ("small", "large", "replicates"),
    [
        ((1_000, 400_000), (100_000, 1_400_000), (1, 2)),
        ((100_000, 400_000), (1_400_000,), (1, 2)),
        (SMALL, LARGE, (1,)),
    ],
)
def test_intervals_cover_other_calibrations(
    small: tuple[int, ...], large: tuple[int, ...], replicates: tuple[int, ...]
) -> None:
    result = held_out(RUNS, work_of(RUNS, small), small, large, replicates)
    assert summary(result)[0] >= 0.9


def drawn(random: np.random.Generator, start: float, work: float, sigma: float, bend: float, largest: float) -> float:
    """Return the cost of a run under the forecast model, at one joule per unit of work."""
    cold = max(start * (1 + module.START_ERROR / module.RUN_ERROR * sigma * random.standard_normal()), 0.02 * start)
    useful = work * max(work / largest, 1) ** bend
    return max(cold + useful + (start + useful) * sigma * random.standard_normal(), 1e-9)


def scatter(random: np.random.Generator) -> float:
    """Return the scatter of a step's runs, estimated with few degrees of freedom."""
    return module.RUN_ERROR * math.sqrt(module.RUN_ERROR_FREEDOM / random.chisquare(module.RUN_ERROR_FREEDOM))


@pytest.mark.slow
@pytest.mark.parametrize("works", [(1e3, 1e5), (1e3, 1e3, 1e5, 1e5), (1e3, 1e4, 1e5)])
def test_interval_covers_95_percent_under_the_model(works: tuple[float, ...]) -> None:
    random, held = np.random.default_rng(1), 0
    for _ in range(2000):
        sigma, bend = scatter(random), module.EXPONENT_ERROR * random.standard_normal()
        start, target = 1e5 * 10 ** random.uniform(-2, -0.7), random.choice([2e5, 4e5, 1.4e6])
        costs = [drawn(random, start, work, sigma, bend, 1e5) for work in works]
        prediction = CostForecast.fit([(w, cost, cost) for w, cost in zip(works, costs, strict=True)]).predict(target)
        held += prediction.low <= drawn(random, start, target, sigma, bend, 1e5) <= prediction.high
    assert held / 2000 == pytest.approx(0.95, abs=0.02)


@pytest.mark.slow
def test_chain_interval_covers_95_percent() -> None:
    random, held, works = np.random.default_rng(2), 0, (1e3, 1e3, 1e5, 1e5)
    for _ in range(2000):
        bend, truth, forecasts = module.EXPONENT_ERROR * random.standard_normal(), 0.0, {}
        for step, size in {"a": 1.0, "b": 5.0, "c": 3.0}.items():
            sigma = scatter(random)
            costs = [size * drawn(random, 3e3, work, sigma, bend, 1e5) for work in works]
            forecasts[step] = CostForecast.fit([(w, cost, cost) for w, cost in zip(works, costs, strict=True)])
            truth += size * drawn(random, 3e3, 8e5, sigma, bend, 1e5)
        prediction = forecast_steps(forecasts, dict.fromkeys(forecasts, 8e5))
        held += prediction.low <= truth <= prediction.high
    assert held / 2000 == pytest.approx(0.95, abs=0.02)


def test_published_chain_is_in_its_interval_which_is_narrower_than_its_steps() -> None:
    forecasts = {
        step: CostForecast.fit(
            [(BYTES(r), r.seconds, r.joules) for r in RUNS if r.step == step and r.documents in SMALL]
        )
        for step in STEPS
    }
    large = [run for run in RUNS if run.documents == 1_400_000 and run.replicate == 1]
    total = forecast_steps(forecasts, {run.step: BYTES(run) for run in large})
    assert total.low < sum(run.joules for run in large) < total.high
    assert total.seconds_low < sum(run.seconds for run in large) < total.seconds_high
    assert total.joules == pytest.approx(sum(forecasts[run.step].predict(BYTES(run)).joules for run in large))
    parts = [forecasts[run.step].predict(BYTES(run)) for run in large]
    assert total.high - total.low < sum(part.high - part.low for part in parts)


def test_remaining_jobs_cost_per_byte_what_finished_jobs_did() -> None:
    done = [ForecastJob(100, 10, 2_000), ForecastJob(300, 30, 6_000)]
    left = forecast_remaining_jobs(done, [200, 200])
    assert (left.seconds, left.joules) == (pytest.approx(40), pytest.approx(8_000))
    assert left.low < 8_000 < left.high and left.seconds_low < 40 < left.seconds_high
    more = forecast_remaining_jobs(done * 20, [200, 200])
    assert more.high - more.low < left.high - left.low, "more jobs are more informative"
    assert forecast_remaining_jobs(done, []) == forecast_remaining_jobs(done, [0.0]) == (0,) * 6


@pytest.mark.parametrize("number", [1, 3, 30])
def test_interval_of_remaining_jobs_covers_95_percent(number: int) -> None:
    random, held = np.random.default_rng(number), 0
    for _ in range(2000):
        freedom = module.JOB_ERROR_FREEDOM
        sigma = min(module.JOB_ERROR * math.sqrt(freedom / random.chisquare(freedom)), 0.4)
        work = random.uniform(50, 150, number + 40)
        cost = np.maximum(work * (1 + sigma * random.standard_normal(len(work))), 1e-9)
        left = forecast_remaining_jobs(
            [ForecastJob(w, c, c) for w, c in zip(work[:number], cost[:number], strict=True)], list(work[number:])
        )
        held += left.low <= cost[number:].sum() <= left.high
    assert held / 2000 == pytest.approx(0.95, abs=0.02)


def test_cold_start_of_a_small_run_does_not_change_the_slope() -> None:
    warm = CostForecast.fit([(1e3, 9, 2e3), (1e3, 9, 2e3), (1e6, 1e3, 3e5), (1e6, 1e3, 3e5)]).predict(1e7)
    cold = CostForecast.fit([(1e3, 9, 2e3), (1e3, 36, 8e3), (1e6, 1e3, 3e5), (1e6, 1e3, 3e5)]).predict(1e7)
    assert cold.joules == pytest.approx(warm.joules, rel=0.02)


@pytest.mark.parametrize("unit", [1.0, 1e9])
def test_unit_of_work_does_not_matter(unit: float) -> None:
    prediction = CostForecast.fit([(1e3 * unit, 9, 2e3), (1e6 * unit, 1e3, 3e5)]).predict(1e7 * unit)
    assert prediction == pytest.approx(CostForecast.fit([(1e3, 9, 2e3), (1e6, 1e3, 3e5)]).predict(1e7), rel=1e-9)


def test_step_with_decreasing_cost_is_constant_with_a_wide_interval() -> None:
    prediction = CostForecast.fit([(1e3, 9, 2_000), (1e5, 8, 1_900)]).predict(1e6)
    assert 1_900 <= prediction.joules <= 2_000 and prediction.high > 2 * prediction.joules
    assert prediction.low > 0


def test_zero_work_has_a_startup_cost() -> None:
    prediction = CostForecast.fit([(1e3, 9, 2_000), (1e5, 100, 30_000)]).predict(0)
    assert 0 < prediction.low < prediction.joules < 2_000 and prediction.seconds > 0
    assert CostForecast.fit([(1, 1, 1), (10, 12, 12)]).predict(0) == (0,) * 6, "a negative startup cost is zero"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(1e3, 9, 2e3)], r"^the calibration runs are all of one size.* ten times as large or small$"),
        ([(1e3, 9, 2e3), (1e3, 8, 1e3)], r"^the calibration runs are all of one size"),
        ([], r"^the calibration runs are all of one size"),
        ([(1e3, 9, 2e3), (1e5, 90, 0)], r"^calibration run 2 says 100000 of work, 90 s and 0 J: .*leave the run out$"),
        ([(0, 9, 2e3), (1e5, 90, 2e4)], r"^calibration run 1 says 0 of work"),
        ([(1e3, math.nan, 2e3), (1e5, 90, 2e4)], r"^calibration run 1 says 1000 of work, nan s"),
    ],
)
def test_uninformative_calibration_runs_are_refused(rows: list[tuple[float, float, float]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        CostForecast.fit(rows)


def test_impossible_forecasts_are_refused() -> None:
    forecast = CostForecast.fit([(1e3, 9, 2e3), (1e5, 90, 2e4)])
    with pytest.raises(InputError, match=r"^a forecast of -1 of work: give 0 or more$"):
        forecast.predict(-1)
    with pytest.raises(InputError, match=r"^no calibration runs of b: a chain needs them of each step$"):
        forecast_steps({"a": forecast}, {"a": 1e4, "b": 1e4})
    with pytest.raises(InputError, match=r"^no calibration runs of any step"):
        forecast_steps({}, {})
    with pytest.raises(InputError, match=r"^no job of the step has done any work yet"):
        forecast_remaining_jobs([], [1.0])
