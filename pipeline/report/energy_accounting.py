"""Account the run's energy, once, as `report/energy.json`, which all that shows joules reads, and compare the forecast.

Gathered here are the attempts with their fate, the readings of meters on their nodes, external meters that came
afterwards, and the platform's power model. `energy.attribution` alone sums joules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import ValidationError

from pipeline import layout
from pipeline.core.errors import InputError, anonymize_paths
from pipeline.core.job_records import is_training_segment
from pipeline.energy.attribution.job_energy_attribution import RunAttribution, attribute_run
from pipeline.energy.attribution.job_usage_intervals import MeteredJob, read_job_intervals
from pipeline.energy.carbon_intensity import IntensitySeries, read_intensity_series
from pipeline.energy.power_model import GENERIC, PowerModel
from pipeline.energy.readings import ExternalReading
from pipeline.energy.run_energy_report_reader import (
    AccountingEntry,
    EnergyAccounting,
    EnergyFigure,
    sum_energy,
    validate_accounting,
)
from pipeline.report.amount_formatting import format_period
from pipeline.report.run_reader import UNCOUNTED_STAGES, Json, RunReader, valid_attempts
from pipeline.report.settings import PageSettings

SNAKEMAKE: Literal["snakemake"] = "snakemake"


def list_attempt_usage(reader: RunReader, run: str) -> tuple[list[MeteredJob], list[str]]:
    """Return the use of every attempt and of Snakemake's processes, and the problems of the files.

    What the meter of Snakemake wrote in a run of another name is left out, and what it wrote after the last attempt
    that counts: a later report gives the same figures.
    """
    problems: list[str] = []
    readings = read_job_intervals(reader.readings, problems)
    valid = valid_attempts(reader)
    uses = []
    for attempt in reader.attempts:
        name = attempt.name
        job = (attempt.slurm or {}).get("slurm_job_id")
        is_valid = f"{attempt.name}.json" in valid
        uses.append(
            MeteredJob(
                name=name,
                step=attempt.step,
                instance=attempt.instance,
                fate="finished" if is_valid else "lost",
                slurm_job=None if job is None else str(job),
                intervals=readings.pop(name, []),
                snakemake=attempt.snakemake,
                last_seen=None if is_valid else unix_seconds(attempt.last_seen),
            )
        )
    last = max((line.ended for job in uses for line in job.intervals), default=0.0)
    for name, intervals in sorted(readings.items()):
        if name.startswith(f"{SNAKEMAKE}."):
            # Of Slurm, where Snakemake itself runs in one, and the name of the run.
            allocation, of_run = (*name.split(".", 4)[3:], "", run)[:2]
            counted = [line for line in intervals if line.ended <= last]
            if of_run == run and counted:
                uses.append(MeteredJob(name, SNAKEMAKE, {}, SNAKEMAKE, allocation or None, counted))
            elif of_run != run:
                problems.append(f"The readings of {name} are of the run {of_run}, not of this one, and are left out.")
        elif not name.startswith(UNCOUNTED_STAGES):
            problems.append(f"The readings of {name} belong to no attempt and are not in the account.")
    return uses, problems


def empty_accounting(jobs: Sequence[MeteredJob]) -> Json:
    """Return an account in which no meter and no model gave a reading."""
    nothing = EnergyFigure().model_dump(mode="json")
    jobs_by_name = {job.name: {**nothing, "step": job.step, "instance": job.instance, "fate": job.fate} for job in jobs}
    sums = dict.fromkeys(("total", "finished", "lost", "idle", "snakemake"), nothing)
    return {**sums, "steps": {}, "jobs": jobs_by_name, "components": {}, "nodes": {}}


def _node_power_models(
    reader: RunReader, jobs: Sequence[MeteredJob], power: Mapping[str, PowerModel]
) -> dict[str, PowerModel]:
    """Return the power model of each node: that of the partition of an attempt that was on it, else the wide one."""
    partitions = {attempt.name: (attempt.slurm or {}).get("slurm_job_partition") for attempt in reader.attempts}
    models = dict.fromkeys((reading.node for reading in reader.external_readings), GENERIC)
    for job in jobs:
        for node in {interval.node for interval in job.intervals}:
            models[node] = power.get(str(partitions.get(job.name)), models.get(node, GENERIC))
    return models


def unix_seconds(moment: str) -> float:
    """Return the Unix time of a moment of a record."""
    return datetime.fromisoformat(moment).timestamp()


def compute_training_step_joules(reader: RunReader, attribution: RunAttribution) -> dict[str, dict[int, float]]:
    """Return the joules of each training step of each model, on all nodes, by the time in which it was done.

    A step whose line of the metrics does not say when it ended and how long it took, or in whose time the meters of its
    attempts were silent, has none.
    """
    joules_by_model = {}
    for metrics in reader.metrics:
        segments = reader.segments(model=metrics.name)
        attempts = {(record.computing_attempt_file_name or "").removesuffix(".json") for record in segments}
        attempts |= {
            job.name
            for job in attribution.jobs
            if job.fate == "lost" and is_training_segment(metrics.name, job.step, job.instance)
        }
        lines = [line for line in metrics.lines if line.get("ended_unix_seconds") and line.get("seconds")]
        ended, seconds = (np.array([line[key] for line in lines], float) for key in ("ended_unix_seconds", "seconds"))
        joules = attribution.joules_between(attempts, ended - seconds, ended)
        joules_by_model[metrics.name] = {
            int(line["step"]): round(float(amount), 6)
            for line, amount in zip(lines, joules, strict=True)
            if amount == amount
        }
    return joules_by_model


def _compute_accounting(
    jobs: Sequence[MeteredJob],
    external_readings: Sequence[ExternalReading],
    models: Mapping[str, PowerModel],
    reader: RunReader,
    series: IntensitySeries | None,
) -> Json:
    """Return the account as JSON, with the joules of training steps and of stretches of the grid's intensity."""
    attribution = attribute_run(jobs, external_readings, models)
    used = series and series.assign_joules(attribution.joules_per_period(series.moments))
    return {
        **attribution.as_json(),
        "training": compute_training_step_joules(reader, attribution),
        "intensity": used and used.model_dump(),
    }


