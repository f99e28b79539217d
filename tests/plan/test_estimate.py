from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pipeline.plan.estimate import estimate, run
from pipeline.plan.plan_tables import format_quantity
from pipeline.plan.settings import EstimateSettings

SHAPE = {"layers": 60, "width": 6656, "feed_forward_width": 17920, "heads": 52, "key_value_heads": 13}
TRAINING = {
    "strategy": "full_shard",
    "precision": "bf16",
    "sequence_length": 4096,
    "batch_size": 880,
    "micro_batch_size": 1,
    "steps": 124_845,  # 450 billion tokens
    "learning_rate": 0.0001,  # a key that a plan ignores
}
PLATFORM = {
    "name": "a cluster",
    "devices": 88,
    "peak_flops_per_second": 989.5e12,
    "device_power_watts": 700.0,
    "memory_bytes_per_device": 94 * 10**9,
    "model_flops_utilization": 0.4,
    "price_euros_per_device_hour": 2.5,
    "partitions": {"gpu": {"cpus": 64, "gpus": 4, "allocation": {"cpus": 16, "gpus": 1}}},
}


def settings(platform: dict[str, Any], **models: dict[str, Any]) -> EstimateSettings:
    return EstimateSettings.model_validate(
        {
            "models": {
                name: {"architecture": SHAPE, "training": {**TRAINING, **changes}, "vocabulary_size": 128_256}
                for name, changes in models.items()
            },
            "platform": platform,
            "energy": {
                "pue": 1.19,
                "carbon_intensity_grams_per_kwh": 267.622,
                "water_liters_per_kwh": 0.08,
                "meters": "auto",
            },
        }
    )


def test_plan_of_a_published_run(tmp_path: Path):
    path = tmp_path / "plan.json"
    assert run(settings(PLATFORM, big={"micro_batch_size": 2}), plan=path) == {"models": 1}
    plan = json.loads(path.read_text(encoding="utf-8"))
    model = plan["models"]["big"]
    assert plan["label"] == "estimated"
    assert round(model["parameters"] / 1e9, 2) == 29.82
    assert round(model["seconds_6nd"] / 86_400, 1) == 26.8
    assert round(model["seconds_8nd"] / 86_400, 1) == 35.7
    assert model["tensor_parallel_degrees"] == [1, 2, 4]
    assert not model["memory_fits"]  # the activations of 60 layers
    assert model["memory_fits_with_recomputation"]
    kilowatt_hours = model["seconds"] * 88 * 700 / 3.6e6
    assert round(model["carbon_grams"] / (kilowatt_hours * 1.19 * 267.622), 9) == 1
    assert round(model["water_liters"] / (kilowatt_hours * 0.08), 9) == 1
    assert round(model["cost_euros"] / (model["seconds"] / 3600 * 88 * 2.5), 9) == 1


def test_every_figure_has_a_formula_and_totals_add_up():
    plan = estimate(settings(PLATFORM, one={}, two={"steps": 100}))
    assert {key for model in plan["models"].values() for key in model} == set(plan["formulas"])
    assert set(plan["totals"]) <= set(plan["formulas"])
    for key, total in plan["totals"].items():
        assert total == plan["models"]["one"][key] + plan["models"]["two"][key]


def test_platform_without_figures_leaves_time_and_energy_unknown():
    plan = estimate(settings({"devices": 2}, one={}))
    model = plan["models"]["one"]
    for key in ("seconds", "energy_joules", "carbon_grams", "water_liters", "cost_euros", "memory_fits"):
        assert model[key] is None
    assert plan["totals"]["carbon_grams"] is None
    assert model["training_flops_6nd"] == 6 * model["parameters"] * model["tokens"]


def test_nodes_multiply_devices_and_hybrid_sharding_replicates_state_per_node():
    of_nodes = [{**PLATFORM, "devices": 4, "nodes": nodes} for nodes in (1, 16)]
    one, many = (estimate(settings(platform, m={"batch_size": 256}))["models"]["m"] for platform in of_nodes)
    assert (one["devices_used"], many["devices_used"]) == (4, 64)
    assert math.isclose(one["seconds"], 16 * many["seconds"])
    assert math.isclose(one["model_state_bytes_per_device"], 16 * many["model_state_bytes_per_device"], rel_tol=1e-9)
    one, many = (
        estimate(settings(platform, m={"batch_size": 256, "strategy": "hybrid_shard", "mesh": mesh}))["models"]["m"]
        for platform, mesh in zip(of_nodes, ({"shard": 4}, {}), strict=True)
    )
    assert one["model_state_bytes_per_device"] == many["model_state_bytes_per_device"]


