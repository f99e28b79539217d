"""Turn the events of Snakemake's log into the progress of a run, and show it while Snakemake works.

A terminal has a live view; other streams get a line at the end of each stage and every `LINE_SECONDS`.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from logging import LogRecord
from pathlib import Path
from typing import Any, TextIO

from snakemake_interface_logger_plugins.common import LogEvent

from pipeline.config.configuration import Config
from pipeline.core.display_text import format_duration, pluralize
from pipeline.workflow.job_time_estimates import JobTimes
from pipeline.workflow.run_progress_file import (
    FailedJob,
    JobProgress,
    RunProgress,
    StageProgress,
    TrainingProgress,
    read_trainings,
)
from pipeline.workflow.steps import STAGES, STAGES_BEHIND, STEPS

LINE_SECONDS = 30.0  # between two lines in a log
TICK_SECONDS = 5.0  # between two progress files
ADVICE = "For further error details"  # with which Snakemake ends the message of a job on Slurm
STOPPED = "stopped: "  # with which the log of a job ends that was asked to stop
TAIL_LINES, TAIL_BYTES = 20, 1 << 14  # of the log of a failed job
STEP_OF = {step.rule_name: step for step in STEPS.values()}
STAGE_OF = {rule: step.stage for rule, step in STEP_OF.items()} | {"sources_complete": "sources"}


def job_name(rule: str, wildcards: Mapping[str, str]) -> str:
    """Return the name of a job, such as `corpus.filter main laws 0`."""
    return " ".join([STEP_OF[rule].name if rule in STEP_OF else rule, *wildcards.values()])


def failure_cause(log: Path) -> list[str]:
    """Return the last lines of a failed job's log: alone the sentence of an error or a stop, if the step wrote one."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - TAIL_BYTES, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1:] if lines and lines[-1].startswith(("error: ", STOPPED)) else lines[-TAIL_LINES:]


