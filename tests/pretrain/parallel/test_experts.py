"""A mixture of experts gives the same numbers in 1, 2 and 4 processes, with and without divided experts."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, Qwen3MoeForCausalLM

from pipeline.core.errors import InputError
from pipeline.model.qwen3_moe_network import Qwen3Moe
from pipeline.model.settings import Architecture
from pipeline.pretrain.checkpoints.checkpoint import CheckpointReader
from pipeline.pretrain.monitors import metrics
from pipeline.pretrain.parallel import expert_parallel, process_layout
from pipeline.pretrain.processes.launch_command import build_command
from pipeline.pretrain.settings import Model, SegmentSettings
from tests.pretrain.parallel.test_parity import BATCH, case, check_equal, outcome
from tests.pretrain.test_segment import TWO as TWO_PROCESSES
from tests.pretrain.test_segment import hashes, losses, train

pytestmark = pytest.mark.usefixtures("warm_processes")
MOVER = "tests.pretrain.parallel.moving_worker"
SHAPE: dict[str, Any] = {"preset": "qwen3-moe", "feed_forward_width": 48, "experts": 8, "experts_per_token": 2}
TWO: dict[str, dict[str, Any]] = {
    "full_shard": {},
    "full_shard, expert 2": {"mesh": {"expert": 2}},
    "shard_grad_op, expert 2, recomputation": {
        "strategy": "shard_grad_op",
        "mesh": {"expert": 2},
        "recomputation": "full",
    },
    "context 2": {"mesh": {"context": 2}, "micro_batch_size": BATCH},
    "context 2, expert 2": {"mesh": {"context": 2, "expert": 2}, "micro_batch_size": BATCH},
    "pipeline 2": {"mesh": {"pipeline": 2}},
    "zero1": {"backend": "deepspeed", "strategy": "zero1"},
    "zero3": {"backend": "deepspeed", "strategy": "zero3"},
}
FOUR: dict[str, dict[str, Any]] = {
    "full_shard, expert 2": {"mesh": {"expert": 2}},
    "full_shard, expert 4": {"mesh": {"expert": 4}},
    "hybrid_shard, groups of 2, expert 2": {"strategy": "hybrid_shard", "mesh": {"shard": 2, "expert": 2}},
    "pipeline 2, expert 2": {"mesh": {"pipeline": 2, "expert": 2}},
}


@pytest.mark.slow
def test_parallel_processes_equal_one(
    settings: Callable[..., SegmentSettings], tokens: dict[str, Path], tmp_path: Path
) -> None:
    def made(**changes: Any) -> SegmentSettings:
        shape = {**SHAPE, "base_width": None}
        usual = {"micro_batch_size": BATCH // 4, "load_balancing_loss": 0.05, **changes}
        chosen: SegmentSettings = case(settings, architecture=shape, **usual)
        return chosen

    alone = outcome(
        1,
        {"one": made(strategy="no_shard"), "other": made(strategy="no_shard", load_balancing_loss=0.0)},
        tokens,
        tmp_path,
    )
    assert alone["one"]["losses"] != alone["other"]["losses"]
    assert alone["one"]["losses"][0] == alone["other"]["losses"][0]  # it is only in the gradients
    for processes, cases in ((2, TWO), (4, FOUR)):
        result = outcome(processes, {name: made(**how) for name, how in cases.items()}, tokens, tmp_path)
        for name in cases:
            check_equal(result[name], alone["one"], f"{processes} | {name}")


@pytest.mark.slow
@pytest.mark.parametrize("expert", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_resumed_expert_training_gives_the_same_bytes(
    expert: int, settings: Callable[..., SegmentSettings], tokens: dict[str, Path], tmp_path: Path
) -> None:
    chosen = settings(architecture=SHAPE, load_balancing_loss=0.05, mesh={"expert": expert})
    train(chosen, tokens, tmp_path, TWO_PROCESSES)
    expected = hashes(tmp_path), losses(tmp_path)
    shutil.rmtree(tmp_path / "milestone")
    shutil.rmtree(tmp_path / "scratch/recovery/9")  # so that more than one step is repeated
    assert train(chosen, tokens, tmp_path, TWO_PROCESSES)["resumed_from"] == 6
    assert (hashes(tmp_path), losses(tmp_path)) == expected
    shares = [line["largest_expert_share"] for line in metrics.read_metrics(tmp_path / "milestone/metrics.jsonl")]
    assert len(shares) == 10 and all(2 / 8 <= share <= 1 for share in shares)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "milestone/huggingface")
    assert isinstance(loaded, Qwen3MoeForCausalLM)


def test_largest_expert_share_covers_tokens_since_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two experts for each of 8 tokens, 4 of them here and 4 on another process."""
    here, there = ([[3, 1, 4], [4, 2, 2]], [[2, 3, 3], [2, 4, 2]]), ([[1, 4, 3], [2, 3, 3]], [[3, 2, 3], [2, 2, 4]])
    model = Qwen3Moe(Architecture.model_validate({"layers": 2, "width": 32, "heads": 4, **SHAPE, "experts": 3}), 96)
    for own, others, share in zip(here, there, (7 / 8, 6 / 8), strict=True):
        monkeypatch.setattr(dist, "all_reduce", lambda values, others=others: values.add_(torch.tensor(others)))
        model.visits = {layer: torch.tensor(visits) for layer, visits in enumerate(own)}
        assert expert_parallel.measure_largest_share(model, torch.device("cpu")) == {"largest_expert_share": share}


