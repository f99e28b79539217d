"""Plans of expert models and Muon: visited experts are computed, all are stored, and no law applies."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pipeline.model.llama_network import Llama
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import active_parameter_count, flops_per_token, parameter_count
from pipeline.plan import training_cost_formulas
from pipeline.plan.estimate import estimate
from pipeline.plan.settings import EstimateSettings, TrainingPlan
from pipeline.plan.step_time import DeviceMesh, StepWork, estimate_step_time
from pipeline.plan.training_step_operations import count_step_work, make_device_mesh
from pipeline.pretrain.parallel.optimizer import orthogonalize
from tests.plan.published_steps import H100
from tests.plan.test_training_time import CLUSTER

ROOT = Path(__file__).parents[2]
THIRTY = Architecture(preset="qwen3-30b-a3b")
VOCABULARY = 151_936
TRAINING = {"precision": "bf16", "sequence_length": 4096, "batch_size": 512, "micro_batch_size": 1, "steps": 1000}


def plan(**platform: Any) -> dict[str, Any]:
    model = {"architecture": THIRTY.model_dump(), "training": TRAINING, "vocabulary_size": VOCABULARY}
    settings = {"models": {"m": model}, "platform": {**CLUSTER, **platform}, "energy": {}}
    return estimate(EstimateSettings.model_validate(settings))


def test_flops_count_active_experts_and_memory_counts_all() -> None:
    model = plan()["models"]["m"]
    total, active = (of(THIRTY, VOCABULARY) for of in (parameter_count, active_parameter_count))
    assert (model["parameters"], model["active_parameters"]) == (total, active) and active < total / 9
    assert model["training_flops_6nd"] == 6 * active * model["tokens"]
    assert model["model_flops"] == model["tokens"] * flops_per_token(THIRTY, VOCABULARY, 4096)
    assert model["model_state_bytes_per_device"] == round(16 * total / model["devices_used"])


def test_unknown_expert_figures_are_reported() -> None:
    estimated = plan(model_flops_utilization=0.3)
    model, notes = estimated["models"]["m"], " ".join(estimated["notes"]["m"])
    assert model["expected_loss_nats_per_token"] is None and model["step_law_learning_rate"] is None
    assert "the scaling laws, which hold for models without experts, predict neither" in notes
    assert "time and memory assume a balanced load" in notes
    assert model["seconds"] > 0 and model["utilization_share"] != 0.3  # counted, for any platform


def counted(architecture: Architecture, devices: int = 8, **changes: Any) -> tuple[DeviceMesh, StepWork]:
    training = TrainingPlan.model_validate({**TRAINING, "strategy": "full_shard", **changes})
    mesh = make_device_mesh(training, devices, 8)
    return mesh, count_step_work(architecture, VOCABULARY, training, mesh)


def test_step_flops_count_visited_experts() -> None:
    _, whole = counted(THIRTY)
    ours = 48 * sum(k.flops for k in (*whole.forward, *whole.backward)) + sum(k.flops for k in whole.head)
    scores = 12 * 4096 * 32 * 128  # of a token and layer, three passes over all
    expected = 4096 * (flops_per_token(THIRTY, VOCABULARY, 4096) - 48 * scores * (1 - (1 + 2.5) / 6))
    assert math.isclose(ours, expected)


def test_all_local_experts_are_read_and_every_visit_is_a_row() -> None:
    _, whole = counted(THIRTY)
    _, divided = counted(THIRTY, mesh={"expert": 4})
    rows, d, f = 4096 * 8, 2048, 768
    for result, held in ((whole, 128), (divided, 32)):
        up, down = result.forward[2:4]
        assert up.flops == 2 * rows * d * 2 * f and up.bytes == 2 * (rows * (d + 2 * f) + held * d * 2 * f)
        assert down.flops == 2 * rows * d * f and down.bytes == 2 * (rows * (f + d) + held * d * f)
    assert whole.expert_bytes == 0
    sent = 2 * (rows * d * 2) * 3 / 4  # there and back, in bf16
    assert divided.expert_bytes == 2 * sent  # forward and backward
    full = counted(THIRTY, recomputation="full")[1]
    assert full.recomputed == full.forward, "the weights of the router"
    for name in ("selective", "full"):  # and once more, because exchanged data is not kept
        assert counted(THIRTY, mesh={"expert": 4}, recomputation=name)[1].expert_bytes == 3 * sent
    once_more = 2 * 4096 * 8 * d * 4  # elements of two bytes, read and written in one more order, and back
    assert divided.forward[-1].bytes - whole.forward[-1].bytes == once_more
    assert divided.backward[-1].bytes - whole.backward[-1].bytes == 2 * once_more


def test_remote_experts_are_not_gathered() -> None:
    _, whole = counted(THIRTY)
    _, divided = counted(THIRTY, mesh={"expert": 8})
    experts, total = 48 * 128 * 3 * 2048 * 768, parameter_count(THIRTY, VOCABULARY)
    assert math.isclose(whole.data_bytes, total * 7 / 8 * (2 * 2 + 4))
    assert math.isclose(divided.data_bytes, (total - experts) * 7 / 8 * (2 * 2 + 4))  # each has its own experts


def test_published_expert_training_is_predicted_slower_without_fused_kernels() -> None:
    """NVIDIA NeMo AutoModel, docs/performance-summary.md (2025-10-02): 8 H100, bf16, tokens shared equally.

    Its kernels reorder rows during communication and read nothing twice (DeepEP, Transformer Engine), and its
    attention is cuDNN's.
    """
    mesh, step = counted(THIRTY, mesh={"expert": 8}, micro_batch_size=4, gradient_reduction="bf16")
    reached = 512 * 4096 / estimate_step_time(step, mesh, H100).seconds / 8
    assert 0.7 < reached / 12_040 < 1
    page = (ROOT / "docs/results/plan.md").read_text(encoding="utf-8")
    assert f"{round(reached, -2):,.0f} tokens per second, of 12,040" in page


def test_muon_flops_equal_its_implementation_divided_over_the_devices() -> None:
    small = Architecture(layers=3, width=32, feed_forward_width=96, heads=8, head_width=6, key_value_heads=4)
    matrices = [p.detach() for p in Llama(small, 8).blocks.parameters() if p.dim() == 2]
    taken = []
    for matrix in sorted(matrices, key=torch.numel, reverse=True):
        with FlopCounterMode(display=False) as counter:
            orthogonalize(matrix, torch.bfloat16)
        taken.append(counter.get_total_flops())
    assert counted(small)[1].gathered_bytes == 0 and len(counted(small)[1].optimizer) == 1
    for devices, busiest in ((1, sum(taken)), (2, sum(taken[::2])), (64, taken[0])):
        muon, adamw = (counted(small, devices, optimizer=name)[1] for name in ("muon", "adamw"))
        assert muon.optimizer[0] == adamw.optimizer[0]
        assert sum(k.flops for k in muon.optimizer) == busiest
        # The others' shards of its own matrices, and its shard of the others' matrices.
        expected = (4 + 2) * sum(m.numel() for m in matrices) / devices * (devices - 1) / devices
        assert math.isclose(muon.gathered_bytes, expected)
    hybrid = counted(small, 16, optimizer="muon", strategy="hybrid_shard", mesh={"shard": 4})[1]
    assert sum(k.flops for k in hybrid.optimizer) == sum(taken[::16])  # replicas share the work, and gather separately
    elements = sum(m.numel() for m in matrices)
    assert math.isclose(hybrid.gathered_bytes, (4 + 2) * 3 / 4 * elements / 16)
    assert math.isclose(hybrid.copied_bytes, 2 * 3 / 4 * elements / 4)


def test_device_gathers_its_share_of_the_experts_of_a_block() -> None:
    def gathered(expert: int) -> float:
        given = {"strategy": "full_shard", "precision": "bf16", "mesh": {"expert": expert}}
        sizes = {"sequence_length": 4096, "batch_size": 8, "micro_batch_size": 1, "steps": 1}
        return training_cost_formulas.gathered_bytes(
            THIRTY, VOCABULARY, TrainingPlan.model_validate({**given, **sizes})
        )

    experts = 128 * 3 * 2048 * 768
    assert gathered(1) - gathered(8) == 2 * 2 * experts * 7 / 8


@pytest.mark.parametrize("strategy", ["no_shard", "shard_optimizer"])
def test_remote_experts_are_not_sent_if_every_device_holds_the_weights(strategy: str) -> None:
    whole, divided = (counted(THIRTY, 16, strategy=strategy, mesh={"expert": expert})[1] for expert in (1, 8))
    assert whole.data_bytes == divided.data_bytes == 0
    experts, total = 48 * 128 * 3 * 2048 * 768, parameter_count(THIRTY, VOCABULARY)
    assert math.isclose(divided.step_bytes / whole.step_bytes, 1 - experts * 7 / 8 / total)


def test_shared_muon_state_is_exchanged_equally() -> None:
    shape = THIRTY.model_copy(update={"experts": None, "experts_per_token": None})
    results = [counted(shape, 16, optimizer="muon", strategy=name)[1] for name in ("full_shard", "shard_optimizer")]
    assert (
        results[0].gathered_bytes == results[1].gathered_bytes > 0
        and results[0].copied_bytes == results[1].copied_bytes == 0
    )
