"""A training is followed in one place: across segments, restarts, and late scores."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipeline.cli.entry_point import main
from pipeline.pretrain.training_follower import (
    LiveTensorBoard,
    format_training_progress,
    list_models,
    read_metrics_and_scores,
)
from tests.record_content import attempt_content

Points = list[tuple[int, float]]


def interval(node: str, ended: float, joules: float) -> str:
    """Return ten seconds of a meter of one board."""
    read = {"component": "board", "part": "GPU-1", "joules": joules, "label": "measured", "method": "counter"}
    used = {"job_cpu_seconds": 1.0, "node_cpu_seconds": 1.0, "processors": 2, "job_processors": 2}
    return json.dumps(
        {
            "node": node,
            "started": ended - 10,
            "ended": ended,
            **used,
            "job_memory_bytes": 1,
            "readings": [{**read, "meter": "NVML"}],
        }
    )


def step(number: int, loss: float) -> str:
    return json.dumps({"step": number, "loss": loss, "seconds": 0.5, "tokens_per_second": 1000.0}) + "\n"


def scratch(run: Path, last: int, code: str, *steps: str, age: float = 0.0) -> Path:
    """Write the scratch of a training segment, begun the given seconds ago."""
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
    """Return TensorBoard's data of a folder, by its own reader."""
    board = EventAccumulator(str(folder))
    board.Reload()
    return [(event.step, round(event.value, 3)) for event in board.Scalars(tag)]


def test_training_is_one_curve_across_segments_restarts_and_late_scores(run: Path, tmp_path: Path) -> None:
    board, folder = LiveTensorBoard(tmp_path / "board"), tmp_path / "board"
    old = scratch(run, 4, "old", step(1, 9.0), step(2, 9.0), age=100)
    now = scratch(run, 4, "new", step(1, 5.0), step(2, 4.0), step(3, 3.5))
    assert (
        list_models(run) == ["base"]
        and board.write_new_lines(read_metrics_and_scores(run, "base"))
        and not board.write_new_lines(read_metrics_and_scores(run, "base"))
    )
    assert shown(folder) == [(1, 5.0), (2, 4.0), (3, 3.5)], f"{old} began before"
    (now / "metrics.jsonl").write_text(step(1, 5.0) + step(2, 4.5) + '{"step": 3, "lo')  # killed and restarted
    assert board.write_new_lines(read_metrics_and_scores(run, "base"))
    assert shown(folder) == [(1, 5.0), (2, 4.5)]
    milestone(run, 4, *(step(n, 5.0 - n / 10) for n in (1, 2, 3, 4)))
    scratch(run, 8, "new", step(5, 3.0), step(6, 2.9))
    assert board.write_new_lines(read_metrics_and_scores(run, "base"))
    assert shown(folder) == [(1, 4.9), (2, 4.8), (3, 4.7), (4, 4.6), (5, 3.0), (6, 2.9)]
    score(run, 4, 0.5)
    assert board.write_new_lines(read_metrics_and_scores(run, "base"))
    assert shown(folder) == [(1, 4.9), (2, 4.8), (3, 4.7), (4, 4.6), (5, 3.0), (6, 2.9)]
    assert shown(folder, "dutch/t/acc") == [(4, 0.5)]
    again = LiveTensorBoard(folder)
    again.write_new_lines(read_metrics_and_scores(run, "base"))
    assert shown(folder)[-1] == (6, 2.9) and len(shown(folder)) == 6 and len([*folder.iterdir()]) == 1


def test_follow_command_prints_the_tensorboard_folder_and_progress(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch(run, 4, "new", step(1, 5.0), json.dumps({"step": 1, "validation_loss": 4.25}) + "\n", step(2, 4.0))
    assert main(["follow", str(run), "--once"]) == 0
    output = capsys.readouterr().out
    assert f"tensorboard --logdir {run}/scratch/live-base" in output
    assert "base: step 2  loss 4.0000  validation 4.2500  1,000 tokens/s\n" in output
    assert shown(run / "scratch/live-base") == [(1, 5.0), (2, 4.0)]
    assert main(["follow", str(run), "--once"]) == 0 and list_models(run) == ["base"]


def test_progress_line_shows_loss_throughput_memory_and_power(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attempts = run / "provenance/attempts"
    attempts.mkdir()
    for began, steps in (("2026-11-01", 50), ("2026-11-02", 2000)):  # a longer training since
        settings = json.dumps({"training": {"steps": steps}})
        command = ["python", "--settings", settings, "--code", "x"]
        attempt = attempt_content("pretrain.segment", started=began, command=command)
        (attempts / f"pretrain.segment.base.{steps}.{began}.1.json").write_text(json.dumps(attempt))
    (attempts / "pretrain.segment.base.9.half.json").write_text("{")
    readings = run / "provenance/readings"
    readings.mkdir()
    (readings / "pretrain.segment.base.2000.x.1@gcn1.jsonl").write_text(f"{interval('gcn1', time.time(), 6000.0)}\n")
    utilization = {"model_flops_utilization": 0.412, "memory_bytes": 3 * 2**30, "memory_used_bytes": None}
    line = {"step": 200, "loss": 3.0, "seconds": 4.0, "tokens_per_second": 1000.0, **utilization}
    folder = scratch(run, 2000, "new", json.dumps({**line, "ended_unix_seconds": time.time()}) + "\n")
    for number in (1, 2, 3):
        (folder / "starts" / str(number)).mkdir()
        (folder / "starts" / str(number) / "arguments.json").touch()
    (folder / "starts/4").mkdir()  # of a step whose processes have not started
    assert main(["follow", str(run), "--once"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "base: step 200 of 2000  loss 3.0000  1,000 tokens/s  MFU 41.2%  3.0 GiB  "
        "0.60 kW (devices; 1 node)  2 h 00 min of steps left  started 3 times"
    )


@pytest.mark.parametrize(("quiet", "told_so"), [(100, False), (130, True)])
def test_stalled_training_is_reported(quiet: float, told_so: bool) -> None:
    lines = [{"step": step, "loss": 3.0, "seconds": 2.0, "ended_unix_seconds": 1000.0} for step in (1, 2)]
    assert ("no step for 2 minutes" in format_training_progress("base", lines, 10, now=1000.0 + quiet)) == told_so
    assert "no step for" not in format_training_progress("base", lines, 2, now=1000.0 + quiet), "it is finished"
    slow = [{**line, "seconds": 60.0} for line in lines]
    assert "no step for" not in format_training_progress("base", slow, 10, now=1000.0 + quiet), "ten steps take longer"


def test_folder_without_a_started_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["follow", str(tmp_path / "none"), "--once"]) == 2
    assert "is not a run that was started: name a folder such as results/NAME" in capsys.readouterr().err
