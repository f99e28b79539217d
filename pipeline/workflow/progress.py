"""What a run has used so far and what is still to come: `polder energy results/RUN`, also while it runs.

What is to come of a step is told by its jobs that are done, each by its work where that is known (bytes of a unit,
floating-point operations of a segment), else one like the other; of a step without such jobs by the plan's forecast.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.config.configuration import Config, load
from pipeline.core.errors import InputError
from pipeline.core.formatting import aligned
from pipeline.energy.energy_accounting import EnergyAccounting, Figure, energy_unit, sum_figures, validate_accounting
from pipeline.energy.energy_forecast import ForecastJob, Range, accounting_interval, forecast_remaining, widen_interval
from pipeline.forecast.work import WORK
from pipeline.job.frozen import newest
from pipeline.layout import PLAN, RECORD
from pipeline.plan.plan_tables import format_quantity
from pipeline.report.energy_section import account_run_energy
from pipeline.report.run_reader import RunReader
from pipeline.report.settings import PageSettings
from pipeline.workflow.steps import STEPS, step_settings

NOT_KNOWN = "not known"


@dataclass(frozen=True)
class StepProgress:
    """A step: its jobs, those that are done, what they used, and the joules and seconds of the others, if known."""

    name: str
    jobs: int
    done: int
    so_far: Figure
    joules: Range | None
    seconds: Range | None
    told_by: str


def configuration(run_directory: Path, data: str | None) -> Config:
    """Return the configuration that a run was last started with.

    Raises:
        InputError: the run was never started.
    """
    content = newest(run_directory)
    if content is None or not isinstance(content.get("configuration"), dict):
        raise InputError(f"{run_directory} is no run that was started: name a folder such as results/NAME")
    return load({**content["configuration"], **({"data": data} if data else {})})


def read_unfinished(run_directory: Path) -> RunReader:
    """Return what the account needs of a run that may still be running.

    Raises:
        InputError: a record or an attempt is damaged.
    """
    plan = PLAN.path(run_directory)
    reader = RunReader(run_directory, [*RECORD.glob(run_directory), *[plan] * plan.is_file()])
    if reader.unreadable:
        raise InputError(reader.unreadable[0].reason)
    return reader


def jobs_of(config: Config, step: str) -> dict[str, float]:
    """Return the work of each job of a step, or unit of a batch, by the name of its record; 1 where it is not known."""
    per = STEPS[step].per
    instances = (per.units or per.jobs)(config)
    return {".".join((step, *instance)): _work(config, step, instance) for instance in instances}


def _work(config: Config, step: str, instance: tuple[str, ...]) -> float:
    if STEPS[step].per.units is not None:
        source, unit = instance[-2:]
        listed = config.source_units(source)
        whole = listed.part_folders[unit] is None
        size = sum(listed.sizes[name] if whole else listed.source.unit_bytes for name in listed.units[unit])
        return float(max(size, 1))
    of_job = WORK[step].of_job
    return of_job(config, *instance) if of_job else 1.0


def progress(config: Config, material: RunReader, account: EnergyAccounting) -> list[StepProgress]:
    """Return each step that has jobs, in the order of the steps."""
    records = {record.name: record for record in material.records}
    took = {one.name: one.wall_seconds for one in material.attempts}
    foreseen = (material.plan.content.get("forecast") or {}).get("steps", {})
    found = []
    for step in WORK:
        expected = jobs_of(config, step)
        if not expected:
            continue
        done, figures = [], []
        for name in expected.keys() & records.keys():
            attempt = (records[name].computed_by or "").removesuffix(".json")
            figure, seconds = account.of_attempt(attempt), took.get(attempt)
            if figure.is_known and figure.joules > 0 and seconds:
                done.append(ForecastJob(expected[name], float(seconds), figure.joules))
                figures.append(figure)
        to_do = [work for name, work in expected.items() if name not in records]
        joules, seconds_range, told_by = _to_come(done, figures, to_do, foreseen.get(step, {}))
        so_far = account.of_jobs(step)
        found.append(
            StepProgress(step, len(expected), len(expected) - len(to_do), so_far, joules, seconds_range, told_by)
        )
    return found


def _to_come(
    done: list[ForecastJob], figures: list[Figure], to_do: list[float], foreseen: dict[str, float]
) -> tuple[Range | None, Range | None, str]:
    if not to_do:
        return Range(0.0, 0.0, 0.0), Range(0.0, 0.0, 0.0), "done"
    if done:
        told, known = forecast_remaining(done, to_do), sum_figures(figures)
        ends = accounting_interval(known.joules, known.low_joules, known.high_joules)
        joules = widen_interval(Range(told.joules, told.low, told.high), ends)
        return joules, Range(told.seconds, told.seconds_low, told.seconds_high), f"{len(done)} of its jobs"
    if "joules" in foreseen:
        joules, whole = (
            Range(foreseen[key], foreseen[f"low_{key}"], foreseen[f"high_{key}"]) for key in ("joules", "seconds")
        )
        return joules, whole, "the plan's forecast"
    return None, None, "nothing yet: no job of it is done, and the plan has no forecast of it"


def lines(steps: list[StepProgress], account: EnergyAccounting) -> list[str]:
    """Return the table for a person; everything that is to come is estimated."""
    rows = [["step", "jobs done", "so far", "to come", "95 % interval", "time of jobs", "95 % interval", "told by"]]
    for step in steps:
        told = [*_cells("joules", step.joules), *_cells("seconds", step.seconds)]
        rows.append([step.name, f"{step.done} of {step.jobs}", step.so_far.text(), *told, step.told_by])
    unknown = [step.name for step in steps if step.joules is None]
    table = aligned(rows)
    table += ["", f"so far, of everything that was read: {account.total.text()}"]
    if unknown:
        table.append(f"to come: {NOT_KNOWN}, because nothing tells {', '.join(unknown)}")
    elif all(step.done == step.jobs for step in steps):
        table.append("to come: nothing, every job is done")
    else:
        joules, seconds = (
            Range(*map(sum, zip(*(getattr(step, key) for step in steps), strict=True))) for key in ("joules", "seconds")
        )
        energy, time = (" (".join(_cells(key, told)) for key, told in (("joules", joules), ("seconds", seconds)))
        table.append(f"to come, estimated: {energy}; ends of the steps' intervals added), time of jobs {time})")
    return [*table, *account.problems]


def _cells(key: str, told: Range | None) -> tuple[str, str]:
    if told is None:
        return NOT_KNOWN, ""
    if not told.value:
        return "–", ""
    if key == "joules":
        unit = energy_unit(told.value)
        return f"{unit.told(told.value)} {unit.name}", f"{unit.told(told.low)} to {unit.told(told.high)} {unit.name}"
    return format_quantity(key, told.value), f"{format_quantity(key, told.low)} to {format_quantity(key, told.high)}"


def progress_lines(run_directory: Path, data: str | None) -> list[str]:
    """Return what a run has used so far and what is still to come, in lines of text.

    Args:
        data: the folder that {data} stands for in the configuration.

    Raises:
        InputError: the run was never started, or a record or an attempt is damaged.
    """
    config = configuration(run_directory, data)
    settings = step_settings(config, "report.page", {})
    assert isinstance(settings, PageSettings)
    material = read_unfinished(run_directory)
    joules_alone = settings.model_copy(update={"carbon_intensity_series": None})
    account = validate_accounting(account_run_energy(material, joules_alone), "what was summed up")
    return lines(progress(config, material, account), account)