class ProgressDisplay:
    """Collects Snakemake's events into the progress of a run, and prints it.

    Args:
        config: the configuration of the run.
        count_jobs: returns the number of jobs of each rule to run, and of the others, without those of these ids; None
            before there is a plan.
        stream: where lines are printed.
        log: the log of Snakemake.
        clock: returns the time in Unix seconds.
        view: shows the progress on a terminal; None prints lines.
    """

    def __init__(
        self,
        config: Config,
        count_jobs: Callable[[Collection[int]], tuple[Counter[str], Counter[str]] | None],
        stream: TextIO,
        log: str | None = None,
        clock: Callable[[], float] = time.time,
        view: Any = None,
    ) -> None:
        self.config, self.view = config, view
        self._count_jobs, self._stream, self._clock = count_jobs, stream, clock
        self._times = JobTimes(config)
        self._lock = threading.RLock()
        self._described: dict[int, tuple[str, str]] = {}  # rule and name of each job that was announced
        self._running: dict[int, JobProgress] = {}
        self._running_of = Counter[str]()  # by rule
        self._failed: dict[int, FailedJob] = {}
        self._planned, self._before = Counter[str](), Counter[str]()
        self._finished, self._finished_when_counted = Counter[str](), Counter[str]()
        self._finished_jobs: set[int] = set()
        self._finished_checkpoints: set[str] = set()  # since the plan was counted
        self._is_plan_old = False  # Snakemake reports the progress after a checkpoint before it plans again
        self._busy_seconds = 0.0  # of finished jobs
        self._total: int | None = None
        self._line_time = 0.0
        self._progress = RunProgress(
            run=config.run.name,
            host=platform.node(),
            process=os.getpid(),
            started=clock(),
            updated=clock(),
            training_steps={name: model.training.steps for name, model in config.models.items()},
            log=log,
        )

    # Events of Snakemake

    def handle(self, record: LogRecord) -> None:
        event, values = getattr(record, "event", None), record.__dict__
        with self._lock:
            if event == LogEvent.JOB_INFO:
                self._start(values["jobid"], values["rule_name"], values["wildcards"] or {})
            elif event == LogEvent.JOB_FINISHED:
                self._finish(values["job_id"])
            elif event == LogEvent.PROGRESS:
                self._update_counts(values["total"])
            elif event == LogEvent.JOB_ERROR:
                self._fail(values)

    def update_queue(self, reasons: Mapping[int, str]) -> None:
        """Take the jobs that wait in the queue of Slurm, with the reasons; others that were submitted run."""
        with self._lock:
            for number, job in self._running.items():
                if job.reason is not None and number not in reasons:
                    job.started = self._clock()
                job.reason = reasons.get(number)

    def _start(self, number: int, rule: str, wildcards: Mapping[str, str]) -> None:
        if self._total is None:
            self._update_counts(0)
        self._described[number] = rule, job_name(rule, wildcards)
        if number in self._finished_jobs:  # it runs again
            self._finished_jobs.remove(number)
            self._finished[rule] -= 1
        if rule in STAGE_OF:
            self._running_of[rule] += number not in self._running
            self._running[number] = JobProgress(name=job_name(rule, wildcards), started=self._clock())
            # A job that needed no run does now, because its input changed, or Snakemake has planned again.
            if (
                self._finished_checkpoints
                or self._running_of[rule] > self._planned[rule] - self._finished_since_count()[rule]
            ):
                self._count()

    def _finish(self, number: int) -> None:
        rule, _ = self._described.get(number, ("", ""))
        self._failed.pop(number, None)
        if (job := self._running.pop(number, None)) is None:
            return
        self._running_of[rule] -= 1
        seconds = self._clock() - job.started
        self._finished[rule] += 1
        self._finished_jobs.add(number)
        if rule in STAGES_BEHIND:
            self._finished_checkpoints.add(rule)
            self._is_plan_old = True
        self._busy_seconds += seconds
        if rule in STEP_OF:
            self._times.add(STEP_OF[rule].name, seconds)
        stage = STAGE_OF[rule]
        if self.view is None and self._stage_counts()[stage] == self._done_counts()[stage]:
            self._print_line(f"stage {stage} is complete; ")

    def _fail(self, values: dict[str, Any]) -> None:
        number = values["jobid"]
        rule, name = self._described.get(number, ("", values["rule_name"]))
        self._running_of[rule] -= self._running.pop(number, None) is not None
        logs = [*map(str, values["log"])]
        causes = [(log, lines) for log in logs if (lines := failure_cause(Path(log)))]
        log, lines = causes[0] if causes else (logs[0] if logs else None, [])
        message = " ".join(str(values["rule_msg"] or "").partition(ADVICE)[0].split())
        self._failed[number] = FailedJob(name=name, cause=lines[-1] if lines else message, log=log)
        word = "STOPPED" if lines and lines[-1].startswith(STOPPED) else "FAILED"
        shown = [f"{word} {name}: {message}".rstrip(": "), *(f"    {line}" for line in lines)]
        self.print("\n".join([*shown, *([f"    log: {log}"] if log else [])]), error=True)

    # Counts and estimates

    def _update_counts(self, total: int) -> None:
        """Count the jobs again when the plan has changed, as it does after a checkpoint."""
        if self._is_plan_old:
            self._is_plan_old = False
        elif total != self._total or self._finished_checkpoints:
            self._total = total
            self._count()

    def _count(self) -> None:
        """Count the jobs to run and the others; those that finished in this invocation are neither."""
        self._finished_checkpoints.clear()
        if counts := self._count_jobs(self._finished_jobs):
            planned, before = counts
            self._finished_when_counted = self._finished.copy()
            self._planned = Counter({rule: number for rule, number in planned.items() if rule in STAGE_OF})
            self._before = Counter({rule: number for rule, number in before.items() if rule in STAGE_OF})

    def _finished_since_count(self) -> Counter[str]:
        return self._finished - self._finished_when_counted

    def _stage_counts(self) -> Counter[str]:
        counts = Counter[str]()
        for rule, number in (self._planned + self._before + self._finished_when_counted).items():
            counts[STAGE_OF[rule]] += number
        return counts

    def _done_counts(self) -> Counter[str]:
        counts = Counter[str]()
        undecided = self._undecided_stages()
        decided = Counter({rule: count for rule, count in self._before.items() if STAGE_OF[rule] not in undecided})
        for rule, number in (self._finished + decided).items():
            counts[STAGE_OF[rule]] += number
        return counts

    def _undecided_stages(self) -> set[str]:
        """Return the stages whose valid results may be replaced.

        They are behind a checkpoint that has yet to run, or after which Snakemake has not reported its new plan.
        """
        left = self._planned - self._finished_since_count()
        return {stage for rule in {*left, *self._finished_checkpoints} for stage in STAGES_BEHIND.get(rule, ())}

    def get_current_progress(self) -> tuple[RunProgress, list[TrainingProgress]]:
        """Return the progress of the run now, and that of its trainings."""
        with self._lock:
            now, jobs = self._clock(), [*self._running.values()]
            total, done = self._stage_counts(), self._done_counts()
            stages = [StageProgress(stage=name, done=done[name], jobs=total[name]) for name in STAGES if total[name]]
            changes = {"updated": now, "stages": stages, "jobs": jobs, "failed": [*self._failed.values()]}
            progress = self._progress.model_copy(update=changes)
            trainings = read_trainings(self.config.run_directory, progress)
            progress.seconds_left, progress.unknown_steps = self._estimate(progress, trainings, now)
            return progress, trainings

    def _estimate(
        self, progress: RunProgress, trainings: list[TrainingProgress], now: float
    ) -> tuple[float | None, list[str]]:
        """Return the seconds until the end, None where most jobs have no estimate, and the steps without one.

        The remaining job seconds are divided by the mean number of parallel jobs so far. A training takes at least the
        time of its remaining steps.
        """
        left = self._planned - self._finished_since_count()
        remaining = {STEP_OF[rule].name: number for rule, number in left.items() if rule in STEP_OF}
        seconds, unknown = self._times.sum_job_seconds(remaining)
        if 2 * sum(remaining[step] for step in unknown) > sum(remaining.values()):
            return None, unknown  # the time of the minority says little
        elapsed = [now - job.started for job in progress.running]
        for job, spent in zip(progress.running, elapsed, strict=True):
            mean = self._times.mean_seconds(job.name.split()[0]) if job.name.split()[0] in STEPS else None
            seconds -= min(spent, mean or 0.0)
        busy, wall = self._busy_seconds + sum(elapsed), max(now - progress.started, 1.0)
        trained = [training.seconds_left for training in trainings if training.seconds_left is not None]
        return max([seconds / max(busy / wall, 1.0), *trained]), unknown

    # Output

    def tick(self) -> None:
        """Write the progress file, and print a line if one is due."""
        progress, trainings = self.get_current_progress()
        with suppress(OSError):  # a full disk ends no run
            progress.write(self.config.run_directory)
        if self.view is not None:
            self.view.update(progress, [training.text() for training in trainings])
        elif progress.updated - self._line_time >= LINE_SECONDS:
            self._print_line()

    def _print_line(self, prefix: str = "") -> None:
        progress, trainings = self.get_current_progress()
        self._line_time = progress.updated
        moment = time.strftime("%H:%M:%S", time.localtime(progress.updated))
        self.print(f"{moment} {prefix}{progress.line(trainings, progress.updated)}")

    def print(self, text: str, *, error: bool = False) -> None:
        """Print text, on a terminal above the live view."""
        if self.view is not None:
            self.view.print(text, error=error)
        else:
            print(text, file=self._stream, flush=True)

    def end(self) -> None:
        """Write the last progress file and print the result."""
        if not self._planned and not self._failed:
            return
        if self._finished_checkpoints:
            self._count()
        progress, _ = self.get_current_progress()
        progress = progress.model_copy(update={"ended": progress.updated, "jobs": [], "seconds_left": None})
        with suppress(OSError):
            progress.write(self.config.run_directory)
        if self.view is not None:
            self.view.update(progress, [])
            self.view.stop()
            self.view = None
        took = format_duration(progress.updated - progress.started)
        done = f"{progress.done} of {pluralize(progress.total, 'job')} done, {self._finished.total()} of them in {took}"
        status = progress.status(progress.updated)
        self.print(f"{progress.run}: {done}" + ("" if status == "finished" else f"; {status}"))
        if progress.failed and progress.log:
            self.print(f"log of Snakemake: {progress.log}")
