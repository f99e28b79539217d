"""Training from a copy of the tokens on the node's disk is the same training."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.pretrain import segment
from pipeline.pretrain.settings import SegmentSettings
from pipeline.tokens import memory_mapped_shards

pytestmark = pytest.mark.usefixtures("warm_processes")


def test_staged_segment_gives_the_same_milestone(
    settings: Callable[..., SegmentSettings], tokens: dict[str, Path], tmp_path: Path
) -> None:
    chosen = settings(last_step=2, steps=2, sampling={"epochs": {"words": 2}})
    made = []
    for name, folder in (("plain", None), ("staged", tmp_path / "disk")):
        milestone = tmp_path / name / "milestone"
        milestone.parent.mkdir()
        segment.run(
            chosen,
            **tokens,
            previous=[],
            milestone=milestone,
            scratch=tmp_path / name / "scratch",
            launch="",
            staging=folder,
        )
        made.append(hashlib.sha256((milestone / "rank-00000.safetensors").read_bytes()).hexdigest())
    assert made[0] == made[1]
    assert len(list((tmp_path / "disk").glob("*/train/0.arrow"))) == 1


def test_full_staging_disk_stops_the_job_before_training(
    settings: Callable[..., SegmentSettings],
    tokens: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_mapped_shards, "SPARE_BYTES", 2**62)
    places = {"milestone": tmp_path / "milestone", "scratch": tmp_path / "scratch", "staging": tmp_path / "disk"}
    with pytest.raises(InputError, match=r"staging: .* name a folder on a larger disk or remove staging"):
        segment.run(settings(), **tokens, previous=[], launch="", **places)
    assert not (tmp_path / "scratch").exists()


def test_optimizer_on_disk_trains_the_same_model_and_needs_a_disk(
    settings: Callable[..., SegmentSettings], tokens: dict[str, Path], tmp_path: Path
) -> None:
    made = {}
    for strategy in ("zero3_offload_optimizer", "zero3_optimizer_on_disk"):
        folder = tmp_path / strategy
        folder.mkdir()
        chosen = settings(last_step=4, steps=4, checkpoint_every=2, backend="deepspeed", strategy=strategy)
        places = {"milestone": folder / "milestone", "scratch": folder / "scratch", "launch": ""}
        if strategy == "zero3_optimizer_on_disk":
            with pytest.raises(
                InputError, match=r"strategy zero3_optimizer_on_disk keeps .* write node_disk into the pl"
            ):
                segment.run(chosen, **tokens, previous=[], **places)
            assert [*folder.iterdir()] == []
            places["staging"] = folder / "disk"
        segment.run(chosen, **tokens, previous=[], **places)
        made[strategy] = hashlib.sha256((folder / "milestone/rank-00000.safetensors").read_bytes()).hexdigest()
    assert len({*made.values()}) == 1
    assert [path.name for path in folder.glob("disk/*") if path.is_file()] == []
