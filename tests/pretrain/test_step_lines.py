"""Layer norms logged by each step next to its loss and batch hash (see test_ramp.py)."""

import math
from pathlib import Path
from typing import Any

import pytest

from pipeline.pretrain.checkpoints.checkpoint import CheckpointReader
from pipeline.pretrain.monitors import metrics
from tests.pretrain.test_segment import TWO, Make, Tokens, train

pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "launch"),
    [
        ({}, ""),
        pytest.param({"mesh": {"pipeline": 2}, "strategy": "no_shard"}, TWO),
        pytest.param({"mesh": {"tensor": 2}}, TWO),
        pytest.param({"backend": "deepspeed", "strategy": "zero3"}, TWO),
    ],
    ids=["one process", "pipeline", "tensor", "zero3"],
)
def test_layer_norms_add_up_to_the_total_norm(
    training: dict[str, Any], launch: str, settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    chosen = settings(last_step=3, steps=5, norms_every=2, warmup_steps=0, learning_rate=1e-12, **training)
    train(chosen, tokens, tmp_path, launch)
    lines = [line for line in metrics.read_metrics(tmp_path / "milestone/metrics.jsonl") if "loss" in line]
    layer_norms = [{key: value for key, value in line.items() if "_norm/" in key} for line in lines]
    layers = ["blocks.0", "blocks.1", "embedding", "norm", "output"]
    assert not layer_norms[0] and not layer_norms[2]
    assert sorted(layer_norms[1]) == sorted(
        f"{kind}_norm/{layer}" for kind in ("gradient", "weight") for layer in layers
    )
    of_layers = math.hypot(*(layer_norms[1][f"gradient_norm/{layer}"] for layer in layers))
    assert of_layers == pytest.approx(lines[1]["gradient_norm"], rel=1e-5)
    reader = CheckpointReader(tmp_path / "milestone")  # these steps hardly change its weights
    for layer in layers:
        held = [reader.read(key).norm() for key in reader.shapes if key.startswith(f"model.{layer}.")]
        assert layer_norms[1][f"weight_norm/{layer}"] == pytest.approx(math.hypot(*map(float, held)), rel=1e-5)
