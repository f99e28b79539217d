"""A sequence shared by more processes than divide its heads gives the numbers of one process."""

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
# Each mesh once, alternately with and without masked documents.
CASES: dict[int, list[tuple[str, bool, dict[str, int]]]] = {
    2: [("three heads", True, {"context": 2}), ("three heads", False, {"context": 2})],
    4: [
        ("three heads", False, {"context": 4}),
        ("six heads for two", True, {"context": 4}),
        ("six heads for two", False, {"context": 2, "tensor": 2}),
        ("three heads", True, {"context": 2, "pipeline": 2}),
    ],
}


def case_settings(
    settings: Callable[..., SegmentSettings], name: str, masks: bool, micro_batch_size: int, **training: Any
) -> SegmentSettings:
    """Return the settings of a case."""
    sampling = {"mask_documents": masks}
    chosen: SegmentSettings = case(settings, micro_batch_size, SHAPES[name], sampling=sampling, **training)
    return chosen


@pytest.fixture(scope="module")
def alone(
    settings: Callable[..., SegmentSettings], tokens: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Return the results of each shape in one process, with and without masked documents."""
    cases = {
        f"{name} {masks}": case_settings(settings, name, masks, BATCH) for name in SHAPES for masks in (False, True)
    }
    return outcome(1, cases, tokens, tmp_path_factory.mktemp("alone"))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_parallel_processes_equal_one(
    processes: int,
    settings: Callable[..., SegmentSettings],
    tokens: dict[str, Path],
    tmp_path: Path,
    alone: dict[str, Any],
) -> None:
    cases = {
        f"{name} {masks} {mesh}": case_settings(settings, name, masks, BATCH // 2, mesh=mesh)
        for name, masks, mesh in CASES[processes]
    }
    for name, result in outcome(processes, cases, tokens, tmp_path).items():
        check_equal(result, alone[name.partition(" {")[0]], name)