@pytest.mark.slow
def test_checkpoint_moves_between_layouts_bitwise(
    settings: Callable[..., SegmentSettings], tokens: dict[str, Path], tmp_path: Path
) -> None:
    """A training without steps: a checkpoint read under one layout is written under another."""
    shape = {"architecture": SHAPE, "learning_rate": 0.003, "sequence_length": 16}
    train(settings(last_step=3, **shape), tokens, tmp_path / "first")
    expected = CheckpointReader(tmp_path / "first/milestone")
    cases = {
        "expert 2": {"mesh": {"expert": 2}},
        "hybrid, expert 2": {"strategy": "hybrid_shard", "mesh": {"shard": 2, "expert": 2}},
        "full_shard": {},
        "zero3": {"backend": "deepspeed", "strategy": "zero3"},
    }
    dumped = {name: settings(**shape, **how).model_dump(mode="json") for name, how in cases.items()}
    (tmp_path / "cases.json").write_text(json.dumps({"from": str(expected.folder), "cases": dumped}))
    launch = "torchrun --standalone --nproc-per-node=4"
    subprocess.run(build_command(launch, MOVER, [str(tmp_path / "cases.json")]), check=True, timeout=600)
    for name in cases:
        checkpoint_reader = CheckpointReader(tmp_path / name)
        assert checkpoint_reader.shapes == expected.shapes
        assert all(torch.equal(checkpoint_reader.read(key), expected.read(key)) for key in expected.shapes), name


@pytest.mark.parametrize(
    ("training", "shape", "message"),
    [
        ({"optimizer": "muon"}, SHAPE, "with architecture.experts training.optimizer muon does not support stacked"),
        ({"tiled_feed_forward": 2}, SHAPE, "balance experts within tiles: set it to 1"),
        ({"float8": True, "compile": True, "precision": "bf16"}, SHAPE, "float8 does not support experts"),
        ({"compile": True}, SHAPE, "compile does not support experts in fp32"),
        ({"compile": True, "precision": "bf16", "mesh": {"expert": 2}}, SHAPE, "compile does not support mesh.expert"),
        ({"backend": "deepspeed", "strategy": "zero1", "mesh": {"expert": 2}}, SHAPE, "mesh.expert 2 needs backend"),
        ({"load_balancing_loss": 0.1}, {}, "training.load_balancing_loss needs an architecture with experts"),
        ({"mesh": {"expert": 2}}, {}, "training.mesh.expert needs an architecture with experts"),
    ],
)
def test_unsupported_expert_settings_are_refused(training: dict[str, Any], shape: dict[str, Any], message: str) -> None:
    numbers = {"sequence_length": 8, "batch_size": 2, "micro_batch_size": 1, "steps": 1, "learning_rate": 0.1}
    with pytest.raises(ValidationError, match=message):
        Model.model_validate(
            {
                "architecture": {"layers": 2, "width": 32, "heads": 4, **shape},
                "training": {**numbers, **training},
            }
        )


@pytest.mark.parametrize(
    ("training", "shape", "message"),
    [
        ({"mesh": {"expert": 3}}, {}, "mesh.expert 3 does not divide the 4 processes .* strategy full_shard"),
        ({"mesh": {"expert": 2}, "strategy": "no_shard"}, {}, "expert 2 does not divide the 1 processes"),
        ({"mesh": {"expert": 4}}, {"experts": 6}, "architecture.experts 6 is not divisible by training.mesh.expert 4"),
        ({"mesh": {"expert": 2}}, {"feed_forward_width": 49}, "feed-forward width 49 .* divided by training.mesh.exp"),
        ({"mesh": {"tensor": 2}}, {}, "tensor 2 does not split experts: set it to 1"),
    ],
)
def test_indivisible_sizes_are_named(
    training: dict[str, Any], shape: dict[str, Any], message: str, settings: Callable[..., SegmentSettings]
) -> None:
    chosen = settings(architecture={**SHAPE, **shape}, **training)
    with pytest.raises(InputError, match=message):
        process_layout.check_mesh_divides_model(chosen.training, chosen.architecture, 304, 4, 4)
