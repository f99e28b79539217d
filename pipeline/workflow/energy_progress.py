"""What a run has used so far and what is still to come: `polder energy results/RUN`, also while it runs.

Finished jobs of a step predict its remaining ones, in proportion to their size where it is known (bytes of a unit,
floating-point operations of a segment). A step without finished jobs has the forecast of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.configuration import Config, parse_configuration
from pipeline.core.archived_run_files import FileStore
from pipeline.core.display_text import align_columns
from pipeline.core.errors import InputError
from pipeline.energy.energy_forecast import (
    CostRange,
    ForecastJob,
    add_independent_error,
    forecast_remaining_jobs,
    relative_interval,
)
from pipeline.energy.run_energy_report_reader import (
    EnergyAccounting,
    EnergyFigure,
    choose_energy_unit,
    sum_energy,
    validate_accounting,
)
from pipeline.forecast.workload import WORKLOADS
from pipeline.job.invocation_snapshots import read_newest_snapshot
from pipeline.layout import PLAN, RECORD
from pipeline.plan.plan_tables import format_quantity
from pipeline.report.energy_accounting import compute_energy_accounting
from pipeline.report.run_reader import RunReader
from pipeline.report.settings import PageSettings
from pipeline.workflow.steps import STEPS, step_settings

NOT_KNOWN = "not known"


@dataclass(frozen=True)
class StepProgress:
    """A step: its jobs, the finished ones, their energy, and the joules and seconds of the others, if known."""

    name: str
    jobs: int
    done: int
    so_far: EnergyFigure
    joules: CostRange | None
    seconds: CostRange | None
    basis: str

    def as_json(self) -> dict[str, Any]:
        """Return the step with its energy in joules, and the estimate of its remaining jobs, None if it is unknown."""
        return {
            "step": self.name,
            "jobs": self.jobs,
            "done": self.done,
            "so_far": self.so_far.model_dump(mode="json"),
            "remaining_joules": self.joules and self.joules._asdict(),
            "remaining_seconds": self.seconds and self.seconds._asdict(),
            "estimated_by": self.basis,
        }


def load_started_configuration(run_directory: Path, data: str | None) -> Config:
    """Return the configuration of the last invocation of a run.

    Raises:
        InputError: the run was never started.
    """
    content = read_newest_snapshot(run_directory)
    if content is None or not isinstance(content.get("configuration"), dict):
        raise InputError(f"{run_directory} is not a run that was started: name a folder such as results/NAME")
    return parse_configuration({**content["configuration"], **({"data": data} if data else {})})


def read_unfinished_run(run_directory: Path) -> RunReader:
    """Return the records and attempts of a run that may still be running.

    Raises:
        InputError: a record or an attempt is damaged.
    """
    plan = PLAN.path(run_directory)
    reader = RunReader(run_directory, [*FileStore(run_directory).find_all(RECORD), *[plan] * plan.is_file()])
    if reader.unreadable:
        raise InputError(reader.unreadable[0].reason)
    return reader


def job_sizes(config: Config, step: str) -> dict[str, float]:
    """Return the size of each job of a step, or unit of a batch, by the name of its record; 1 if it is unknown."""
    per = STEPS[step].instances
    instances = (per.units or per.jobs)(config)
    return {".".join((step, *instance)): _job_size(config, step, instance) for instance in instances}


def _job_size(config: Config, step: str, instance: tuple[str, ...]) -> float:
    if STEPS[step].instances.units is not None:
        source, unit = instance[-2:]
        listed = config.source_units(source)
        whole = listed.part_folders[unit] is None
        size = sum(listed.sizes[name] if whole else listed.source.unit_bytes for name in listed.units[unit])
        return float(max(size, 1))
    of_job = WORKLOADS[step].of_job
    return of_job(config, *instance) if of_job else 1.0


def measure_steps(config: Config, material: RunReader, account: EnergyAccounting) -> list[StepProgress]:
    """Return each step that has jobs, in the order of the steps."""
    records = {record.name: record for record in material.records}
    took = {one.name: one.wall_seconds for one in material.attempts}
    forecasts = (material.plan.content.get("forecast") or {}).get("steps", {})
    steps = []
    for step in WORKLOADS:
        expected = job_sizes(config, step)
        if not expected:
            continue
        done, figures = [], []
        for name in expected.keys() & records.keys():
            attempt = (records[name].computing_attempt_file_name or "").removesuffix(".json")
            figure, seconds = account.attempt_energy(attempt), took.get(attempt)
            if figure.is_known and figure.joules > 0 and seconds:
                done.append(ForecastJob(expected[name], float(seconds), figure.joules))
                figures.append(figure)
        to_do = [work for name, work in expected.items() if name not in records]
        joules, seconds_range, basis = _forecast_step(done, figures, to_do, forecasts.get(step, {}))
        so_far = account.job_energy(step)
        steps.append(
            StepProgress(step, len(expected), len(expected) - len(to_do), so_far, joules, seconds_range, basis)
        )
    return steps


def _forecast_step(
    done: list[ForecastJob], figures: list[EnergyFigure], to_do: list[float], forecast: dict[str, float]
) -> tuple[CostRange | None, CostRange | None, str]:
    if not to_do:
        return CostRange(0.0, 0.0, 0.0), CostRange(0.0, 0.0, 0.0), "done"
    if done:
        remaining, known = forecast_remaining_jobs(done, to_do), sum_energy(figures)
        ends = relative_interval(known.joules, known.low_joules, known.high_joules)
        joules = add_independent_error(CostRange(remaining.joules, remaining.low, remaining.high), ends)
        return (
            joules,
            CostRange(remaining.seconds, remaining.seconds_low, remaining.seconds_high),
            f"{len(done)} of its jobs",
        )
    if "joules" in forecast:
        joules, whole = (
            CostRange(forecast[key], forecast[f"low_{key}"], forecast[f"high_{key}"]) for key in ("joules", "seconds")
        )
        return joules, whole, "the plan's forecast"
    return None, None, "nothing, as none of its jobs is done and the plan has no forecast"


def format_progress_table(steps: list[StepProgress], account: EnergyAccounting) -> list[str]:
    """Return the table as lines; everything that remains is estimated, and only sums have intervals."""
    labels = {step.so_far.label for step in steps if step.so_far.is_known}
    shared = labels.pop() if len(labels) == 1 else ""
    rows = [["step", "jobs done", f"so far ({shared})" if shared else "so far", "remaining", "time of jobs"]]
    bases: dict[str, list[str]] = {}
    for step in steps:
        energy = step.so_far.value if shared or not step.so_far.is_known else f"{step.so_far.value} {step.so_far.label}"
        remaining, time = (_format_range(key, getattr(step, key))[0] for key in ("joules", "seconds"))
        rows.append([step.name, f"{step.done} of {step.jobs}", energy, remaining, time])
        if step.done < step.jobs:
            bases.setdefault(step.basis, []).append(step.name)
    table = [*align_columns(rows), ""]
    table += [f"remaining, estimated by {basis}: {', '.join(names)}" for basis, names in bases.items()]
    between = f"Snakemake {account.snakemake.value}, idle nodes {account.idle.value}"
    table.append(f"so far, all readings: {account.total.text()}; between jobs {between}")
    unknown = [step.name for step in steps if step.joules is None]
    if unknown:
        table.append(f"remaining: {NOT_KNOWN}, because there is no estimate of {', '.join(unknown)}")
    elif all(step.done == step.jobs for step in steps):
        table.append("remaining: nothing, every job is done")
    else:
        joules, seconds = (
            CostRange(*map(sum, zip(*(getattr(step, key) for step in steps), strict=True)))
            for key in ("joules", "seconds")
        )
        energy, time = (
            " (".join(_format_range(key, total)) for key, total in (("joules", joules), ("seconds", seconds))
        )
        table.append(f"remaining, estimated: {energy}; ends of the steps' intervals added), time of jobs {time})")
    return [*table, *account.problems]


def _format_range(key: str, quantity: CostRange | None) -> tuple[str, str]:
    if quantity is None:
        return NOT_KNOWN, ""
    if not quantity.value:
        return "–", ""
    if key == "joules":
        unit = choose_energy_unit(quantity.value)
        return (
            f"{unit.format(quantity.value)} {unit.name}",
            f"{unit.format(quantity.low)} to {unit.format(quantity.high)} {unit.name}",
        )
    return format_quantity(
        key, quantity.value
    ), f"{format_quantity(key, quantity.low)} to {format_quantity(key, quantity.high)}"


def read_energy_progress(run_directory: Path, data: str | None) -> tuple[list[StepProgress], EnergyAccounting]:
    """Return what each step of a run has used and will use, and the accounting of what was used.

    Args:
        data: the folder that {data} stands for in the configuration.

    Raises:
        InputError: the run was never started, or a record or an attempt is damaged.
    """
    config = load_started_configuration(run_directory, data)
    settings = step_settings(config, "report.page", {})
    assert isinstance(settings, PageSettings)
    material = read_unfinished_run(run_directory)
    joules_alone = settings.model_copy(update={"carbon_intensity_series": None})
    account = validate_accounting(compute_energy_accounting(material, joules_alone), "what was summed up")
    return measure_steps(config, material, account), account
