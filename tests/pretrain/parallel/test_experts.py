"""A mixture of experts gives the same numbers in 1, 2 and 4 processes, with experts divided over them or not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.pretrain.settings import SegmentSettings
from tests.pretrain.parallel.test_parity import BATCH, case, check_equal, outcome

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
def test_processes_agree_with_one(
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
    assert alone["one"]["losses"][0] == alone["other"]["losses"][0]  # it is in the gradients alone
    for processes, cases in ((2, TWO), (4, FOUR)):
        found = outcome(processes, {name: made(**how) for name, how in cases.items()}, tokens, tmp_path)
        for name in cases:
            check_equal(found[name], alone["one"], f"{processes} | {name}")
