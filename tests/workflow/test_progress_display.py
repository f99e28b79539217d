"""The progress of a run follows from Snakemake's events, with a test clock."""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from pipeline.config.configuration import Config
from pipeline.workflow.progress_display import ProgressDisplay
from pipeline.workflow.run_progress_file import RunProgress

PLANNED, OTHERS = {1: "corpus_ngrams", 2: "corpus_ngrams", 9: "all"}, dict.fromkeys((3, 4, 5), "sources_listing")


def run_config(directory: Path) -> Config:
    """Return the part of a configuration that the display reads."""
    models = {"base": SimpleNamespace(training=SimpleNamespace(steps=100))}
    return cast(Config, SimpleNamespace(run_directory=directory, run=SimpleNamespace(name="small"), models=models))


class Shown:
    """A display of two jobs with a test clock."""

    def __init__(self, directory: Path) -> None:
        self.now, self.stream = 1000.0, io.StringIO()
        self.planned, self.others, self.times_counted = dict(PLANNED), dict(OTHERS), 0
        self.display = ProgressDisplay(
            run_config(directory), self.count, self.stream, log="snakemake.log", clock=lambda: self.now
        )

    def count(self, without: Collection[int]) -> tuple[Counter[str], Counter[str]]:
        """Return the jobs to run and the others by rule, as in Snakemake's current plan."""
        self.times_counted += 1
        planned, others = (
            Counter(rule for number, rule in jobs.items() if number not in without)
            for jobs in (self.planned, self.others)
        )
        return planned, others

    def event(self, event: LogEvent, **values: Any) -> None:
        """Send an event as Snakemake does."""
        record = logging.LogRecord("snakemake", logging.INFO, "", 0, None, None, None)
        record.__dict__.update(event=event, **values)
        self.display.handle(record)

    def start(self, number: int, corpus: str) -> None:
        """Start a job."""
        self.event(LogEvent.JOB_INFO, jobid=number, rule_name="corpus_ngrams", wildcards={"corpus": corpus})

    def finish(self, number: int) -> None:
        """Finish a job."""
        self.event(LogEvent.JOB_FINISHED, job_id=number)

    def lines(self) -> list[str]:
        """Return the printed output, without the time of day."""
        return [line[9:] if line[2:3] == ":" else line for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    (tmp_path / "scratch").mkdir()
    return Shown(tmp_path)


def test_finished_jobs_estimate_the_remaining_time(shown: Shown) -> None:
    shown.start(1, "main")
    assert shown.display.get_current_progress()[0].time_left() == "", (
        "no job of the step is finished, and there is no plan"
    )
    shown.now += 60
    shown.finish(1)
    shown.start(2, "other")
    shown.now += 20
    progress, _ = shown.display.get_current_progress()
    assert (progress.done, progress.total) == (4, 5)
    assert [job.name for job in progress.running] == ["corpus.ngrams other"]
    assert progress.time_left() == "about 40.0 s left"


def test_jobs_added_by_a_checkpoint_are_in_the_total(shown: Shown) -> None:
    shown.start(1, "main")
    shown.finish(1)
    shown.others |= {1: shown.planned.pop(1), **{number: "corpus_ngrams" for number in (6, 7)}}
    shown.event(LogEvent.PROGRESS, done=1, total=5)  # counted again: the finished job is now one of the others
    assert (shown.display.get_current_progress()[0].done, shown.display.get_current_progress()[0].total) == (6, 7)
    shown.planned |= {number: shown.others.pop(number) for number in (6, 7)}
    for number in (2, 6, 7):  # the last two needed no run before, and Snakemake's total is unchanged
        shown.start(number, f"{number}")
        shown.finish(number)
    progress = shown.display.get_current_progress()[0]
    assert (progress.done, progress.total) == (7, 7)
    shown.start(2, "2")
    assert (shown.display.get_current_progress()[0].done, shown.display.get_current_progress()[0].total) == (6, 7), (
        "a job that runs again"
    )
    shown.finish(2)
    shown.display.end()
    assert "7 of 7 jobs done, 4 of them in" in shown.lines()[-1] and "stopped" not in shown.lines()[-1]


def test_results_behind_a_checkpoint_count_as_done_once_snakemake_has_planned_again(shown: Shown) -> None:
    shown.planned = {1: "sources_complete", 2: "tokens_index", 8: "report_page"}
    shown.others |= {6: "corpus_filter", 7: "evaluate_suites"}
    done = []

    def run(number: int, rule: str) -> None:
        shown.event(LogEvent.JOB_INFO, jobid=number, rule_name=rule, wildcards={})
        done.append(shown.display.get_current_progress()[0].done)
        shown.finish(number)
        shown.event(LogEvent.PROGRESS, done=number, total=3)  # before Snakemake plans again
        done.append(shown.display.get_current_progress()[0].done)
        shown.others[number] = shown.planned.pop(number)

    run(1, "sources_complete")
    run(2, "tokens_index")
    shown.planned[7] = shown.others.pop(7)
    run(8, "report_page")
    assert done == [3, 4, 5, 6, 6, 7], "the filter counts when the index begins, the evaluation runs again"
    shown.display.end()
    assert "7 of 8 jobs done" in shown.lines()[-1]


def test_run_that_ends_with_a_checkpoint_counts_the_results_behind_it(shown: Shown) -> None:
    shown.planned = {2: "tokens_index"}
    shown.others |= {7: "evaluate_suites"}
    shown.event(LogEvent.JOB_INFO, jobid=2, rule_name="tokens_index", wildcards={})
    shown.finish(2)
    shown.display.end()
    assert "5 of 5 jobs done" in shown.lines()[-1]


def test_remaining_time_is_hidden_if_it_covers_a_minority_of_jobs(shown: Shown) -> None:
    shown.planned |= dict.fromkeys((6, 7), "corpus_filter")
    shown.start(1, "main")
    shown.now += 60
    shown.finish(1)
    assert shown.display.get_current_progress()[0].seconds_left is None, "one job of three has an estimate"


def test_log_gets_a_line_per_stage_and_periodic_lines(shown: Shown, tmp_path: Path) -> None:
    shown.start(1, "main")
    shown.display.tick()
    shown.now += 10
    shown.display.tick()
    assert shown.lines() == ["small: 3 of 5 jobs done; 1 running (corpus.ngrams main)"]
    shown.finish(1)
    shown.start(2, "other")
    shown.now += 30
    shown.display.tick()
    shown.finish(2)
    assert shown.lines()[1:] == [
        "small: 4 of 5 jobs done; 1 running (corpus.ngrams other)",
        "stage corpus is complete; small: 5 of 5 jobs done",
    ]
    shown.display.end()
    assert shown.times_counted == 1, "a plan of thousands of jobs is not counted at each start"
    assert shown.lines()[-1] == "small: 5 of 5 jobs done, 2 of them in 40.0 s"
    written = RunProgress.load(tmp_path)
    assert written and written.status(1e9) == "finished" and written.training_steps == {"base": 100}


@pytest.mark.parametrize(
    ("log", "word", "shows"),
    [
        ("Traceback\nerror: data/x.txt is empty: remove it\n", "FAILED", ["error: data/x.txt is empty: remove it"]),
        ("loading\n\nTraceback:\nValueError: no\n", "FAILED", ["loading", "Traceback:", "ValueError: no"]),
        ("Traceback\nstopped: as asked by a signal\n", "STOPPED", ["stopped: as asked by a signal"]),
    ],
)
def test_failed_job_shows_its_cause(shown: Shown, tmp_path: Path, log: str, word: str, shows: list[str]) -> None:
    file = tmp_path / "job.log"
    file.write_text(log)
    shown.start(1, "main")
    message = "Slurm's job 7 ended.\nFor further error details see the cluster/cloud log."
    shown.event(LogEvent.JOB_ERROR, jobid=1, rule_name="corpus_ngrams", rule_msg=message, log=[file])
    assert shown.lines() == [
        f"{word} corpus.ngrams main: Slurm's job 7 ended.",
        *(f"    {line}" for line in shows),
        f"    log: {file}",
    ]
    shown.display.end()
    assert shown.lines()[-2:] == [
        "small: 3 of 5 jobs done, 0 of them in 0.0 s; stopped: 1 job failed",
        "log of Snakemake: snakemake.log",
    ]


def test_job_that_succeeds_on_retry_has_not_failed(shown: Shown) -> None:
    shown.start(1, "main")
    shown.event(LogEvent.JOB_ERROR, jobid=1, rule_name="corpus_ngrams", rule_msg=None, log=[])
    assert [job.name for job in shown.display.get_current_progress()[0].failed] == ["corpus.ngrams main"]
    shown.start(1, "main")
    shown.finish(1)
    assert shown.display.get_current_progress()[0].failed == []


def test_queued_slurm_job_is_waiting_and_its_time_starts_with_execution(shown: Shown) -> None:
    shown.start(1, "main")
    shown.display.update_queue({1: "Priority"})
    shown.now += 500
    assert shown.display.get_current_progress()[0].line([], shown.now).endswith("1 waiting (Priority)")
    shown.display.update_queue({})
    shown.now += 7
    shown.finish(1)
    shown.start(2, "other")
    assert shown.display.get_current_progress()[0].time_left() == "about 7.0 s left"
