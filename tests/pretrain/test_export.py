"""Metrics and TensorBoard: what they keep, and what they never hold twice."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipeline.ground.errors import InputError
from pipeline.pretrain import export
from pipeline.pretrain.gauges.metrics import read, truncate
from pipeline.pretrain.settings import ExportSettings


def milestone(folder: Path, first: int, last: int) -> Path:
    (folder / "huggingface").mkdir(parents=True)
    (folder / "huggingface/config.json").write_text(json.dumps({"step": last}))
    (folder / "state.json").write_text(json.dumps({"step": last}))
    steps = [{"step": s, "loss": 5.0 - s / 10, "seconds": 0.5, "other": None} for s in range(first, last + 1)]
    lines = [*steps, {"step": last, "validation_loss": 4.0}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def run(folder: Path, milestones: list[Path]) -> dict[str, object]:
    folder.mkdir()
    outputs = {name: folder / name for name in ("final", "metrics", "tensorboard")}
    return export.run(ExportSettings(), milestones=milestones, **outputs)


def test_segments_are_joined_in_order_and_charted(tmp_path: Path) -> None:
    milestones = [milestone(tmp_path / "10", 6, 10), milestone(tmp_path / "5", 1, 5)]
    counts = run(tmp_path / "out", milestones)
    assert counts == {"steps": 10, "milestones": 2, "loss": 4.0}
    assert json.loads((tmp_path / "out/final/config.json").read_text()) == {"step": 10}
    lines = read(tmp_path / "out/metrics")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10]
    board = EventAccumulator(str(tmp_path / "out/tensorboard"))
    board.Reload()
    assert [(e.step, e.wall_time) for e in board.Scalars("loss")] == [(s, s / 2) for s in range(1, 11)]
    assert [e.value for e in board.Scalars("validation_loss")] == [4.0, 4.0]


def test_the_charts_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    milestones = [milestone(tmp_path / "5", 1, 5)]
    for name in ("a", "b"):
        run(tmp_path / name, milestones)
    (first,), (second,) = (list((tmp_path / name / "tensorboard").iterdir()) for name in ("a", "b"))
    assert (first.name, first.read_bytes()) == (second.name, second.read_bytes())


def test_a_gap_between_segments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not hold every step once"):
        run(tmp_path / "out", [milestone(tmp_path / "a", 1, 4), milestone(tmp_path / "b", 6, 10)])


def test_truncate_drops_later_steps_and_a_torn_line(tmp_path: Path) -> None:
    path = milestone(tmp_path / "m", 1, 9) / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 10, "lo')
    truncate(path, 9)
    assert [line["step"] for line in read(path)] == [*range(1, 10), 9]
    truncate(path, 4)
    assert [line["step"] for line in read(path)] == [1, 2, 3, 4]
    truncate(tmp_path / "m/none.jsonl", 0)
    assert read(tmp_path / "m/none.jsonl") == []
