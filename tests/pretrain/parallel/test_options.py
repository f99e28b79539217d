"""What is chosen of optimizer, loss and attention gives the same numbers in 1, 2 and 4 processes of any layout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.pretrain.settings import SegmentSettings
from tests.pretrain.parallel.test_parity import BATCH, case, check_equal, outcome

pytestmark = pytest.mark.usefixtures("warm_processes")
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "embedding not decayed": {"decay_embedding": False, "weight_decay": 1.0},
    "z-loss": {"z_loss": 0.01},
    "window": {"architecture": {"window": 5, "full_attention_layers": [1]}},
    "documents": {"sampling": {"mask_documents": True}},
    "muon": {"optimizer": "muon", "architecture": {"base_width": None}},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "no_shard": {"strategy": "no_shard"},
    "full_shard": {},
    "hybrid_shard, groups of 1": {"strategy": "hybrid_shard", "mesh": {"shard": 1}},
    "full_shard, tensor 2": {"mesh": {"tensor": 2}, "micro_batch_size": BATCH},
    "full_shard, pipeline 2": {"mesh": {"pipeline": 2}},
    "full_shard, context 2": {"mesh": {"context": 2}, "micro_batch_size": BATCH},
    "zero1": {"backend": "deepspeed", "strategy": "zero1"},
    "zero3": {"backend": "deepspeed", "strategy": "zero3"},
}

FOUR: dict[str, dict[str, Any]] = {
    "hybrid_shard, groups of 2": {"strategy": "hybrid_shard", "mesh": {"shard": 2}},
    "full_shard, tensor 2": {"mesh": {"tensor": 2}},
}


@pytest.mark.slow
def test_processes_agree_with_one(
    settings: Callable[..., SegmentSettings], tokens: dict[str, Path], tmp_path: Path
) -> None:
    def made(**changes: Any) -> SegmentSettings:
        chosen: SegmentSettings = case(settings, **{"micro_batch_size": BATCH // 4, **changes})
        return chosen

    alone = outcome(
        1, {name: made(strategy="no_shard", **chosen) for name, chosen in OPTIONS.items()}, tokens, tmp_path
    )
    for name in OPTIONS.keys() - {"plain"}:
        assert alone[name]["losses"] != alone["plain"]["losses"], name
    cases = {
        f"{name} | {layout}": (name, made(**chosen, **how))
        for name, chosen in OPTIONS.items()
        for layout, how in LAYOUTS.items()
        if chosen and not (name == "muon" and how.get("backend") == "deepspeed")
    }
    found = outcome(2, {key: chosen for key, (_, chosen) in cases.items()}, tokens, tmp_path)
    for key, (name, _) in cases.items():
        check_equal(found[key], alone[name], key)
    of_four = {key: made(**OPTIONS["muon"], **how) for key, how in FOUR.items()}
    for key, found_of_four in outcome(4, of_four, tokens, tmp_path).items():
        check_equal(found_of_four, alone["muon"], f"4 | muon | {key}")
