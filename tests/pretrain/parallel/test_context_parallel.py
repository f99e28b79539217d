"""A sequence that more processes share than divide its heads gives the numbers of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.pretrain.settings import SegmentSettings
from tests.pretrain.parallel.test_parity import BATCH, case, check_equal, outcome

pytestmark = pytest.mark.usefixtures("warm_processes")
SHAPE = {"width": 48, "base_width": None}
SHAPES: dict[str, dict[str, Any]] = {
    "three heads": {**SHAPE, "heads": 3, "key_value_heads": 3},
    "six heads for two": {**SHAPE, "heads": 6, "key_value_heads": 2, "window": 9},
}
MESHES: dict[int, list[tuple[str, dict[str, int]]]] = {
    2: [("three heads", {"context": 2})],
    4: [
        ("three heads", {"context": 4}),
        ("six heads for two", {"context": 4}),
        ("six heads for two", {"context": 2, "tensor": 2}),
        ("three heads", {"context": 2, "pipeline": 2}),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_agree_with_one(
    processes: int, settings: Callable[..., SegmentSettings], tokens: dict[str, Path], tmp_path: Path
) -> None:
    def made(name: str, masks: bool, micro_batch_size: int, **training: Any) -> SegmentSettings:
        sampling = {"mask_documents": masks}
        chosen: SegmentSettings = case(settings, micro_batch_size, SHAPES[name], sampling=sampling, **training)
        return chosen

    alone = {f"{name} {masks}": made(name, masks, BATCH) for name in SHAPES for masks in (False, True)}
    cases = {
        f"{name} {masks} {mesh}": made(name, masks, BATCH // 2, mesh=mesh)
        for name, mesh in MESHES[processes]
        for masks in (False, True)
    }
    expected = outcome(1, alone, tokens, tmp_path)
    for name, found in outcome(processes, cases, tokens, tmp_path).items():
        check_equal(found, expected[name.partition(" {")[0]], name)
