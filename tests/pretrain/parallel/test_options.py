"""Options of optimizer, loss and attention give the same numbers in 1 and 2 processes of any layout."""

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
# The effect of each is larger than the tolerance between layouts, so one case of a layout shows all.
ALL_BUT_MUON: dict[str, Any] = {key: value for name in list(OPTIONS)[:-1] for key, value in OPTIONS[name].items()}
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

# Windows and documents use other code if they are not combined.
SINGLE = [("window", "full_shard, context 2"), ("documents", "full_shard, context 2")]
FOUR: dict[str, dict[str, Any]] = {
    "hybrid_shard, groups of 2": {"strategy": "hybrid_shard", "mesh": {"shard": 2}},
    "full_shard, tensor 2": {"mesh": {"tensor": 2}},
}


def case_settings(settings: Callable[..., SegmentSettings], **changes: Any) -> SegmentSettings:
    """Return the settings of a case."""
    chosen: SegmentSettings = case(settings, **{"micro_batch_size": BATCH // 4, **changes})
    return chosen


@pytest.fixture(scope="module")
def alone(
    settings: Callable[..., SegmentSettings], tokens: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Return the results of each option in one process, and of all options except Muon."""
    cases = {
        name: case_settings(settings, strategy="no_shard", **chosen)
        for name, chosen in {**OPTIONS, "all but muon": ALL_BUT_MUON}.items()
    }
    return outcome(1, cases, tokens, tmp_path_factory.mktemp("alone"))


@pytest.mark.slow
def test_two_processes_equal_one(
    settings: Callable[..., SegmentSettings], tokens: dict[str, Path], tmp_path: Path, alone: dict[str, Any]
) -> None:
    for name in OPTIONS.keys() - {"plain"}:
        assert alone[name]["losses"] != alone["plain"]["losses"], name
    cases = {f"{name} | {layout}": (name, {**OPTIONS[name], **LAYOUTS[layout]}) for name, layout in SINGLE}
    for layout, how in LAYOUTS.items():
        cases[f"all but muon | {layout}"] = "all but muon", {**ALL_BUT_MUON, **how}
        if how.get("backend") != "deepspeed":
            cases[f"muon | {layout}"] = "muon", {**OPTIONS["muon"], **how}
    result = outcome(
        2, {key: case_settings(settings, **changes) for key, (_, changes) in cases.items()}, tokens, tmp_path
    )
    for key, (name, _) in cases.items():
        check_equal(result[key], alone[name], key)


@pytest.mark.thorough
def test_four_muon_processes_equal_one(
    settings: Callable[..., SegmentSettings], tokens: dict[str, Path], tmp_path: Path, alone: dict[str, Any]
) -> None:
    cases = {key: case_settings(settings, **OPTIONS["muon"], **how) for key, how in FOUR.items()}
    for key, result in outcome(4, cases, tokens, tmp_path).items():
        check_equal(result, alone["muon"], f"4 | muon | {key}")