def test_devices_without_a_micro_batch_are_idle():
    plan = estimate(settings(PLATFORM, one={"batch_size": 8, "micro_batch_size": 2}))
    assert plan["models"]["one"]["devices_used"] == 4


def test_whole_allocations_are_billed_even_if_partly_idle():
    node = {"cpus": 64, "gpus": 4, "allocation": {"cpus": 16, "memory_megabytes": 184_320, "gpus": 1}}
    whole = {"cpus": 48, "gpus": 4, "allocation": {"cpus": 48, "memory_megabytes": 460_000, "gpus": 4}}
    cores = {"cpus": 128, "allocation": {"cpus": 16, "memory_megabytes": 28_672}}

    def billed_resources(partitions: dict[str, Any], **training: int) -> list[float]:
        model = estimate(settings({**PLATFORM, "devices": 4, "partitions": partitions}, one=training))["models"]["one"]
        hours = model["seconds"] / 3600
        return [round(model[key] / hours, 6) for key in ("billed_core_hours", "billed_gpu_hours")]

    three = {"batch_size": 3, "micro_batch_size": 1}
    assert billed_resources({"gpu": node}) == [64, 4] and billed_resources({"gpu": node}, **three) == [48, 3]
    assert billed_resources({"gpu": whole}, **three) == [48, 4] and billed_resources({"cpu": cores}) == [16, 0]
    plan = estimate(settings({**PLATFORM, "partitions": {}}, one={}))
    assert plan["models"]["one"]["billed_core_hours"] is None and plan["totals"]["billed_core_hours"] is None


def test_values_are_formatted_readably():
    assert format_quantity("energy_joules", 2_792_619) == "776 Wh"
    assert format_quantity("carbon_grams", 14e6) == "14 t"
    assert format_quantity("water_liters", 2_540.0) == "2.54 m³"
    assert [format_quantity("evaluation_share", share) for share in (0.0, 1.8e-9, 0.0123)] == [
        "0 %",
        "below 0.01 %",
        "1.23 %",
    ]
    assert format_quantity("model_state_bytes_per_device", 56.44e9) == "56.4 GB"
    assert format_quantity("general_purpose_share_8nd", 1.08) == "108 %"
    assert format_quantity("parameters", 8_030_261_248) == "8.03 billion"
    assert format_quantity("memory_fits", None) == "unknown"


def test_mesh_divides_state_and_activations():
    mesh = {"tensor": 2, "pipeline": 4, "context": 2, "shard": 2}
    models = {
        "whole": {"strategy": "no_shard"},
        "split": {"strategy": "no_shard", "mesh": mesh},
        "hybrid": {"strategy": "hybrid_shard", "mesh": mesh},
    }
    plan = estimate(settings({**PLATFORM, "devices": 96}, **models))["models"]
    state = {name: model["model_state_bytes_per_device"] for name, model in plan.items()}
    # The largest of four stages has 15 or 16 of 60 layers and a table, and each tensor device the matrices of 13 heads.
    assert 1.05 < state["split"] * 8 / state["whole"] < 1.15 and abs(state["hybrid"] * 2 - state["split"]) < 2
    activations = {name: model["activation_bytes_per_device"] for name, model in plan.items()}
    assert activations["split"] < activations["whole"] / 2 and plan["split"]["devices_used"] == 96


def test_large_numbers_are_in_words_and_larger_ones_in_scientific_notation():
    assert format_quantity("tokens", 4.5e11) == "450 billion" and format_quantity("tokens", 15e12) == "15 trillion"
    assert (
        format_quantity("device_hours", 1.48e6) == "1.48 million h" and format_quantity("nodes", 999_999) == "999,999"
    )
    assert format_quantity("training_flops_6nd", 7.59e22) == "7.59e22 FLOP"
