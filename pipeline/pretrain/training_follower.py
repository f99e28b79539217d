"""Follows the trainings of a run in one place each, across segments and restarts: `polder follow`.

The run's files are read, and Slurm is asked which of its jobs wait. What is written is no result and belongs to no job:
`scratch/live-MODEL`, for TensorBoard.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from pipeline import layout
from pipeline.core.display_text import format_duration
from pipeline.core.errors import InputError
from pipeline.core.job_command_lines import command_option
from pipeline.core.job_records import SEGMENT_STEP, Attempt, Record
from pipeline.energy.readings import format_current_power
from pipeline.pretrain.monitors.metrics import EVENTS, SLOW_RATIO, TensorBoardWriter, read_metrics

RECENT = 50  # steps whose pace is that of those to come
QUIET_STEPS, QUIET_SECONDS = 10, 120.0  # a step that takes longer than both is reported: a validation takes long, too
NUMBER = "[0-9]*"
Lines = list[dict[str, Any]]


def list_models(run_directory: Path) -> list[str]:
    """Return the models of a run whose training has begun; an InputError says where there is no run."""
    if not layout.PROVENANCE.path(run_directory).is_dir():
        raise InputError(f"{run_directory} is not a run that was started: name a folder such as results/NAME")
    begun = [*layout.SEGMENT_STARTS.glob(run_directory), *layout.MILESTONE.glob(run_directory)]
    return sorted({path.relative_to(run_directory).parts[1] for path in begun})


def read_metrics_and_scores(run_directory: Path, model: str) -> Lines:
    """Return the metrics of a training so far and the scores of its checkpoints, in the order of their steps."""
    milestones = _find_milestones(run_directory, model)
    lines = [line for step in sorted(milestones) for line in read_metrics(milestones[step] / layout.METRICS_FILE)]
    if newest := find_latest_segment(run_directory, model):
        last = max(milestones, default=0)
        lines += [line for line in read_metrics(newest / layout.METRICS_FILE) if int(line["step"]) > last]
    for path in layout.RESULTS.glob(run_directory, model=model, step=NUMBER):
        lines += _read_scores(path)
    return sorted(lines, key=lambda line: int(line["step"]))


def _find_milestones(run_directory: Path, model: str) -> dict[int, Path]:
    return {int(path.name): path for path in layout.MILESTONE.glob(run_directory, model=model, step=NUMBER)}


def find_latest_segment(run_directory: Path, model: str) -> Path | None:
    """Return the scratch of the segment behind the last milestone that was started last; None where there is none."""
    last = max(_find_milestones(run_directory, model), default=0)
    starts = {
        path.parent: path.stat().st_mtime_ns
        for path in layout.SEGMENT_STARTS.glob(run_directory, model=model, step=NUMBER)
        if int(path.parts[-3]) > last
    }
    return max(starts, key=starts.__getitem__) if starts else None


def _read_scores(path: Path) -> Lines:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        scores = {f"{task['suite']}/{task['task']}/{task['metric']}": task["value"] for task in content["tasks"]}
        return [{"step": int(content["step"]), **scores}]
    except (OSError, ValueError, KeyError, TypeError):  # just being written, or removed by a rule that runs again
        return []


class LiveTensorBoard:
    """One model's place for TensorBoard. Steps that are done again, and scores that come late, replace what was."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        before = sorted(folder.glob(f"{EVENTS}*"))
        number = int(before[-1].suffix[1:]) + 1 if before else 0
        for path in before:
            path.unlink()
        # Another name: a TensorBoard that has read the file before does not take this one for it.
        self._writer = TensorBoardWriter(folder, f"{EVENTS}.{number:06}")
        self._writer.restart_at(0)
        self._written: Lines = []

    def write_new_lines(self, lines: Lines) -> bool:
        """Write what is new; return whether anything is."""
        if lines == self._written:
            return False
        pairs = enumerate(zip(self._written, lines, strict=False))
        same = next((n for n, (one, other) in pairs if one != other), min(len(self._written), len(lines)))
        if same < len(self._written):
            step = min(int(line["step"]) for line in (self._written[same], *lines[same : same + 1]))
            self._writer.restart_at(step)
            same = next((n for n, line in enumerate(lines) if int(line["step"]) >= step), len(lines))
        self._writer.add(lines[same:])
        self._written = lines
        return True


