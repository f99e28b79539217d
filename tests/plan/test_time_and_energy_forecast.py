from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest

from pipeline.plan.alternative_models import SIZE_KEYS, plan_model_sizes
from pipeline.plan.estimate import estimate
from pipeline.plan.settings import EstimateSettings, ForecastPlan, ModelPlan, PlatformPlan
from pipeline.plan.time_and_energy_forecast import MACHINE_ERROR, STEP_ERROR, TimeRatio, fit_time_interval
from pipeline.plan.training_time import estimate_training_time
from tests.conftest import ROOT
from tests.plan.published_steps import unseen_errors
from tests.plan.test_training_time import CLUSTER, THIRTY, UNFITTED, model, platform

STATED = {key: CLUSTER[key] for key in ("name", "devices", "peak_flops_per_second")} | {"model_flops_utilization": 0.4}


def calibration(*times: float, name: str = "cluster", of: Any = None, **training: Any) -> ForecastPlan:
    """Return a run on 16 devices with trainings of the given multiples of the time planned for the platform `of`."""
    small = model(**training)
    planned = estimate_training_time(small, of or platform(), 16)["step_seconds"]
    trainings = {
        f"small{number}": {"model": small.model_dump(), "processes": 16, "step_seconds": factor * planned}
        for number, factor in enumerate(times)
    }
    run = {"folder": "results/pilot", "platform": name, "known": "measured", "steps": {}, "trainings": trainings}
    return ForecastPlan.model_validate({"runs": [run], "work": {}})


def planned(machine: dict[str, Any], forecast: ForecastPlan | None) -> tuple[dict[str, Any], list[str]]:
    content = {"models": {"one": model(THIRTY)}, "platform": machine, "energy": {}, "forecast": forecast}
    plan = estimate(EstimateSettings.model_validate(content, from_attributes=True))
    return plan["models"]["one"], plan["notes"]["one"]


@pytest.mark.parametrize("number", [0, 1, 2, 6])
def test_interval_covers_the_next_training_on_95_percent_of_machines(number: int) -> None:
    drawn = random.Random(number)
    held = []
    for _ in range(4000):
        machine = drawn.gauss(0, MACHINE_ERROR if number == 0 else 1.0)  # for a measured one, with any error
        results = [TimeRatio("", math.exp(machine + drawn.gauss(0, STEP_ERROR))) for _ in range(number)]
        ends = fit_time_interval(results, is_counted=True)
        assert ends is not None
        held.append(ends.low < math.exp(machine + drawn.gauss(0, STEP_ERROR)) < ends.high)
    # With a known spread the quantile of five degrees of freedom covers a little more: 99.0 of 100.
    assert 0.95 < statistics.fmean(held) < 0.993


def test_platform_with_scattered_trainings_has_a_wide_interval() -> None:
    similar, scattered = (
        fit_time_interval([TimeRatio("", r) for r in values], True) for values in ((1.2, 1.2, 1.2), (0.6, 1.2, 2.4))
    )
    assert similar and scattered
    assert math.isclose(math.sqrt(similar.low * similar.high), 1.2) and math.isclose(
        math.sqrt(scattered.low * scattered.high), 1.2
    )
    squares = 5 * STEP_ERROR**2 + 2 * math.log(2) ** 2
    # Student's quantile of seven degrees of freedom by a table: 2.365
    assert math.isclose(math.log(scattered.high / 1.2), 2.365 * math.sqrt(squares / 7 * 4 / 3), rel_tol=1e-3)
    assert similar.high < 1.4 < 2.6 < scattered.high


def test_utilization_based_time_has_an_interval_only_from_measurements() -> None:
    assert (
        fit_time_interval([], False) is None
        and fit_time_interval([TimeRatio("", 1.1), TimeRatio("", 1.3)], False) is None
    )
    time_interval = fit_time_interval([TimeRatio("", 1.0), TimeRatio("", 1.1), TimeRatio("", 1.21)], False)
    assert time_interval and time_interval.low < 1 < 1.21 < time_interval.high


@pytest.mark.slow
def test_error_is_that_of_held_out_published_rows() -> None:
    result = unseen_errors()
    assert len(result) == 34
    assert round(math.sqrt(sum(error**2 for error in result) / len(result)), 3) == STEP_ERROR


