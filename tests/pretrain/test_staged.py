"""Training from a copy of the tokens on the node's disk is the same training."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.ground.errors import InputError
from pipeline.pretrain import segment
from pipeline.pretrain.settings import SegmentSettings
from pipeline.tokens import staging


def test_a_staged_segment_gives_the_same_milestone(
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


def test_a_disk_without_room_stops_the_job_before_it_starts(
    settings: Callable[..., SegmentSettings],
    tokens: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "SPARE_BYTES", 2**62)
    places = {"milestone": tmp_path / "milestone", "scratch": tmp_path / "scratch", "staging": tmp_path / "disk"}
    with pytest.raises(InputError, match=r"staging: .* name a folder on a larger disk or leave staging out"):
        segment.run(settings(), **tokens, previous=[], launch="", **places)
    assert not (tmp_path / "scratch").exists()
