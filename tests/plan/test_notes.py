from __future__ import annotations

import math
import re
from typing import Any

from pipeline.plan.estimate import estimate
from pipeline.plan.settings import EstimateSettings, ModelPlan
from pipeline.plan.sizes import KEPT, sizes
from pipeline.plan.table import table
from pipeline.plan.time_table import time_lines
from tests.plan.test_run_time import CLUSTER, THIRTY, model, platform


def planned(platform: dict[str, Any], **models: Any) -> dict[str, Any]:
    told = {name: one.model_dump() for name, one in models.items()}
    return estimate(EstimateSettings.model_validate({"models": told, "platform": platform, "energy": {}}))


def test_a_time_says_what_it_is_by_and_what_is_not_in_it():
    plan = planned(CLUSTER, one=model(validation_every=10))
    by, ends, missing, others = plan["notes"]["one"]
    assert " (95 %) by the error on published trainings; none was measured on this platform" in ends
    assert by.startswith("time by operations, bytes and bandwidths; failures as often as those of Llama 3 405B")
    for word in ("loading", "validation_tokens", "job_start_seconds", "job_queue_seconds", "storage_bytes_per_second"):
        assert word in missing
    assert "Llama 3 8B 1,300,000 hours of H100 for 1.5e+13 tokens, 16 % of the peak" in others
    known = {
        "failures_per_device_hour": 1e-5,
        "job_start_seconds": 1,
        "job_queue_seconds": 1,
        "storage_bytes_per_second": 1,
    }
    by, _, missing, _ = planned(CLUSTER | known, one=model())["notes"]["one"]
    assert by.endswith("failures at the platform's rate")
    assert missing == "not in it: loading, and checkpoints written beside the training"


def test_of_a_model_that_was_trained_before_laws_and_shapes_are_not_told():
    odd = model().model_copy(update={"vocabulary_size": 50_257})
    alone = planned(CLUSTER, one=odd)
    assert alone["models"]["one"]["expected_loss_nats_per_token"] and alone["advice"]["one"]
    plan = planned(CLUSTER, one=odd.model_copy(update={"pretrained": True}))
    assert plan["notes"]["one"][0].startswith("begins with weights that were trained before: its shape is theirs")
    assert plan["notes"]["one"][1:] == alone["notes"]["one"] and plan["advice"]["one"] == []
    unknown = [key for key, value in plan["models"]["one"].items() if value is None]
    assert {"expected_loss_nats_per_token", "step_law_learning_rate"} <= {*unknown}
    assert plan["models"]["one"]["seconds"] == alone["models"]["one"]["seconds"]
    assert table(plan) and time_lines(plan)


def test_a_plan_that_is_faster_than_all_published_runs_says_so():
    (*_, others) = planned(CLUSTER, one=model(THIRTY))["notes"]["one"]
    slow = planned(CLUSTER | {"matrix_flops_per_second": 100e12}, one=model(THIRTY))
    assert "faster than all" in others and "faster than all" not in slow["notes"]["one"][-1]
    one = planned(CLUSTER, one=model(THIRTY))["models"]["one"]
    assert f"{one['published_most_seconds'] / one['seconds']:.2g} times as fast as the slowest" in others


def test_a_plan_without_figures_says_which_are_missing_and_how_to_measure_them():
    told = {key: value for key, value in CLUSTER.items() if key != "network_bytes_per_second"}
    (nothing,) = planned(told, one=model())["notes"]["one"]
    assert nothing.startswith("no time: the platform cluster does not state network_bytes_per_second: ibstat")
    stated, ends, _ = planned(told | {"model_flops_utilization": 0.3}, one=model())["notes"]["one"]
    assert stated.startswith(
        "time by the platform's model_flops_utilization 0.3, steps alone, for the platform cluster"
    )
    assert ends.startswith("no interval of the time: three finished trainings on this platform tell one")
    bare = planned({"name": "bare"}, one=model())
    assert "peak_flops_per_second" in bare["notes"]["one"][0] and bare["sizes"] == []
    assert "step compute time" not in table(bare) and "step compute time" in table(planned(CLUSTER, one=model()))
    lines = time_lines(bare)
    assert lines[0].startswith("one: no time: ") and not any("per parameter" in line for line in lines)


def test_sizes_are_told_by_tokens_and_in_the_fastest_way_that_fits():
    plan = planned(
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
    text = "\n".join(time_lines(plan))
    assert "88 devices of cluster, estimated" in text and re.search("llama3-8b, 1,875 per parameter +1.51e\\+13", text)
    small = planned(CLUSTER | {"nodes": 1, "memory_bytes_per_device": 10**10}, one=model())
    assert small["sizes"][-1]["way"] is None and small["sizes"][-1]["seconds"] is None
    assert "llama3-70b: fits in no way that was tried" in time_lines(small)


def test_the_fastest_way_is_taken():
    def told(one: ModelPlan) -> dict[str, Any]:
        fast = one.training.micro_batch_size == 2 and one.training.strategy == "shard_grad_op"
        fits = {"memory_fits": True, "memory_fits_with_recomputation": True}
        return {**dict.fromkeys(KEPT, 1.0), **fits, "step_seconds": 1.0 if fast else 2.0}

    ways = {row["way"] for row in sizes(told, platform())}
    assert ways == {"shard_grad_op, tensor 1, micro-batch 2, recomputation none"}


def test_sizes_are_told_by_the_utilization_where_steps_cannot_be_counted():
    stated = {"name": "a", "devices": 8, "peak_flops_per_second": 1e15, "model_flops_utilization": 0.4}
    row = planned(stated, one=model())["sizes"][0]
    assert row["way"].startswith("hybrid_shard, tensor 1, micro-batch 1, recomputation none") and row["seconds"] > 0
