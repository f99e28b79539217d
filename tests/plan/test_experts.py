"""A plan of a mixture of experts: operations of the experts that a token visits, memory of all, and no law."""

from __future__ import annotations

from typing import Any

from pipeline.model.settings import Architecture
from pipeline.model.size import active_parameter_count, flops_per_token, parameter_count
from pipeline.plan import formulas
from pipeline.plan.estimate import estimate
from pipeline.plan.settings import EstimateSettings, TrainingPlan
from tests.plan.test_run_time import CLUSTER

THIRTY = Architecture(preset="qwen3-30b-a3b")
VOCABULARY = 151_936
TRAINING = {"precision": "bf16", "sequence_length": 4096, "batch_size": 512, "micro_batch_size": 1, "steps": 1000}


def plan(**platform: Any) -> dict[str, Any]:
    model = {"architecture": THIRTY.model_dump(), "training": TRAINING, "vocabulary_size": VOCABULARY}
    settings = {"models": {"m": model}, "platform": {**CLUSTER, **platform}, "energy": {}}
    return estimate(EstimateSettings.model_validate(settings))


def test_operations_are_of_what_a_token_visits_and_memory_of_all() -> None:
    model = plan()["models"]["m"]
    total, active = (of(THIRTY, VOCABULARY) for of in (parameter_count, active_parameter_count))
    assert (model["parameters"], model["active_parameters"]) == (total, active) and active < total / 9
    assert model["training_flops_6nd"] == 6 * active * model["tokens"]
    assert model["model_flops"] == model["tokens"] * flops_per_token(THIRTY, VOCABULARY, 4096)
    assert model["model_state_bytes_per_device"] == round(16 * total / model["devices_used"])


def test_what_is_not_known_is_said() -> None:
    told = plan(model_flops_utilization=0.3)
    model, notes = told["models"]["m"], " ".join(told["notes"]["m"])
    assert model["expected_loss_nats_per_token"] is None and model["step_law_learning_rate"] is None
    assert "laws of models without experts tell neither" in notes
    assert "grouped products of experts, and the tokens that travel to them, are not counted" in notes
    assert model["utilization_share"] == 0.3 and plan(model_flops_utilization=None)["models"]["m"]["seconds"] is None


def test_a_device_gathers_its_share_of_the_experts_of_a_block() -> None:
    def gathered(expert: int) -> float:
        given = {"strategy": "full_shard", "precision": "bf16", "mesh": {"expert": expert}}
        sizes = {"sequence_length": 4096, "batch_size": 8, "micro_batch_size": 1, "steps": 1}
        return formulas.gathered_bytes(THIRTY, VOCABULARY, TrainingPlan.model_validate({**given, **sizes}))

    experts = 128 * 3 * 2048 * 768
    assert gathered(1) - gathered(8) == 2 * 2 * experts * 7 / 8