def _load_intensity(settings: PageSettings, tables: Sequence[Path], problems: list[str]) -> IntensitySeries | None:
    """Return the grid's intensity over time; None where none is configured or it cannot be read, which is a problem."""
    configured = settings.carbon_intensity_series
    if configured is None:
        return None
    try:
        # A table that came after the report was planned is none of its inputs: the next start reads it.
        loaded = [read_intensity_series(configured, path) for path in tables]
    except InputError as error:
        problems.append(f"The grid's carbon intensity over time is not known: {error}")
        return None
    if not loaded:
        problems.append(
            f"The grid's carbon intensity over time is not known: there is no file {configured.path} yet: put it there "
            "and start again, which makes the report alone"
        )
        return None
    problems += loaded[0].problems
    return loaded[0]


def _report_intensity_gaps(account: EnergyAccounting) -> list[str]:
    """Return a sentence where the grid's intensity has gaps in the time of the run."""
    intensity = account.intensity
    gaps = [stretch for stretch in intensity.stretches if stretch.grams_per_kwh is None] if intensity else []
    if not intensity or not gaps:
        return []
    more = f", and {len(gaps) - 1:,} more" if len(gaps) > 1 else ""
    return [
        f"{intensity.name} has a gap while the run used electricity, "
        f"{format_period(gaps[0].started, gaps[0].ended)}{more}: "
        "complete it and start again, which makes the report alone"
    ]


def compute_energy_accounting(reader: RunReader, settings: PageSettings, carbon_intensity: Sequence[Path] = ()) -> Json:
    """Return the account of the run's energy as JSON, with its problems in sentences.

    What is broken loses its own part alone. Where no account can be made, all is unknown and the reason is a problem,
    so that the rest of the report is made.
    """
    jobs, problems = list_attempt_usage(reader, settings.run)
    problems += reader.external_readings.problems
    series = _load_intensity(settings, carbon_intensity, problems)
    try:
        content = _compute_accounting(
            jobs, reader.external_readings, _node_power_models(reader, jobs, settings.power), reader, series
        )
        validated = validate_accounting(content, "What was summed up")
    except (InputError, ValueError, ArithmeticError) as error:
        problems.append(f"No account of the energy could be made: {error}")
        content = empty_accounting(jobs)
        validated = validate_accounting(content, "What was summed up")
    silent = Counter(job.step for job in jobs if not validated.attempt_energy(job.name).is_known)
    if silent:
        steps = ", ".join(f"{step} {count:,}" for step, count in sorted(silent.items()))
        problems.append(f"Attempts without any reading, whose energy is not in the sums: {steps}.")
    return {
        **content,
        "problems": [
            anonymize_paths(problem) for problem in (*validated.problems, *problems, *_report_intensity_gaps(validated))
        ],
    }


FORECAST_METER = "forecast, estimated: calibration runs"


