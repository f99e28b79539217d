"""Other architectures than Llama train with both backends and every kind of parallelism to the same numbers."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.model.architectures import ARCHITECTURES
from pipeline.model.networks import NETWORKS, parameter_shapes
from pipeline.pretrain.processes.launch_command import build_command
from pipeline.pretrain.settings import SegmentSettings

pytestmark = pytest.mark.usefixtures("warm_processes")
STEPS = 3
TWO: dict[str, dict[str, Any]] = {
    "full_shard": {},
    "zero2": {"backend": "deepspeed", "strategy": "zero2"},
    "tensor, in tiles": {"mesh": {"tensor": 2}, "tiled_feed_forward": 2, "micro_batch_size": 2},
    "pipeline": {"mesh": {"pipeline": 2}},
    "context": {"mesh": {"context": 2}, "recomputation": "full"},
}


def outcome(
    processes: int, cases: dict[str, SegmentSettings], tokens: dict[str, Path], folder: Path
) -> dict[str, dict[str, Any]]:
    paths = {"index": str(tokens["index"]), "outcome": str(folder / "outcome.json")}
    dumped = {name: settings.model_dump(mode="json") for name, settings in cases.items()}
    (folder / "cases.json").write_text(json.dumps({**paths, "cases": dumped}))
    launch = f"torchrun --standalone --nproc-per-node={processes}"
    worker = build_command(launch, "tests.pretrain.parallel.second_worker", [str(folder / "cases.json")])
    subprocess.run(worker, check=True, timeout=600)
    result: dict[str, dict[str, Any]] = json.loads((folder / "outcome.json").read_text())
    return result


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["second-tiny", pytest.param("qwen3", marks=pytest.mark.thorough)])
def test_another_architecture_trains_equally_under_every_strategy(
    preset: str,
    settings: Callable[..., SegmentSettings],
    tokens: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "second", "tests.model.second")
    monkeypatch.setitem(NETWORKS, "second", "tests.model.second_network")

    def case(**training: Any) -> SegmentSettings:
        return settings(last_step=STEPS, architecture={"preset": preset}, **training)

    alone = outcome(1, {"alone": case()}, tokens, tmp_path)["alone"]
    names = parameter_shapes(case().architecture, json.loads(tokens["index"].read_text())["vocabulary_size"])
    assert alone["weights"].keys() == {f"model.{name}" for name in names} and alone["losses"][-1] < alone["losses"][0]
    for name, result in outcome(2, {n: case(**changes) for n, changes in TWO.items()}, tokens, tmp_path).items():
        for key in ("losses", "norms", "validation", "weights", "moments"):
            assert result[key] == pytest.approx(alone[key], rel=1e-4), (name, key)
