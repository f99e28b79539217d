from __future__ import annotations

import math
from typing import Any

import pytest
import yaml

from pipeline.core.batch_schedule import StepRange
from pipeline.core.platform_files import PLATFORMS
from pipeline.model.settings import Architecture
from pipeline.plan.estimate import estimate
from pipeline.plan.settings import EstimateSettings, ModelPlan, PlatformPlan
from pipeline.plan.step_time import Machine, estimate_step_time
from pipeline.plan.training_step_operations import count_step_work, make_device_mesh
from pipeline.plan.training_time import (
    HOW_TO_MEASURE,
    PUBLISHED_TRAININGS,
    _ramp_stage_training,
    count_validations,
    estimate_step,
    estimate_training_time,
    explain_unknown_step_time,
    find_similar_published_trainings,
)

EIGHT = {"preset": "llama3-8b"}
THIRTY = {"preset": "gptnl-30b"}
TRAINING = {
    "precision": "bf16",
    "sequence_length": 8192,
    "batch_size": 512,
    "micro_batch_size": 1,
    "steps": 1000,
    "checkpoint_every": 100,
}
CLUSTER = {
    "name": "cluster",
    "devices": 4,
    "nodes": 4,
    "peak_flops_per_second": 989.4e12,
    "matrix_flops_per_second": 740e12,
    "attention_flops_per_second": 175e12,
    "memory_bytes_per_second": 3.35e12,
    "node_bytes_per_second": 450e9,
    "network_bytes_per_second": 25e9,
}


def platform(**changes: Any) -> PlatformPlan:
    return PlatformPlan.model_validate(CLUSTER | changes)


def model(architecture: dict[str, Any] = EIGHT, **changes: Any) -> ModelPlan:
    training = TRAINING | changes
    return ModelPlan.model_validate({"architecture": architecture, "training": training, "vocabulary_size": 128_256})


def test_training_time_is_steps_validations_startups_and_failures():
    limits = {"gpu": {"cpus": 64, "gpus": 4, "minutes": 60}}
    machine = platform(
        partitions=limits, failures_per_device_hour=1e-3, job_start_seconds=300, job_queue_seconds=7200,
        storage_bytes_per_second=5e9,
    )  # fmt: skip
    estimated = estimate_training_time(
        model(validation_every=10, validation_tokens=2**20, milestone_every=500), machine, 16
    )
    step = estimated["step_seconds"]
    assert math.isclose(
        step, sum(value for key, value in estimated.items() if key.startswith("step_") and key != "step_seconds")
    )
    assert math.isclose(estimated["training_seconds"], 1000 * step)
    assert math.isclose(estimated["validation_seconds"], 100 * estimated["step_compute_seconds"] / 3 / 4)
    jobs = 2 * math.ceil(500 * step / 3600)
    assert estimated["training_jobs"] == jobs > 4
    assert estimated["start_seconds"] == jobs * 300 and estimated["queue_seconds"] == jobs * 7200
    failures = 1000 * step / 3600 * 16 * 1e-3
    assert math.isclose(estimated["failure_seconds"], failures * (100 * step / 2 + 300))
    parts = ("training_seconds", "validation_seconds", "start_seconds", "failure_seconds")
    assert math.isclose(estimated["seconds"], sum(estimated[key] for key in parts))
    assert math.isclose(estimated["checkpoint_write_seconds"], 12 * 8_030_261_248 / 20e9)
    between = 3600 / (16 * 1e-3)
    assert math.isclose(
        estimated["checkpoint_interval_seconds"] ** 2, 2 * estimated["checkpoint_write_seconds"] * between
    )
    assert math.isclose(estimated["tokens_per_second_per_device"] * 16 * step, 512 * 8192)