def read_planned_steps(run_directory: Path, model: str) -> int | None:
    """Return the last step of a training, by the settings of the attempt that began last; None if none has it."""
    begun = []
    for path in layout.ATTEMPT.glob(run_directory, attempt=f"{SEGMENT_STEP}.{model}.*"):
        with suppress(InputError, ValueError, KeyError, TypeError):
            attempt = Attempt.load(path)
            if attempt.status == "finished":
                record = layout.SEGMENT_RECORD.path(run_directory, **attempt.instance)
                settings = Record.load(record).settings
            else:
                settings = json.loads(command_option(attempt.command, "--settings") or "")
            begun.append((attempt.started, int(settings["training"]["steps"])))
    return max(begun)[1] if begun else None


def format_training_progress(
    model: str, lines: Lines, last: int | None = None, starts: int = 1, now: float | None = None, power: str = ""
) -> str:
    """Return in one line how far a training is, how fast, how full, and whether it goes on at `now` (Unix seconds)."""
    steps = [line for line in lines if "loss" in line]
    if not steps:
        return f"{model}: no step is done yet"
    line, recent = steps[-1], [one["seconds"] for one in steps[-RECENT:] if one.get("seconds")]
    pace = median(recent) if recent else None
    validation = [one["validation_loss"] for one in lines if one.get("validation_loss") is not None]
    memory = line.get("memory_used_bytes") or line.get("memory_bytes")
    parts = [
        f"{model}: step {line['step']}{f' of {last}' if last else ''}",
        f"loss {line['loss']:.4f}",
        f"validation {validation[-1]:.4f}" if validation else "",
        f"{speed:,.0f} tokens/s" if (speed := line.get("tokens_per_second")) else "",
        f"MFU {utilization:.1%}" if (utilization := line.get("model_flops_utilization")) else "",
        f"{memory / 2**30:.1f} GiB" if memory else "",
        power,
        f"{format_duration(pace * (last - line['step']))} of steps left" if pace and last else "",
        f"started {starts} times" if starts > 1 else "",
    ]
    probed = next((one for one in reversed(steps) if "slowest_process_ratio" in one), {})
    if probed.get("slowest_process_ratio", 0.0) >= SLOW_RATIO:
        parts.append(f"process {probed['slowest_process']} takes {probed['slowest_process_ratio']:.2f} × the median")
    ended = line.get("ended_unix_seconds")
    if now and ended and pace and line["step"] != last and now - ended > max(QUIET_STEPS * pace, QUIET_SECONDS):
        parts.append(f"no step for {(now - ended) / 60:.0f} minutes")
    return "  ".join(filter(None, parts))


def _describe_training(run_directory: Path, model: str, lines: Lines) -> str:
    folder = find_latest_segment(run_directory, model)
    starts = len([*folder.glob("starts/*/arguments.json")]) if folder else 1
    meters = (run_directory / layout.READINGS).glob(f"{SEGMENT_STEP}.{model}.*.jsonl")
    now = time.time()
    return format_training_progress(
        model, lines, read_planned_steps(run_directory, model), starts, now, format_current_power(meters, now)
    )


class TrainingFollower:
    """Describes the trainings of a run, and keeps their files for TensorBoard up to date."""

    def __init__(self, run_directory: Path, announce: Callable[[str], None] = print) -> None:
        self._run_directory, self._announce = run_directory, announce
        self._boards: dict[str, LiveTensorBoard] = {}
        self._sentences: dict[str, str] = {}

    def describe(self) -> list[str]:
        """Return a line about each training of the run.

        Raises:
            InputError: there is no such run, or its scratch folder cannot be written.
        """
        for model in list_models(self._run_directory):
            folder = layout.SCRATCH.path(self._run_directory) / f"live-{model}"
            if model not in self._boards:
                try:
                    self._boards[model] = LiveTensorBoard(folder)
                except PermissionError:
                    raise InputError(f"{folder} cannot be written: follow a run as the user who trains") from None
                self._announce(f"tensorboard --logdir {folder}")
            with suppress(FileNotFoundError):  # a rule that runs again removes what is read
                lines = read_metrics_and_scores(self._run_directory, model)
                self._boards[model].write_new_lines(lines)
                self._sentences[model] = _describe_training(self._run_directory, model, lines)
        return [*self._sentences.values()]
