"""The progress of a run is a small file that any machine reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.layout import PROGRESS
from pipeline.workflow.run_progress_file import (
    FailedJob,
    JobProgress,
    RunProgress,
    StageProgress,
    read_trainings,
)


def example(**changes: object) -> RunProgress:
    """Return the progress of a run that trains."""
    return RunProgress(
        run="demo",
        host="login1",
        process=4711,
        started=1000.0,
        updated=1600.0,
        stages=[StageProgress(stage="corpus", done=24, jobs=24), StageProgress(stage="pretrain", done=1, jobs=3)],
        jobs=[
            JobProgress(name="pretrain.segment base 400", started=1480.0),
            JobProgress(name="evaluate.suites base 200", started=1590.0, reason="Priority"),
        ],
        seconds_left=432.0,
        training_steps={"base": 400},
    ).model_copy(update=changes)


def train(run: Path, steps: int) -> None:
    """Write metrics as a training does, the last line truncated."""
    (run / "scratch/base/400/code/starts/1").mkdir(parents=True)
    lines = [
        json.dumps({"step": step, "loss": 4 - step / 100, "seconds": 1.5, "tokens_per_second": 12345.0})
        for step in range(1, steps + 1)
    ]
    (run / "scratch/base/400/code/metrics.jsonl").write_text("\n".join([*lines, '{"step": 9']))


def test_written_file_is_read_unchanged(tmp_path: Path) -> None:
    assert RunProgress.load(tmp_path) is None
    PROGRESS.path(tmp_path).parent.mkdir(parents=True)
    example().write(tmp_path)
    assert RunProgress.load(tmp_path) == example()
    PROGRESS.path(tmp_path).write_text("{")
    with pytest.raises(InputError, match="delete it; the next snakemake writes it"):
        RunProgress.load(tmp_path)


def test_running_training_is_read_from_the_end_of_its_metrics(tmp_path: Path) -> None:
    assert read_trainings(tmp_path, example()) == []
    train(tmp_path, 200)
    (training,) = read_trainings(tmp_path, example())
    assert training.text() == "base step 200 of 400, loss 2.0000, 12,345 tokens/s, ends in 5 min 00 s"
    assert read_trainings(tmp_path, example(jobs=[])) == []


def test_progress_line_has_jobs_queue_time_and_trainings(tmp_path: Path) -> None:
    train(tmp_path, 200)
    line = example().line(read_trainings(tmp_path, example()), 1600.0)
    assert line == (
        "demo: 25 of 27 jobs done; 1 running (pretrain.segment base 400); 1 waiting (Priority); about 7 min 12 s left; "
        "base step 200 of 400, loss 2.0000, 12,345 tokens/s, ends in 5 min 00 s"
    )
    assert "at least 7 min 12 s left" in example(unknown_steps=["corpus.filter"]).line([], 1600.0)


def test_status_distinguishes_silence_from_an_end() -> None:
    assert example().status(1700.0) == "running"
    assert example().status(1900.0) == "silent for 5 min 00 s: check on login1 whether process 4711 runs"
    failed = [FailedJob(name="corpus.filter main", cause="error: no", log=None)]
    assert example(ended=1600.0, failed=failed).status(9e9) == "stopped: 1 job failed"
    assert example(ended=1600.0).status(9e9) == "stopped"