def test_ramp_time_is_the_sum_of_its_stages():
    ramp = [{"to_step": 100, "batch_size": 128}, {"to_step": 300, "sequence_length": 2048}]
    estimated = estimate_training_time(model(ramp=ramp), platform(), 16)
    small = estimate_training_time(model(batch_size=128, steps=100), platform(), 16)["training_seconds"]
    short = model(batch_size=2048, sequence_length=2048, micro_batch_size=4, steps=200)
    whole = estimate_training_time(model(steps=700), platform(), 16)["training_seconds"]
    assert math.isclose(
        estimated["training_seconds"], small + estimate_training_time(short, platform(), 16)["training_seconds"] + whole
    )
    assert estimated["step_seconds"] == estimate_training_time(model(), platform(), 16)["step_seconds"]
    stated = platform(matrix_flops_per_second=None, model_flops_utilization=0.4)
    tokens = 8192 * (100 * 128 + 900 * 512)
    by_hand = tokens * 6 * (8_030_261_248 - 128_256 * 4096 - 65 * 4096) + 12 * 32 * 4096 * (
        tokens * 8192 - 200 * 512 * 8192 * (8192 - 2048)
    )
    seconds = estimate_training_time(model(ramp=ramp), stated, 16)["training_seconds"]
    assert math.isclose(seconds, by_hand / (16 * 989.4e12 * 0.4))
    plan = estimate(
        EstimateSettings.model_validate({"models": {"x": model(ramp=ramp)}, "platform": stated, "energy": {}})
    )
    assert plan["models"]["x"]["model_flops"] == by_hand and plan["models"]["x"]["tokens"] == tokens


def test_short_ramp_stage_uses_the_pipeline_stages_of_the_full_training():
    """With 1,024 tokens as the whole sequence the layers would be divided 8, 9, 9 and 6, with 8,192 8, 8, 9 and 7."""
    deep = model(mesh={"pipeline": 4}, ramp=[{"to_step": 300, "sequence_length": 1024}])
    short = StepRange(300, 512, 1024)
    own, alone = (
        count_step_work(
            deep.architecture,
            128_256,
            _ramp_stage_training(deep.training, short),
            make_device_mesh(deep.training, 16, 4),
            divided,
        )
        for divided in (deep.training, None)
    )
    assert (own.most_layers, own.last_layers) == (9, 7) and (alone.most_layers, alone.last_layers) == (9, 6)
    seconds = estimate_step(deep, platform(), 16, short).pipeline_seconds
    mesh, machine = make_device_mesh(deep.training, 16, 4), Machine(740e12, 3.35e12, 450e9, 25e9, 4, 175e12)
    assert seconds == estimate_step_time(own, mesh, machine).pipeline_seconds
    assert seconds != estimate_step_time(alone, mesh, machine).pipeline_seconds


def test_branch_takes_only_its_own_steps():
    limits = {"gpu": {"cpus": 64, "gpus": 4, "minutes": 60_000}}
    machine = platform(partitions=limits, job_start_seconds=300)
    every = {"validation_every": 10, "validation_tokens": 2**20, "milestone_every": 300}
    branch = estimate_training_time(model(**every, first_step=550), machine, 16)
    step = branch["step_seconds"]
    assert math.isclose(branch["training_seconds"], 450 * step)
    assert math.isclose(branch["validation_seconds"], 45 * branch["step_compute_seconds"] / 3 / 4)
    assert branch["training_jobs"] == 3, "to 600, 900 and 1000"
    assert estimate_training_time(model(**every), machine, 16)["training_jobs"] == 4
    assert estimate_training_time(model(**every, first_step=600), machine, 16)["training_jobs"] == 2
    slow = platform(matrix_flops_per_second=None, model_flops_utilization=0.4)
    planned_model = estimate_training_time(model(first_step=550), slow, 16)
    assert math.isclose(planned_model["seconds"], 450 * planned_model["step_seconds"])
    least, most = planned_model["published_least_seconds"], planned_model["published_most_seconds"]
    whole = estimate_training_time(model(), slow, 16)
    assert math.isclose(least / whole["published_least_seconds"], 0.45) and math.isclose(
        most / whole["published_most_seconds"], 0.45
    )
    models = {"one": model(first_step=550).model_dump(mode="json")}
    planned = estimate(EstimateSettings.model_validate({"models": models, "platform": CLUSTER, "energy": {}}))
    planned_model = planned["models"]["one"]
    models["one"]["training"]["first_step"] = 0
    whole = estimate(EstimateSettings.model_validate({"models": models, "platform": CLUSTER, "energy": {}}))
    assert planned_model["tokens"] == 450 * 512 * 8192 and math.isclose(
        planned_model["model_flops"], 0.45 * whole["models"]["one"]["model_flops"]
    )
    # Model and law predictions use all tokens seen so far.
    of_all = [key for key in planned_model if "expected_loss" in key or "general_purpose" in key or "step_law" in key]
    assert len(of_all) == 8 and all(planned_model[key] == whole["models"]["one"][key] for key in of_all)


