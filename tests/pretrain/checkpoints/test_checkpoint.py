"""The canonical checkpoint: every strategy and process count writes and reads one state; damage is detected."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipeline.pretrain.checkpoints.checkpoint import CheckpointReader
from pipeline.pretrain.processes.launch_command import build_command
from pipeline.pretrain.settings import SegmentSettings

pytestmark = pytest.mark.usefixtures("warm_processes")
ROOT = Path(__file__).parents[3]


def start(processes: int, *arguments: Path) -> None:
    launch = f"torchrun --standalone --nproc-per-node={processes}"
    words = build_command(launch, "tests.pretrain.checkpoints.checkpoint_worker", [str(path) for path in arguments])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module", params=["adamw", "muon"])
def given(
    settings: Callable[..., SegmentSettings], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """Return the settings file next to the canonical checkpoint, of three steps in one process."""
    folder = tmp_path_factory.mktemp("canonical")
    path = folder / "settings.json"
    chosen = settings(strategy="no_shard", sequence_length=16, keep_checkpoints=5, optimizer=request.param)
    path.write_text(chosen.model_dump_json())
    start(1, path, folder)
    return path


def test_checkpoint_of_one_process_is_plain_safetensors(given: Path) -> None:
    reader = CheckpointReader(given.parent / "canonical")
    tensors = load_file(given.parent / "canonical/rank-00000.safetensors")
    assert tensors.keys() == reader.shapes.keys()
    assert all(torch.equal(tensor, reader.read(name)) for name, tensor in tensors.items())
    assert {name.split(".")[0] for name in tensors} == {"model", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("processes", [1, 2, pytest.param(4, marks=pytest.mark.thorough)])
def test_every_save_is_the_canonical_state_and_every_load_restores_it(
    processes: int, given: Path, tmp_path: Path
) -> None:
    canonical = CheckpointReader(given.parent / "canonical")
    start(processes, given, tmp_path, canonical.folder)
    result: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    if not (reference := given.parent / "losses.json").exists():
        reference.write_text(json.dumps(result["no_shard"]["losses"]))
    expected = json.loads(reference.read_text())
    assert ("exp_avg_sq.blocks.0.attention.query.weight" in canonical.shapes) == ("zero1" in result)  # not of muon
    for strategy in result:
        saved = CheckpointReader(tmp_path / strategy / "3")
        assert saved.shapes == canonical.shapes and len(saved.state["files"]) == processes
        for name in canonical.shapes:
            assert torch.equal(saved.read(name), canonical.read(name)), (strategy, name)
        same = ("step", "optimizer_step", "tokens_seen", "sampler", "schedule")
        assert [saved.state[name] for name in same] == [canonical.state[name] for name in same]
        assert saved.state["skips"] == [7] and saved.state["layout"]["world_size"] == processes
        assert result[strategy]["losses"] == pytest.approx(expected, abs=1e-6), strategy
        assert result[strategy]["resumed"] == result[strategy]["losses"][1] and not result[strategy]["differences"]
