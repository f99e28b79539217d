"""The account of the run's energy: made here once, written as `report/energy.json`, and read by all that tells joules.

What an account is made of is gathered here: the attempts with their fate, what the meters on their nodes wrote, the
books that came afterwards, and the platform's power model. Joules are summed by the account alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import numpy as np

from pipeline.core.errors import InputError, anonymous
from pipeline.energy.attribution.run_attribution import JobUse, RunAttribution, attribute_run, read_job_uses
from pipeline.energy.carbon_intensity import IntensitySeries, read_intensity_series
from pipeline.energy.energy_accounting import EnergyAccounting, Figure, validate_accounting
from pipeline.energy.power_model import GENERIC, PowerModel
from pipeline.energy.readings import ExternalReading
from pipeline.report.consumption import attempt_of, computed_by, standing_attempts
from pipeline.report.formats import period
from pipeline.report.read import UNCOUNTED, Json, Material
from pipeline.report.settings import PageSettings

SNAKEMAKE: Literal["snakemake"] = "snakemake"


def uses(material: Material, run: str) -> tuple[list[JobUse], list[str]]:
    """Return what the account is told of every attempt and of Snakemake's processes, and the problems of the files.

    What the meter of Snakemake wrote in a run of another name is left out, and what it wrote after the last attempt
    that counts: a report that is made again, later, tells the same.
    """
    problems: list[str] = []
    readings = read_job_uses(material.readings, problems)
    standing = standing_attempts(material)
    found = []
    for attempt in material.attempts:
        name, content = attempt_of(attempt).removesuffix(".json"), attempt.content
        job = (content.get("slurm") or {}).get("slurm_job_id")
        stands = attempt_of(attempt) in standing
        found.append(
            JobUse(
                name=name,
                step=content["step"],
                instance={key: str(value) for key, value in content["instance"].items()},
                fate="finished" if stands else "lost",
                slurm_job=None if job is None else str(job),
                intervals=readings.pop(name, []),
                snakemake=content.get("snakemake"),
                last_seen=None if stands or not content.get("last_seen") else seconds_of(content["last_seen"]),
            )
        )
    last = max((line.ended for job in found for line in job.intervals), default=0.0)
    for name, intervals in sorted(readings.items()):
        if name.startswith(f"{SNAKEMAKE}."):
            # Of Slurm, where Snakemake itself runs in one, and the name of the run.
            allocation, of_run = (*name.split(".", 4)[3:], "", run)[:2]
            counted = [line for line in intervals if line.ended <= last]
            if of_run == run and counted:
                found.append(JobUse(name, SNAKEMAKE, {}, SNAKEMAKE, allocation or None, counted))
            elif of_run != run:
                problems.append(f"The readings of {name} are of the run {of_run}, not of this one, and are left out.")
        elif not name.startswith(UNCOUNTED):
            problems.append(f"The readings of {name} belong to no attempt and are not in the account.")
    return found, problems


def nothing_known(jobs: Sequence[JobUse]) -> Json:
    """Return an account in which no meter and no model gave a reading."""
    nothing = Figure().model_dump(mode="json")
    told = {job.name: {**nothing, "step": job.step, "instance": job.instance, "fate": job.fate} for job in jobs}
    sums = dict.fromkeys(("total", "finished", "lost", "idle", "snakemake"), nothing)
    return {**sums, "steps": {}, "jobs": told, "components": {}, "nodes": {}}


def _models(material: Material, jobs: Sequence[JobUse], power: Mapping[str, PowerModel]) -> dict[str, PowerModel]:
    """Return the power model of each node: that of the partition of an attempt that was on it, else the wide one."""
    partitions = {
        attempt_of(attempt).removesuffix(".json"): (attempt.content.get("slurm") or {}).get("slurm_job_partition")
        for attempt in material.attempts
    }
    found = dict.fromkeys((book.node for book in material.books), GENERIC)
    for job in jobs:
        for node in {interval.node for interval in job.intervals}:
            found[node] = power.get(str(partitions.get(job.name)), found.get(node, GENERIC))
    return found


def seconds_of(moment: str) -> float:
    """Return the Unix time of a moment of a record."""
    return datetime.fromisoformat(moment).timestamp()


def training_joules(material: Material, made: RunAttribution) -> dict[str, dict[int, float]]:
    """Return the joules of each training step of each model, on all nodes, by the time in which it was done.

    A step whose line of the metrics does not say when it ended and how long it took, or in whose time the meters of its
    attempts were silent, has none.
    """
    found = {}
    for metrics in material.metrics:
        segments = material.records_of("pretrain.segment", model=metrics.name)
        attempts = {(computed_by(record) or "").removesuffix(".json") for record in segments}
        attempts |= {
            job.name
            for job in made.jobs
            if job.fate == "lost" and job.step == "pretrain.segment" and job.instance.get("model") == metrics.name
        }
        lines = [line for line in metrics.lines if line.get("ended_unix_seconds") and line.get("seconds")]
        ended, seconds = (np.array([line[key] for line in lines], float) for key in ("ended_unix_seconds", "seconds"))
        joules = made.joules_between(attempts, ended - seconds, ended)
        found[metrics.name] = {
            int(line["step"]): round(float(some), 6) for line, some in zip(lines, joules, strict=True) if some == some
        }
    return found


def _account(
    jobs: Sequence[JobUse],
    books: Sequence[ExternalReading],
    models: Mapping[str, PowerModel],
    material: Material,
    series: IntensitySeries | None,
) -> Json:
    """Return the account as JSON, with the joules of training steps and of stretches of the grid's intensity."""
    made = attribute_run(jobs, books, models)
    used = series and series.used(made.joules_in_stretches(series.moments))
    return {**made.as_json(), "training": training_joules(material, made), "intensity": used and used.model_dump()}