def test_unstated_figures_are_omitted_and_failures_use_the_published_rate():
    estimated = estimate_training_time(model(validation_every=10), platform(), 16)
    for key in ("validation_seconds", "start_seconds", "queue_seconds", "checkpoint_write_seconds"):
        assert estimated[key] is None
    assert estimated["training_jobs"] == 1
    step = estimated["step_seconds"]
    hours = 1000 * step * 16 / 3600
    assert math.isclose(estimated["failure_seconds"], hours * 419 / (54 * 24 * 16_384) * 50 * step)
    assert math.isclose(estimated["seconds"], estimated["training_seconds"] + estimated["failure_seconds"])
    never = estimate_training_time(model(), platform(failures_per_device_hour=0, storage_bytes_per_second=1e9), 16)
    assert never["failure_seconds"] == 0 and never["checkpoint_interval_seconds"] is None
    assert never["validation_seconds"] == 0
    without = estimate_training_time(model(checkpoint_every=0, milestone_every=250), platform(), 16)
    assert math.isclose(
        without["failure_seconds"], 2.5 * estimated["failure_seconds"]
    )  # milestones are checkpoints too


@pytest.mark.parametrize("key", HOW_TO_MEASURE)
def test_missing_platform_figure_is_named_with_how_to_measure_it(key: str):
    machine = platform(**{key: None}, model_flops_utilization=0.4)
    (sentence,) = explain_unknown_step_time(model(), machine, 16)
    assert sentence == f"the platform cluster does not state {key}: {HOW_TO_MEASURE[key]}"
    estimated = estimate_training_time(model(), machine, 16)
    if key == "peak_flops_per_second":
        assert set(estimated.values()) == {None}
    else:
        assert estimated["utilization_share"] == 0.4 and estimated["training_seconds"] == estimated["seconds"]
        assert estimated["step_compute_seconds"] is None and estimated["failure_seconds"] is None
        assert math.isclose(estimated["tokens_per_second_per_device"], 512 * 8192 / estimated["step_seconds"] / 16)
    silent = estimate_training_time(model(), platform(**{key: None}), 16)
    assert silent["seconds"] is None and silent["utilization_share"] is None


def test_unneeded_figure_is_not_required():
    alone = platform(devices=1, nodes=1, node_bytes_per_second=None, network_bytes_per_second=None)
    assert (
        explain_unknown_step_time(model(), alone, 1) == []
        and estimate_training_time(model(), alone, 1)["step_exchange_seconds"] == 0
    )
    node = platform(nodes=1, network_bytes_per_second=None)
    assert explain_unknown_step_time(model(), node, 4) == []
    assert estimate_training_time(model(mesh={"tensor": 4}), node, 4)["step_exchange_seconds"] > 0
    assert "bf16" in explain_unknown_step_time(model(precision="fp32"), platform(), 16)[0]
    assert "main memory" in explain_unknown_step_time(model(strategy="zero3_offload_all"), platform(), 16)[0]


def test_muon_step_is_longer_than_adamw_by_its_products_and_exchange():
    adamw, muon = (estimate_training_time(model(optimizer=name), platform(), 16) for name in ("adamw", "muon"))
    longer = muon["step_optimizer_seconds"] - adamw["step_optimizer_seconds"]
    assert math.isclose(longer, muon["step_seconds"] - adamw["step_seconds"])
    assert 0.001 < longer / adamw["step_seconds"] < 0.5


def test_published_hours_are_reproduced_by_the_plan():
    """Llama 3 8B: 1.3 million H100 hours for 15 trillion tokens; its successor's 1.46 million are the maximum."""
    steps = round(15e12 / (512 * 8192))
    estimated = estimate_training_time(model(steps=steps), platform(), 16)
    by_hand = 6 * 8.03e9 * 15e12 / (1.3e6 * 3600 * 989.4e12)
    assert math.isclose(PUBLISHED_TRAININGS[5].utilization, by_hand, rel_tol=1e-3) and 0.15 < by_hand < 0.16
    assert math.isclose(estimated["published_most_seconds"] * 16 / 3600, 1.46e6, rel_tol=1e-3)
    assert estimated["published_least_seconds"] < estimated["published_most_seconds"] / 2
    # The model alone is far below Meta's measured time, and above that of Llama 2 on A100.
    assert 1.6 < 1.3e6 / (estimated["seconds"] * 16 / 3600) < 1.9
    assert 1.2 < estimated["seconds"] / estimated["published_least_seconds"] < 1.5


