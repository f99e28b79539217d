"""A training is followed in one place: across segments, restarts, and scores that come late."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipeline.__main__ import main
from pipeline.pretrain.follow import Board, lines, models

Points = list[tuple[int, float]]


def step(number: int, loss: float) -> str:
    return json.dumps({"step": number, "loss": loss, "seconds": 0.5, "tokens_per_second": 1000.0}) + "\n"


def scratch(run: Path, last: int, code: str, *steps: str, age: float = 0.0) -> Path:
    """Write what a segment that trains has in its scratch, begun so many seconds ago."""
    folder = run / "scratch/base" / str(last) / code
    (folder / "starts").mkdir(parents=True, exist_ok=True)
    then = time.time() - age
    os.utime(folder / "starts", (then, then))
    (folder / "metrics.jsonl").write_text("".join(steps))
    return folder


def milestone(run: Path, last: int, *steps: str) -> None:
    folder = run / "models/base/milestones" / str(last)
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(steps))


def score(run: Path, last: int, value: float) -> None:
    folder = run / "evaluation/base" / str(last)
    folder.mkdir(parents=True)
    rows = [{"suite": "dutch", "task": "t", "metric": "acc", "value": value}]
    (folder / "results.json").write_text(json.dumps({"step": last, "tasks": rows}))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "provenance").mkdir()
    return tmp_path


def shown(folder: Path, tag: str = "loss") -> Points:
    """Return what TensorBoard shows of a folder, by its own reader."""
    board = EventAccumulator(str(folder))
    board.Reload()
    return [(event.step, round(event.value, 3)) for event in board.Scalars(tag)]


def test_a_training_is_one_curve_across_segments_restarts_and_late_scores(run: Path, tmp_path: Path) -> None:
    board, folder = Board(tmp_path / "board"), tmp_path / "board"
    old = scratch(run, 4, "old", step(1, 9.0), step(2, 9.0), age=100)
    now = scratch(run, 4, "new", step(1, 5.0), step(2, 4.0), step(3, 3.5))
    assert models(run) == ["base"] and board.show(lines(run, "base")) and not board.show(lines(run, "base"))
    assert shown(folder) == [(1, 5.0), (2, 4.0), (3, 3.5)], f"{old} was begun before"
    (now / "metrics.jsonl").write_text(step(1, 5.0) + step(2, 4.5) + '{"step": 3, "lo')  # killed, and begun again
    assert board.show(lines(run, "base"))
    assert shown(folder) == [(1, 5.0), (2, 4.5)]
    milestone(run, 4, *(step(n, 5.0 - n / 10) for n in (1, 2, 3, 4)))
    scratch(run, 8, "new", step(5, 3.0), step(6, 2.9))
    assert board.show(lines(run, "base"))
    assert shown(folder) == [(1, 4.9), (2, 4.8), (3, 4.7), (4, 4.6), (5, 3.0), (6, 2.9)]
    score(run, 4, 0.5)
    assert board.show(lines(run, "base"))
    assert shown(folder) == [(1, 4.9), (2, 4.8), (3, 4.7), (4, 4.6), (5, 3.0), (6, 2.9)]
    assert shown(folder, "dutch/t/acc") == [(4, 0.5)]
    again = Board(folder)
    again.show(lines(run, "base"))
    assert shown(folder)[-1] == (6, 2.9) and len(shown(folder)) == 6 and len([*folder.iterdir()]) == 1


def test_the_command_says_where_to_look_and_how_far_it_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scratch(run, 4, "new", step(1, 5.0), json.dumps({"step": 1, "validation_loss": 4.25}) + "\n", step(2, 4.0))
    assert main(["follow", str(run), "--once"]) == 0
    said = capsys.readouterr().out
    assert f"tensorboard --logdir {run}/scratch/live-base" in said
    assert "base: step 2  loss 4.0000  1,000 tokens/s  validation 4.2500" in said
    assert shown(run / "scratch/live-base") == [(1, 5.0), (2, 4.0)]
    assert main(["follow", str(run), "--once"]) == 0 and models(run) == ["base"]


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["follow", str(tmp_path / "none"), "--once"]) == 2
    assert "is no run that was started: name a folder such as results/NAME" in capsys.readouterr().err