def test_unknown_machine_adds_the_error_of_published_speeds() -> None:
    squares = [
        math.log(estimate()["tokens_per_second_per_device"] / speed) ** 2 for estimate, speed in UNFITTED.items()
    ]
    mean = sum(squares) / len(squares)
    assert round(math.sqrt(mean), 3) == 0.083 and "0.083" in (ROOT / "docs/results/plan.md").read_text()
    assert round(math.sqrt(mean - STEP_ERROR**2), 3) == MACHINE_ERROR


def test_finished_trainings_on_the_platform_shift_and_narrow_the_time() -> None:
    alone, notes = planned(CLUSTER, None)
    assert alone["low_seconds"] < alone["seconds"] < alone["high_seconds"]
    assert any("none was measured on this platform" in note for note in notes)
    known, notes = planned(CLUSTER, calibration(1.3, 1.3))
    assert known["seconds"] == alone["seconds"], "the plan itself is unchanged"
    assert math.isclose(math.sqrt(known["low_seconds"] * known["high_seconds"]), 1.3 * alone["seconds"])
    assert known["high_seconds"] / known["low_seconds"] < alone["high_seconds"] / alone["low_seconds"]
    (note,) = [note for note in notes if "95 %" in note]
    assert "from 2 trainings on this platform" in note and "1.3 (small0 of results/pilot)" in note


def test_other_platforms_or_planning_methods_do_not_calibrate() -> None:
    machine = CLUSTER | {"model_flops_utilization": 0.4}
    alone, _ = planned(machine, None)
    assert planned(machine, calibration(2, name="other"))[0] == alone
    by_utilization = calibration(2, 2, 2, of=platform(**machine), precision="fp32")
    assert planned(machine, by_utilization)[0] == alone, "in fp32 no operations are counted"
    assert planned(machine, calibration(2))[0] != alone
    stated, notes = planned(STATED, calibration(2, 2, 2, of=PlatformPlan.model_validate(STATED), precision="fp32"))
    assert math.isclose(math.sqrt(stated["low_seconds"] * stated["high_seconds"]), 2 * stated["seconds"])
    assert any("from 3 trainings on this platform" in note for note in notes)


def test_missing_time_has_no_interval() -> None:
    nothing, notes = planned({"name": "bare"}, None)
    assert nothing["low_seconds"] is None and nothing["high_seconds"] is None and len(notes) == 1
    stated, notes = planned(STATED, None)
    assert stated["seconds"] and stated["low_seconds"] is None
    assert any("no interval of the time: it needs three finished" in note for note in notes)


def planned_notes(platform: dict[str, Any], **models: Any) -> dict[str, Any]:
    dumped = {name: one.model_dump() for name, one in models.items()}
    return estimate(EstimateSettings.model_validate({"models": dumped, "platform": platform, "energy": {}}))


def test_time_note_names_its_method_and_exclusions():
    plan = planned_notes(CLUSTER, one=model(validation_every=10))
    by, ends, missing, others = plan["notes"]["one"]
    assert " (95 %), from the errors on published trainings; none was measured on this platform" in ends
    assert by.startswith("time by operations, bytes and bandwidths; failures at the rate of Llama 3 405B")
    for word in ("loading", "validation_tokens", "job_start_seconds", "job_queue_seconds", "storage_bytes_per_second"):
        assert word in missing
    assert "Llama 3 8B 1,300,000 hours of H100 for 15 trillion tokens, 16 % of the peak" in others
    known = {
        "failures_per_device_hour": 1e-5,
        "job_start_seconds": 1,
        "job_queue_seconds": 1,
        "storage_bytes_per_second": 1,
    }
    by, _, missing, _ = planned_notes(CLUSTER | known, one=model())["notes"]["one"]
    assert by.endswith("failures at the platform's rate")
    assert missing == "not included: loading, and checkpoints that are written during the training"


def test_imported_model_has_no_law_predictions_or_shape_advice():
    odd = model().model_copy(update={"vocabulary_size": 50_257})
    alone = planned_notes(CLUSTER, one=odd)
    assert alone["models"]["one"]["expected_loss_nats_per_token"] and alone["advice"]["one"]
    plan = planned_notes(CLUSTER, one=odd.model_copy(update={"pretrained": True}))
    assert plan["notes"]["one"][0].startswith("begins with pretrained weights: its shape is theirs")
    assert plan["notes"]["one"][1:] == alone["notes"]["one"] and plan["advice"]["one"] == []
    unknown = [key for key, value in plan["models"]["one"].items() if value is None]
    assert {"expected_loss_nats_per_token", "step_law_learning_rate"} <= {*unknown}
    assert plan["models"]["one"]["seconds"] == alone["models"]["one"]["seconds"]


