"""What DeepSpeed's backend does beside training: the switches of memory, with the numbers that it gives without them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.strategies import of_backend
from pipeline.pretrain.settings import SegmentSettings
from tests.pretrain.parallel.test_parity import BATCH, case, outcome_of_backend

SWITCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "selective": {"recomputation": "selective"},
    "full": {"recomputation": "full"},
    "full, tiles": {"recomputation": "full", "tiled_feed_forward": 4},
    "tiles": {"tiled_feed_forward": 4},
}


@pytest.mark.slow
def test_recomputation_changes_no_bit(
    settings: Callable[..., SegmentSettings], tokens: dict[str, Path], tmp_path: Path
) -> None:
    cases = {
        (strategy, precision, name): case(
            settings, BATCH // 4, strategy=strategy, backend="deepspeed", precision=precision, **switch
        )
        for strategy in ('zero1', 'zero2', 'zero3','zero3_offload_all')
        for precision in ("fp32", "bf16")
        for name, switch in SWITCHES.items()
        if (strategy, precision) != ("zero0", "bf16")
    }
    found = outcome_of_backend(2, {" ".join(key): one for key, one in cases.items()}, tokens, tmp_path)
    for strategy, precision, name in cases:
        plain, other = (found[" ".join((strategy, precision, one))] for one in ("plain", name))
        for what in ("losses", "norms", "validation", "weights", "moments"):
            if "tiles" in name:
                flat = lambda v: list(v.values()) if isinstance(v, dict) else v
                a, b = flat(plain[what]), flat(other[what])
                a, b = (a, b) if isinstance(a, list) else ([a], [b])
                d = max(abs(x - y) / abs(y) for x, y in zip(a, b))
            else:
                d = plain[what] == other[what]
            print(strategy, precision, name, what, d, round(other["cpu_seconds"], 1))
