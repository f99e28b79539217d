"""The progress of a run as a file and as text: the process that runs Snakemake writes it, `follow` reads it.

The file is small, is replaced as a whole, and belongs to no job. Times are in Unix seconds.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from pipeline.core import atomic_files
from pipeline.core.display_text import format_duration, pluralize
from pipeline.core.errors import InputError
from pipeline.layout import METRICS_FILE, PROGRESS
from pipeline.pretrain.training_follower import find_latest_segment

SILENT_SECONDS = 120.0  # without a new file, after which the writing process counts as silent
TAIL_BYTES = 1 << 18  # of a training's metrics: its last steps, behind which losses of documents may come
SHOWN_JOBS = 3  # on a line


class JobProgress(BaseModel):
    """A job that was started or submitted; `reason` says why it waits in the queue of Slurm."""

    name: str
    started: float
    reason: str | None = None


class StageProgress(BaseModel):
    stage: str
    done: int
    jobs: int


class FailedJob(BaseModel):
    """A job that failed: the last line of its log, and the log."""

    name: str
    cause: str
    log: str | None


class TrainingProgress(BaseModel):
    """The last step of a training that runs; a value that was not measured is None."""

    model: str
    step: int
    steps: int | None
    loss: float | None
    tokens_per_second: float | None
    seconds_left: float | None

    def text(self) -> str:
        parts = [
            f"{self.model} step {self.step}" + (f" of {self.steps}" if self.steps else ""),
            f"loss {self.loss:.4f}" if self.loss is not None else "",
            f"{self.tokens_per_second:,.0f} tokens/s" if self.tokens_per_second else "",
            f"ends in {format_duration(self.seconds_left)}" if self.seconds_left else "",
        ]
        return ", ".join(filter(None, parts))


class RunProgress(BaseModel):
    """The progress of a run and of the snakemake that works on it.

    Attributes:
        run: the name of the run.
        host: the host of the snakemake.
        process: its process number.
        started: its start.
        updated: when this progress was written.
        ended: its end; None while it runs.
        stages: all stages of the run with their jobs, also those that were done before.
        jobs: the jobs that run or wait in the queue.
        failed: the jobs that failed and did not succeed later.
        seconds_left: the estimated time until the end; None if no step has an estimate.
        unknown_steps: steps without an estimate, which `seconds_left` omits.
        training_steps: the last step of each model's training.
        log: the log of Snakemake.
    """

    run: str
    host: str
    process: int
    started: float
    updated: float
    ended: float | None = None
    stages: list[StageProgress] = []
    jobs: list[JobProgress] = []
    failed: list[FailedJob] = []
    seconds_left: float | None = None
    unknown_steps: list[str] = []
    training_steps: dict[str, int] = {}
    log: str | None = None

    @property
    def done(self) -> int:
        """The finished jobs of the run."""
        return sum(stage.done for stage in self.stages)

    @property
    def total(self) -> int:
        """All jobs of the run that are known so far."""
        return sum(stage.jobs for stage in self.stages)

    @property
    def running(self) -> list[JobProgress]:
        return [job for job in self.jobs if job.reason is None]

    @property
    def waiting(self) -> list[JobProgress]:
        """The jobs that wait in the queue of Slurm."""
        return [job for job in self.jobs if job.reason is not None]

    def write(self, run_directory: Path) -> None:
        """Replace the progress file of a run."""
        atomic_files.write_atomically(PROGRESS.path(run_directory), self.model_dump_json().encode())

    @classmethod
    def load(cls, run_directory: Path) -> RunProgress | None:
        """Return the progress of a run; None if no snakemake has written any.

        Raises:
            InputError: the file is damaged.
        """
        path = PROGRESS.path(run_directory)
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise InputError(f"{path} cannot be read ({error}): delete it; the next snakemake writes it") from None

    def status(self, now: float) -> str:
        """Return in words whether the run continues, has ended, or is silent at a time."""
        if self.ended is None:
            if now - self.updated > SILENT_SECONDS:
                silent = format_duration(now - self.updated)
                return f"silent for {silent}: check on {self.host} whether process {self.process} runs"
            return "running"
        if self.failed:
            return f"stopped: {pluralize(len(self.failed), 'job')} failed"
        return "finished" if self.done == self.total else "stopped"

    def time_left(self) -> str:
        """Return the estimated time until the end in words; nothing if there is no estimate."""
        if self.seconds_left is None or self.seconds_left < 1 or self.ended is not None:
            return ""
        return f"{'at least' if self.unknown_steps else 'about'} {format_duration(self.seconds_left)} left"

    def line(self, trainings: list[TrainingProgress], now: float) -> str:
        """Return the progress at a time in one line, for logs."""
        status = self.status(now)
        shown = [job.name for job in self.running[:SHOWN_JOBS]]
        shown += [f"{len(self.running) - SHOWN_JOBS} more"] if len(self.running) > SHOWN_JOBS else []
        parts = [
            f"{self.run}: {self.done} of {self.total} jobs done",
            "" if status == "running" else status,
            f"{len(self.running)} running ({', '.join(shown)})" if shown else "",
            f"{len(self.waiting)} waiting ({self.waiting[0].reason})" if self.waiting else "",
            self.time_left(),
            *(training.text() for training in trainings),
        ]
        return "; ".join(filter(None, parts))


def read_trainings(run_directory: Path, progress: RunProgress) -> list[TrainingProgress]:
    """Return the progress of the trainings that run, by their metrics."""
    models = {job.name.split()[1] for job in progress.running if job.name.startswith("pretrain.segment ")}
    trainings = (read_training(run_directory, model, progress.training_steps.get(model)) for model in sorted(models))
    return [training for training in trainings if training]


def read_training(run_directory: Path, model: str, steps: int | None) -> TrainingProgress | None:
    """Return the last step of a training by the end of its metrics file; None before its first step."""
    folder = find_latest_segment(run_directory, model)
    lines = _last_lines(folder / METRICS_FILE) if folder else []
    if not lines:
        return None
    last = lines[-1]
    seconds = sorted(line["seconds"] for line in lines if line.get("seconds"))
    left = seconds[len(seconds) // 2] * (steps - last["step"]) if seconds and steps else None
    return TrainingProgress(
        model=model,
        step=last["step"],
        steps=steps,
        loss=last["loss"],
        tokens_per_second=last.get("tokens_per_second"),
        seconds_left=left,
    )


def _last_lines(path: Path) -> list[dict[str, Any]]:
    """Return the last steps in a metrics file that a training may be writing."""
    lines: list[dict[str, Any]] = []
    with suppress(OSError), path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - TAIL_BYTES, 0))
        for text in file.read().split(b"\n"):
            with suppress(ValueError):  # the first and the last line may be truncated
                line = json.loads(text)
                if isinstance(line, dict) and "loss" in line:
                    lines.append(line)
    return lines
