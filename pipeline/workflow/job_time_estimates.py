"""Estimate how long the remaining jobs of a run take, by finished jobs of the same step or by the plan's forecast."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from statistics import fmean

from pipeline.config.configuration import Config
from pipeline.core.archived_run_files import FileStore, StoredFile
from pipeline.core.errors import InputError
from pipeline.core.job_records import Record
from pipeline.layout import PLAN, RECORD
from pipeline.workflow.steps import STEPS

SAMPLES = 5  # records of a step that are read


class JobTimes:
    """The mean duration of a job of each step of a run.

    Jobs of this invocation count first, then records of the run, then the plan's forecast.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._durations: dict[str, list[float]] = {}
        self._recorded: dict[str, float | None] = {}

    def add(self, step: str, seconds: float) -> None:
        """Add the duration of a finished job of this invocation."""
        self._durations.setdefault(step, []).append(seconds)

    def mean_seconds(self, step: str) -> float | None:
        """Return the mean duration of a job of a step; None if nothing is known of it."""
        if durations := self._durations.get(step):
            return fmean(durations)
        if step not in self._recorded:
            self._recorded[step] = self._seconds_from_records(step)
        return self._recorded[step] if self._recorded[step] is not None else self._seconds_from_plan(step)

    def sum_job_seconds(self, jobs: Mapping[str, int]) -> tuple[float, list[str]]:
        """Return the sum of the durations of jobs, by step and number, and the steps without an estimate."""
        means = {step: self.mean_seconds(step) for step, number in jobs.items() if number}
        known = sum(mean * jobs[step] for step, mean in means.items() if mean is not None)
        return known, [step for step, mean in means.items() if mean is None]

    @cached_property
    def _records(self) -> list[StoredFile]:
        return FileStore(self._config.run_directory).find_all(RECORD)

    def _seconds_from_records(self, step: str) -> float | None:
        files = [file for file in self._records if file.name.startswith(f"{step}.")]
        seconds = [*_wall_seconds(files[:SAMPLES])]
        return fmean(seconds) * self._units_per_job(step) if seconds else None

    def _seconds_from_plan(self, step: str) -> float | None:
        try:
            content = json.loads(PLAN.path(self._config.run_directory).read_bytes())
            seconds = ((content.get("forecast") or {}).get("steps") or {})[step]["seconds"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # before the plan, or without calibration
            return None
        return float(seconds) / max(len(STEPS[step].instances.jobs(self._config)), 1)

    def _units_per_job(self, step: str) -> float:
        """Return the mean number of units of a batch; 1 for other jobs."""
        instances = STEPS[step].instances
        if instances.units is None:
            return 1.0
        return len(instances.units(self._config)) / max(len(instances.jobs(self._config)), 1)


def _wall_seconds(files: Iterable[StoredFile]) -> Iterable[float]:
    for file in files:
        try:
            yield Record.load(file).wall_seconds
        except InputError:
            continue