class StepForecast(AccountingEntry):
    """What the plan says of a step or of all: seconds and joules with 95 % intervals, or why there is no forecast."""

    seconds: float | None = None
    low_seconds: float | None = None
    high_seconds: float | None = None
    joules: float | None = None
    low_joules: float | None = None
    high_joules: float | None = None
    refused: str | None = None


class Calibration(AccountingEntry):
    """A finished small run that the forecast was made from."""

    folder: str
    platform: str
    known: str


class ShownForecast(AccountingEntry):
    """The part `forecast` of plan.json."""

    scope: str
    calibration: list[Calibration]
    notes: list[str] = []
    steps: dict[str, StepForecast]
    chain: StepForecast


@dataclass(frozen=True)
class ForecastRow:
    """A step, or all of them: the forecast, and the joules and seconds of its jobs with valid outputs."""

    name: str
    step_forecast: StepForecast
    figure: EnergyFigure
    seconds: float | None

    @property
    def refused(self) -> str | None:
        """Why there is no forecast, if there is none."""
        return (
            None
            if self.predicted_seconds and self.step_forecast.joules is not None
            else self.step_forecast.refused or "no forecast"
        )

    @property
    def predicted_energy(self) -> EnergyFigure:
        """The predicted energy, in joules; estimated."""
        forecast = self.step_forecast
        return EnergyFigure(
            joules=forecast.joules or 0.0,
            low_joules=forecast.low_joules or 0.0,
            high_joules=forecast.high_joules or 0.0,
            estimated_joules=forecast.joules or 0.0,
            meters=(FORECAST_METER,),
        )

    @property
    def predicted_seconds(self) -> tuple[float, float, float] | None:
        """The predicted seconds, with the ends of their interval."""
        forecast = self.step_forecast
        if forecast.seconds is None or forecast.low_seconds is None or forecast.high_seconds is None:
            return None
        return forecast.seconds, forecast.low_seconds, forecast.high_seconds

    @property
    def energy_verdict(self) -> str:
        """Return whether the interval of the energy holds what came out."""
        if self.refused or not self.figure.is_known:
            return "–"
        return _compare_with_interval(
            self.predicted_energy.low_joules, self.figure.joules, self.predicted_energy.high_joules
        )

    @property
    def time_verdict(self) -> str:
        """Return whether the interval of the time holds what came out."""
        if self.refused or self.predicted_seconds is None or self.seconds is None:
            return "–"
        return _compare_with_interval(self.predicted_seconds[1], self.seconds, self.predicted_seconds[2])


@dataclass(frozen=True)
class ForecastComparison:
    scope: str
    calibration: list[Calibration]
    notes: list[str]
    steps: list[ForecastRow]
    chain: ForecastRow | None


def _compare_with_interval(low: float, value: float, high: float) -> str:
    return "✓ inside" if low <= value <= high else "✗ below" if value < low else "✗ above"


def compare_forecast(reader: RunReader, account: EnergyAccounting) -> ForecastComparison | None:
    """Return the forecast with the results; None where the plan has none.

    Raises:
        InputError: the plan's forecast is broken.
    """
    content = reader.plan.content.get("forecast")
    if content is None:
        return None
    try:
        plan = ShownForecast.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, ("forecast", *problem["loc"])))
        raise InputError(f"{layout.PLAN}: the field {field}: {problem['msg']}: delete it, to plan again") from None
    seconds_by_attempt = {attempt.name: attempt.wall_seconds for attempt in reader.attempts}
    rows = [
        _forecast_row(step, step_forecast, account, seconds_by_attempt) for step, step_forecast in plan.steps.items()
    ]
    chain = None
    if plan.chain.refused is None:
        known = all(row.figure.is_known for row in rows)  # a part of the sum is not the sum
        seconds = [row.seconds for row in rows if row.seconds is not None]
        chain = ForecastRow(
            "all of these",
            plan.chain,
            sum_energy(row.figure for row in rows) if known else EnergyFigure(),
            sum(seconds) if len(seconds) == len(rows) else None,
        )
    return ForecastComparison(plan.scope, plan.calibration, plan.notes, rows, chain)


def _forecast_row(
    step: str, step_forecast: StepForecast, account: EnergyAccounting, seconds_by_attempt: dict[str, float]
) -> ForecastRow:
    jobs = {name: job for name, job in account.jobs.items() if job.step == step and job.fate == "finished"}
    seconds = [value for name in jobs if (value := seconds_by_attempt.get(name)) is not None]
    known = all(job.is_known for job in jobs.values())
    return ForecastRow(
        step,
        step_forecast,
        sum_energy(jobs.values()) if known else EnergyFigure(),
        sum(seconds) if jobs and len(seconds) == len(jobs) else None,
    )