def _series(material: Material, settings: PageSettings, problems: list[str]) -> IntensitySeries | None:
    """Return the grid's intensity over time; None where none is configured or it cannot be read, which is a problem."""
    configured = settings.carbon_intensity_series
    if configured is None:
        return None
    try:
        # A table that came after the report was planned is none of its inputs: the next start reads it.
        found = [read_intensity_series(configured, path) for path in material.carbon_intensity]
    except InputError as error:
        problems.append(f"The grid's carbon intensity over time is not known: {error}")
        return None
    if not found:
        problems.append(
            f"The grid's carbon intensity over time is not known: there is no file {configured.path} yet: put it there "
            "and start again, which makes the report alone"
        )
        return None
    problems += found[0].problems
    return found[0]


def _gaps(account: EnergyAccounting) -> list[str]:
    """Return a sentence where the grid's intensity has gaps in the time of the run."""
    of = account.intensity
    gaps = [stretch for stretch in of.stretches if stretch.grams_per_kwh is None] if of else []
    if not of or not gaps:
        return []
    more = f", and {len(gaps) - 1:,} more" if len(gaps) > 1 else ""
    return [
        f"{of.name} has a gap while the run used electricity, {period(gaps[0].started, gaps[0].ended)}{more}: complete "
        "it and start again, which makes the report alone"
    ]


def energy_of(material: Material, settings: PageSettings) -> Json:
    """Return the account of the run's energy as JSON, with its problems in sentences.

    What is broken loses its own part alone. Where no account can be made, all is unknown and the reason is a problem,
    so that the rest of the report is made.
    """
    jobs, problems = uses(material, settings.run)
    problems += material.books.problems
    series = _series(material, settings, problems)
    try:
        made = _account(jobs, material.books, _models(material, jobs, settings.power), material, series)
        told = validate_accounting(made, "What was summed up")
    except (InputError, ValueError, ArithmeticError) as error:
        problems.append(f"No account of the energy could be made: {error}")
        made = nothing_known(jobs)
        told = validate_accounting(made, "What was summed up")
    silent = Counter(job.step for job in jobs if not told.of_attempt(job.name).is_known)
    if silent:
        steps = ", ".join(f"{step} {count:,}" for step, count in sorted(silent.items()))
        problems.append(f"Attempts without any reading, whose energy is not in the sums: {steps}.")
    return {**made, "problems": [anonymous(problem) for problem in (*told.problems, *problems, *_gaps(told))]}
