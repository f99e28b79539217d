"""A run is followed by its files: a live view on a terminal, changed lines elsewhere, JSON for programs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.workflow.live_view import Follower, LiveView, follow, render
from pipeline.workflow.run_progress_file import FailedJob
from tests.workflow.test_run_progress_file import example, train

VIEW = """\
demo  25 of 27 jobs  running  10 min 00 s  about 7 min 12 s left
corpus    ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  24 of 24
pretrain  ━━━━━━━━━━━━━───────────────────────────  1 of 3

running   pretrain.segment base 400  2 min 00 s
training  base: step 200 of 400  loss 2.0000
waiting   evaluate.suites base 200  Priority
failed    corpus.filter main laws 0: error: no
"""


def test_view_fits_a_terminal_of_100_columns() -> None:
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    failed = [FailedJob(name="corpus.filter main laws 0", cause="error: no", log=None)]
    console.print(render(example(failed=failed), ["base: step 200 of 400  loss 2.0000"], 1600.0))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert lines == VIEW.splitlines()


def test_messages_are_printed_above_the_live_view() -> None:
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    view = LiveView(console, lambda: 1600.0)
    view.update(example(), [])
    view.print("the queue is full [of jobs]")
    view.stop()
    text = console.export_text()
    assert "the queue is full [of jobs]\n" in text and text.rstrip().endswith("Priority")


class Run:
    """A followed run; each wait changes its file or ends it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.waits = folder, 1600.0, 0
        train(folder, 200)
        example().write(folder)
        self.follower = Follower(folder, lambda run: [], lambda: ["base: step 200"], lambda: self.now)

    def sleep(self, seconds: float) -> None:
        """Let some time pass."""
        self.now, self.waits = self.now + seconds, self.waits + 1
        if self.waits == 2:
            example(updated=self.now, jobs=[]).write(self.folder)
        if self.waits == 4:
            raise KeyboardInterrupt


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_log_output_contains_only_changes(run: Run) -> None:
    console = Console(file=io.StringIO())
    follow(run.follower, console=console, sleep=run.sleep)
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "demo: 25 of 27 jobs done; 1 running (pretrain.segment base 400); 1 waiting (Priority); about 7 min 12 s left",
        "base: step 200",
        "demo: 25 of 27 jobs done; about 7 min 12 s left",
    ]


def test_json_output_is_machine_readable(run: Run) -> None:
    console = Console(file=io.StringIO())
    follow(run.follower, once=True, as_json=True, console=console)
    content = json.loads(console.file.getvalue())  # type: ignore[attr-defined]
    assert (content["done"], content["total"], content["status"], content["trainings"][0]["step"]) == (
        25,
        27,
        "running",
        200,
    )


def test_run_without_progress_shows_its_trainings(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    follow(Follower(tmp_path, lambda run: ["job 1 waits"], lambda: ["base: step 7"]), once=True, console=console)
    assert console.file.getvalue() == "job 1 waits\nbase: step 7\n"  # type: ignore[attr-defined]