def test_plan_faster_than_all_published_runs_is_flagged():
    fast = planned_notes(CLUSTER | {"network_bytes_per_second": 100e9}, one=model(THIRTY))
    (*_, others), one = fast["notes"]["one"], fast["models"]["one"]
    slow = planned_notes(CLUSTER | {"matrix_flops_per_second": 100e12}, one=model(THIRTY))
    assert "is faster than all of them" in others and "faster than all" not in slow["notes"]["one"][-1]
    assert f"{one['published_most_seconds'] / one['seconds']:.2g} times as fast as the slowest" in others


def test_plan_without_figures_names_the_missing_ones_and_how_to_measure_them():
    stated_figures = {key: value for key, value in CLUSTER.items() if key != "network_bytes_per_second"}
    (nothing,) = planned_notes(stated_figures, one=model())["notes"]["one"]
    assert nothing.startswith("no time: the platform cluster does not state network_bytes_per_second: ibstat")
    stated, ends, _ = planned_notes(stated_figures | {"model_flops_utilization": 0.3}, one=model())["notes"]["one"]
    assert stated.startswith(
        "time of the steps alone, by the platform's model_flops_utilization 0.3, because the platform cluster"
    )
    assert ends.startswith("no interval of the time: it needs three finished trainings on this platform")
    bare = planned_notes({"name": "bare"}, one=model())
    assert "peak_flops_per_second" in bare["notes"]["one"][0] and bare["sizes"] == []


def test_model_sizes_are_listed_by_tokens_with_the_fastest_fitting_settings():
    plan = planned_notes(
        CLUSTER | {"nodes": 22, "memory_bytes_per_device": 94 * 10**9, "device_power_watts": 805.0}, one=model()
    )
    rows = plan["sizes"]
    assert [(row["model"], row["tokens_per_parameter"]) for row in rows[:3]] == [
        ("llama3-1b", 20), ("llama3-1b", 200), ("llama3-1b", 1875),
    ]  # fmt: skip
    assert len(rows) == 15 and all(row["tokens"] == row["parameters"] * row["tokens_per_parameter"] for row in rows)
    eight = {row["tokens_per_parameter"]: row for row in rows if row["model"] == "llama3-8b"}
    assert math.isclose(eight[200]["seconds"], 10 * eight[20]["seconds"], rel_tol=1e-3)
    assert math.isclose(eight[20]["energy_joules"], eight[20]["device_hours"] * 3600 * 805)
    times = [row["seconds"] for row in rows if row["tokens_per_parameter"] == 20]
    assert times == sorted(times)
    (seventy,) = {row["way"] for row in rows if row["model"] == "llama3-70b"}
    assert "recomputation full" in seventy
    small = planned_notes(CLUSTER | {"nodes": 1, "memory_bytes_per_device": 10**10}, one=model())
    assert small["sizes"][-1]["way"] is None and small["sizes"][-1]["seconds"] is None


def test_fastest_settings_are_chosen():
    def estimate_by_operations(one: ModelPlan) -> dict[str, Any]:
        fast = one.training.micro_batch_size == 2 and one.training.strategy == "shard_grad_op"
        fits = {"memory_fits": True, "memory_fits_with_recomputation": True}
        return {**dict.fromkeys(SIZE_KEYS, 1.0), **fits, "step_seconds": 1.0 if fast else 2.0}

    ways = {row["way"] for row in plan_model_sizes(estimate_by_operations, platform())}
    assert ways == {"shard_grad_op, tensor 1, micro-batch 2, recomputation none"}


def test_model_sizes_use_the_utilization_if_step_time_is_unknown():
    stated = {"name": "a", "devices": 8, "peak_flops_per_second": 1e15, "model_flops_utilization": 0.4}
    row = planned_notes(stated, one=model())["sizes"][0]
    assert row["way"].startswith("hybrid_shard, tensor 1, micro-batch 1, recomputation none") and row["seconds"] > 0