def test_training_is_validated_in_its_last_step_too() -> None:
    assert [count_validations(*steps) for steps in ((0, 1000, 300), (0, 900, 300), (600, 1000, 300), (0, 5, 300))] == [
        4,
        3,
        2,
        1,
    ]


def of(name: str, nodes: int) -> PlatformPlan:
    written = yaml.safe_load((PLATFORMS / f"{name}.yaml").read_text(encoding="utf-8"))
    return PlatformPlan.model_validate(written | {"nodes": nodes})


def gpt_nl_30b() -> dict[str, Any]:
    """30B on 450 billion tokens, 88 H100 of Snellius: 34 days, about 1,700 tokens a second and device."""
    shape = {"sequence_length": 4096, "batch_size": 704, "micro_batch_size": 4, "recomputation": "full"}
    return estimate_training_time(model(THIRTY, **shape, steps=round(450e9 / (704 * 4096))), of("snellius", 22), 88)


def gpt_nl_8b() -> dict[str, Any]:
    """8B there: about 7,000 tokens a second and device."""
    return estimate_training_time(
        model(sequence_length=4096, batch_size=880, micro_batch_size=2), of("snellius", 22), 88
    )


def tinyllama() -> dict[str, Any]:
    """1.1B on 16 A100 of 40 GB: 24,000 tokens a second and device (https://github.com/jzhang38/TinyLlama)."""
    tiny = {"layers": 22, "width": 2048, "feed_forward_width": 5632, "heads": 32, "key_value_heads": 4}
    training = {"sequence_length": 2048, "batch_size": 1024, "micro_batch_size": 8, "compile": True}
    one = model(tiny, **training).model_copy(update={"vocabulary_size": 32_000})
    return estimate_training_time(one, of("juwels-booster", 4), 16)


UNFITTED = {gpt_nl_30b: 1700, gpt_nl_8b: 7000, tinyllama: 24_000}
"""Published tokens per second and device on machines that were not fitted."""


def test_gpt_nl_run_takes_its_published_34_days():
    estimated = gpt_nl_30b()
    assert math.isclose(estimated["seconds"] / 86_400, 34, rel_tol=0.02)
    assert math.isclose(estimated["tokens_per_second_per_device"], 1700, rel_tol=0.04)
    assert math.isclose(estimated["published_least_seconds"] / 86_400, 34, rel_tol=1e-3)
    assert estimated["published_most_seconds"] == estimated["published_least_seconds"]
    assert 0.85 < gpt_nl_8b()["tokens_per_second_per_device"] / 7000 < 1


def test_tinyllama_run_on_juwels_a100_is_reproduced():
    assert math.isclose(tinyllama()["tokens_per_second_per_device"], 24_000, rel_tol=0.05)


def test_similar_published_trainings_are_found():
    assert [one.name for one in find_similar_published_trainings(30e9)] == ["GPT-NL 30B"]
    assert {one.name for one in find_similar_published_trainings(70e9)} == {
        "Llama 2 70B",
        "Llama 3 70B",
        "Llama 3.1 70B",
    }
    assert [one.name for one in find_similar_published_trainings(1e6)] == ["Pythia 1.0B"]
    assert [one.name for one in find_similar_published_trainings(9e12)] == ["Llama 3.1 405B"]
    assert all(0.1 < one.utilization < 0.55 and one.source for one in PUBLISHED_TRAININGS)


def test_plan_energy_uses_the_run_time_and_every_key_has_a_formula():
    settings = {
        "models": {"one": model().model_dump()},
        "platform": CLUSTER | {"device_power_watts": 700},
        "energy": {},
    }
    plan = estimate(EstimateSettings.model_validate(settings))
    one = plan["models"]["one"]
    assert set(one) == set(plan["formulas"])
    assert math.isclose(one["energy_joules"], one["seconds"] * 16 * 700)
    assert math.isclose(
        one["seconds_6nd"], 6 * one["parameters"] * one["tokens"] / (16 * 989.4e12 * one["utilization_share"])
    )
    again = estimate_step(model(), platform(), 16)
    assert math.isclose(one["step_seconds"], again.seconds)
    assert Architecture.model_validate(EIGHT).key_value_head_count == 8
