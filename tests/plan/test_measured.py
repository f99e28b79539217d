from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest

from pipeline.plan.estimate import estimate
from pipeline.plan.measured import MACHINE_ERROR, STEP_ERROR, Ratio, interval
from pipeline.plan.run_time import run_time
from pipeline.plan.settings import EstimateSettings, ForecastPlan, PlatformPlan
from tests.conftest import ROOT
from tests.plan.published_steps import unseen_errors
from tests.plan.test_run_time import CLUSTER, THIRTY, UNFITTED, model, platform

STATED = {key: CLUSTER[key] for key in ("name", "devices", "peak_flops_per_second")} | {"model_flops_utilization": 0.4}


def calibration(*times: float, name: str = "cluster", of: Any = None, **training: Any) -> ForecastPlan:
    """Return a run on 16 devices whose trainings took so many times as long as is planned for the platform `of`."""
    small = model(**training)
    planned = run_time(small, of or platform(), 16)["step_seconds"]
    trainings = {
        f"small{number}": {"model": small.model_dump(), "processes": 16, "step_seconds": factor * planned}
        for number, factor in enumerate(times)
    }
    run = {"folder": "results/pilot", "platform": name, "known": "measured", "steps": {}, "trainings": trainings}
    return ForecastPlan.model_validate({"runs": [run], "work": {}})


def planned(machine: dict[str, Any], forecast: ForecastPlan | None) -> tuple[dict[str, Any], list[str]]:
    told = {"models": {"one": model(THIRTY)}, "platform": machine, "energy": {}, "forecast": forecast}
    plan = estimate(EstimateSettings.model_validate(told, from_attributes=True))
    return plan["models"]["one"], plan["notes"]["one"]


@pytest.mark.parametrize("number", [0, 1, 2, 6])
def test_of_many_machines_95_of_100_intervals_hold_what_the_next_training_takes(number: int) -> None:
    drawn = random.Random(number)
    held = []
    for _ in range(4000):
        machine = drawn.gauss(0, MACHINE_ERROR if number == 0 else 1.0)  # of a measured one, however far off it is
        found = [Ratio("", math.exp(machine + drawn.gauss(0, STEP_ERROR))) for _ in range(number)]
        ends = interval(found, is_counted=True)
        assert ends is not None
        held.append(ends.low < math.exp(machine + drawn.gauss(0, STEP_ERROR)) < ends.high)
    # Of a spread that is known the quantile of eight degrees of freedom holds a little more: 97.9 of 100.
    assert 0.95 < statistics.fmean(held) < 0.985


def test_a_platform_whose_trainings_differ_much_has_a_wide_interval() -> None:
    alike, apart = (interval([Ratio("", r) for r in values], True) for values in ((1.2, 1.2, 1.2), (0.6, 1.2, 2.4)))
    assert alike and apart
    assert math.isclose(math.sqrt(alike.low * alike.high), 1.2) and math.isclose(math.sqrt(apart.low * apart.high), 1.2)
    squares = 8 * STEP_ERROR**2 + 2 * math.log(2) ** 2
    # Student's quantile of ten degrees of freedom by a table: 2.228
    assert math.isclose(math.log(apart.high / 1.2), 2.228 * math.sqrt(squares / 10 * 4 / 3), rel_tol=1e-3)
    assert alike.high < 1.6 < 2.7 < apart.high


def test_a_time_by_a_stated_utilization_knows_nothing_but_what_was_measured() -> None:
    assert interval([], False) is None and interval([Ratio("", 1.1), Ratio("", 1.3)], False) is None
    found = interval([Ratio("", 1.0), Ratio("", 1.1), Ratio("", 1.21)], False)
    assert found and found.low < 1 < 1.21 < found.high


@pytest.mark.slow
def test_the_error_is_that_of_published_rows_that_nothing_was_fitted_on() -> None:
    found = unseen_errors()
    assert len(found) == 34
    assert round(math.sqrt(sum(error**2 for error in found) / len(found)), 3) == STEP_ERROR


def test_a_machine_of_which_nothing_is_known_adds_what_published_speeds_elsewhere_are_off_by_more() -> None:
    squares = [math.log(told()["tokens_per_second_per_device"] / speed) ** 2 for told, speed in UNFITTED.items()]
    mean = sum(squares) / len(squares)
    assert round(math.sqrt(mean), 3) == 0.158 and f"{math.sqrt(mean):.3f}" in (ROOT / "docs/plan.md").read_text()
    assert round(math.sqrt(mean - STEP_ERROR**2), 3) == MACHINE_ERROR


def test_finished_trainings_on_the_platform_move_and_narrow_the_time() -> None:
    alone, told = planned(CLUSTER, None)
    assert alone["low_seconds"] < alone["seconds"] < alone["high_seconds"]
    assert any("none was measured on this platform" in note for note in told)
    known, told = planned(CLUSTER, calibration(1.3, 1.3))
    assert known["seconds"] == alone["seconds"], "the plan itself stays what it is counted as"
    assert math.isclose(math.sqrt(known["low_seconds"] * known["high_seconds"]), 1.3 * alone["seconds"])
    assert known["high_seconds"] / known["low_seconds"] < alone["high_seconds"] / alone["low_seconds"]
    (note,) = [note for note in told if "95 %" in note]
    assert "by 2 trainings on this platform" in note and "1.3 (small0 of results/pilot)" in note


def test_another_platform_or_another_way_of_planning_tells_nothing() -> None:
    machine = CLUSTER | {"model_flops_utilization": 0.4}
    alone, _ = planned(machine, None)
    assert planned(machine, calibration(2, name="other"))[0] == alone
    by_utilization = calibration(2, 2, 2, of=platform(**machine), precision="fp32")
    assert planned(machine, by_utilization)[0] == alone, "in fp32 no operations are counted"
    assert planned(machine, calibration(2))[0] != alone
    stated, notes = planned(STATED, calibration(2, 2, 2, of=PlatformPlan.model_validate(STATED), precision="fp32"))
    assert math.isclose(math.sqrt(stated["low_seconds"] * stated["high_seconds"]), 2 * stated["seconds"])
    assert any("by 3 trainings on this platform" in note for note in notes)


def test_without_a_time_there_is_no_interval() -> None:
    nothing, notes = planned({"name": "bare"}, None)
    assert nothing["low_seconds"] is None and nothing["high_seconds"] is None and len(notes) == 1
    stated, notes = planned(STATED, None)
    assert stated["seconds"] and stated["low_seconds"] is None
    assert any("no interval of the time: three finished trainings" in note for note in notes)
