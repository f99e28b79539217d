"""Out of memory ends in a sentence with fitting settings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.model.settings import Architecture
from pipeline.plan import training_cost_formulas
from pipeline.plan.settings import TrainingPlan
from pipeline.pretrain import segment
from pipeline.pretrain.monitors import memory_estimate
from pipeline.pretrain.settings import SegmentSettings, Training

EIGHT = Architecture(layers=32, width=4096, feed_forward_width=14336, heads=32, key_value_heads=8)
NUMBERS: dict[str, Any] = {"sequence_length": 4096, "batch_size": 512, "steps": 1, "learning_rate": 1e-4}
GIBIBYTE = 2**30


def advice(capacity_gibibytes: float, processes: int, **training: Any) -> str:
    chosen = Training.model_validate({**NUMBERS, "precision": "bf16", **training})
    values = {"seed": 1, "first_step": 0, "last_step": 1, "architecture": EIGHT, "training": chosen}
    settings = SegmentSettings.model_validate(values)
    return memory_estimate.format_advice(settings, 128_256, processes, 4, int(capacity_gibibytes * GIBIBYTE))


def test_first_advice_is_a_smaller_micro_batch() -> None:
    sentence = advice(80, 8, strategy="full_shard", micro_batch_size=16)
    assert "training.strategy full_shard and micro_batch_size 16" in sentence
    assert "strategy full_shard with micro_batch_size 2 should fit" in sentence


def test_second_advice_is_recomputation() -> None:
    sentence = advice(32, 8, strategy="full_shard", micro_batch_size=1)
    assert "strategy full_shard, recomputation full with micro_batch_size 1 should fit" in sentence
    assert "use more or larger devices" in advice(16, 8, strategy="full_shard", micro_batch_size=1)
    # It is not advised if it is already on.
    assert ", recomputation" not in advice(32, 8, strategy="full_shard", micro_batch_size=2, recomputation="full")
    sentence = advice(32, 8, backend="deepspeed", strategy="zero3", micro_batch_size=1)
    assert "strategy zero3, recomputation full with micro_batch_size 1 should fit" in sentence


def test_third_advice_is_a_strategy_that_shards_more() -> None:
    # 16 bytes for each of 8 billion parameters never fit, at any batch size.
    for capacity, strategy in ((80, "shard_optimizer"), (55, "shard_grad_op")):
        sentence = advice(capacity, 64, strategy="no_shard", micro_batch_size=1)
        assert f"strategy {strategy} with micro_batch_size 1 should" in sentence
    sentence = advice(84, 2, backend="deepspeed", strategy="zero1", micro_batch_size=1)
    assert "strategy zero2, recomputation full with micro_batch_size 1 should fit" in sentence


def test_last_advice_is_more_devices() -> None:
    assert "use more or larger devices" in advice(20, 2, strategy="full_shard", micro_batch_size=4)


def test_advice_needs_less_memory_than_the_failed_settings() -> None:
    """If the estimate of the failed settings fits, the advice is still smaller."""
    sentence = advice(10_000, 8, strategy="full_shard", micro_batch_size=16)
    assert "strategy full_shard with micro_batch_size 8 should fit" in sentence


def test_mesh_divides_the_state() -> None:
    """A strategy that gathers nothing; the first of two stages has 17 of 32 layers and one of two tables."""
    numbers = {**NUMBERS, "micro_batch_size": 1, "strategy": "no_shard"}
    training = Training.model_validate({**numbers, "mesh": {"tensor": 2, "pipeline": 2}})
    plain = Training.model_validate(numbers)
    one, split = (
        training_cost_formulas.device_bytes(EIGHT, 128_256, plan, devices=2, node=2, recomputation=True)
        for plan in map(TrainingPlan.model_validate, (plain, training))
    )
    assert one.state / 4 < split.state < one.state / 4 * 1.07 and one.gathered == split.gathered == 0


@pytest.mark.slow
def test_training_that_runs_out_of_memory_is_refused(
    settings: Callable[..., SegmentSettings], tokens: dict[str, Path], tmp_path: Path
) -> None:
    """The process gets two gibibytes; the feed-forward blocks of this micro-batch need more."""
    chosen = settings(
        batch_size=32, micro_batch_size=32, sequence_length=512, architecture={"feed_forward_width": 8192}
    )
    places = {"milestone": tmp_path / "milestone", "scratch": tmp_path / "scratch", "previous": []}
    with pytest.raises(
        InputError, match=r"out of memory, 2 GiB .* strategy full_shard with micro_batch_size \d+ should"
    ):
        segment.run(chosen, **tokens, **places, launch="prlimit --as=2147483648")
    assert not (tmp_path / "milestone").exists()
