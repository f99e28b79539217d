"""Collect the inputs of a forecast: work of the planned run, and work, seconds and joules of finished small runs.

`pipeline.forecast.workload` computes the work of both.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

from pipeline import layout
from pipeline.config.configuration import Config, parse_configuration
from pipeline.core.archived_run_files import FileStore
from pipeline.core.batch_schedule import median_step_seconds
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_records import Attempt, Record
from pipeline.energy.run_energy_report_reader import AttemptEnergy, EnergyAccounting, read_energy_accounting, sum_energy
from pipeline.forecast.workload import BYTES, WORKLOADS, RawBytes
from pipeline.plan.settings import (
    CalibrationRun,
    ForecastPlan,
    MeasuredTraining,
    ModelPlan,
    PlannedWork,
    StepCost,
    TrainingPlan,
)
from pipeline.sources.source_units import PARTS_PER_FILE


def collect_forecast_inputs(config: Config) -> ForecastPlan | None:
    """Return the inputs of the run's forecast; None where the configuration names no calibration runs.

    Raises:
        InputError: a calibration run is missing, not finished, damaged, or the planned run itself.
    """
    folders = config.emission_settings.calibration
    if not folders:
        return None
    for folder in folders:
        if Path(folder).resolve() == config.run_directory.resolve():
            raise InputError(f"energy.calibration names {folder}, the folder of this run: name smaller runs")
    return ForecastPlan(runs=[load_calibration_run(folder) for folder in folders], work=_plan_work(config))


def _plan_work(config: Config) -> dict[str, PlannedWork]:
    """Return the work of each step with jobs in the planned run."""
    fetched = sorted(source.name for source in config.sources if source.dataset is not None)
    sizes = {
        source.name: float(sum(config.source_units(source.name).sizes.values()))
        for source in config.sources
        if source.dataset is None
    }
    skipped = set() if fetched else {"sources.dataset"}
    if not any(config.source_units(name).large_files for name in sizes):
        skipped.add("sources.split")
    reason = f"the size of a data set ({', '.join(fetched)}) is unknown before it is fetched: name a path of files"
    planned = {}
    for step, work in WORKLOADS.items():
        amount = work.amount(config, {**dict.fromkeys(fetched, 0.0), **sizes})
        if amount is None or step in skipped:
            continue
        unknown = bool(fetched) and work.unit == BYTES
        planned[step] = PlannedWork(
            amount=None if unknown else amount, unit=work.unit, refused=reason if unknown else None
        )
    return planned


def load_calibration_run(folder: str) -> CalibrationRun:
    """Load the cost of each step of a finished run.

    Raises:
        InputError: the run is missing, not finished, or damaged.
    """
    record = Path(folder, layout.REPORT_RECORD)
    return _load_cached(folder, record.stat().st_mtime_ns if record.is_file() else None)


@cache
def _load_cached(folder: str, changed_nanoseconds: int | None) -> CalibrationRun:
    """Load a calibration run; the time of change of its report is part of the cache key."""
    run = Path(folder)
    if not run.is_dir():
        raise _calibration_error(
            folder, "there is no such folder: name the folder of a finished run, such as results/NAME"
        )
    if changed_nanoseconds is None or not (run / layout.ENERGY_ACCOUNT).is_file():
        missing = layout.ENERGY_ACCOUNT if changed_nanoseconds is not None else layout.REPORT_RECORD
        raise _calibration_error(
            folder, f"it has no {missing}, so the run is not finished: finish it with `polder run`, or remove it here"
        )
    try:
        record = Record.load(run / layout.REPORT_RECORD)
        written = {output.path: output.sha256 for output in record.outputs}
        if record.frozen is None:
            raise InputError("the record of its report names no configuration: run its report again")
        frozen = json.loads((run / record.frozen.path).read_bytes())["configuration"]
        if written.get(layout.ENERGY_ACCOUNT) != hash_file(run / layout.ENERGY_ACCOUNT):
            raise InputError(f"its {layout.ENERGY_ACCOUNT} changed after its report was written")
        account, config = read_energy_accounting(run), parse_configuration(frozen)
        raw = {source.name: _count_raw_bytes(run, source.name) for source in config.sources}
        steps = {} if account is None else _measure_steps(folder, account, config, raw)
        trainings = _measure_trainings(run, config, record)
    except InputError as error:
        raise _calibration_error(folder, f"{error}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        words = f"{type(error).__name__}: {error}"
        raise _calibration_error(folder, f"it cannot be read ({words}): run its report again") from None
    if account is None or not steps:
        raise _calibration_error(folder, f"its {layout.ENERGY_ACCOUNT} has no finished job: remove it here")
    return CalibrationRun(
        folder=folder,
        platform=config.platform.name,
        known=account.finished.label,
        steps=steps,
        trainings=trainings,
    )


def _calibration_error(folder: str, reason: str) -> InputError:
    return InputError(f"energy.calibration: {folder}: {reason}")


def _count_raw_bytes(run: Path, source: str) -> float:
    """Return the bytes of a source's raw files on disk; a split file counts as the file, which may be compressed."""
    manifest = json.loads((layout.MANIFEST.path(run, source=source)).read_bytes())
    whole = (unit["files"] for number, unit in manifest["units"].items() if int(number) < PARTS_PER_FILE)
    size = sum(file["bytes"] for files in whole for file in files)
    for path in layout.RECORD.glob(run, job=f"sources.split.{source}.*"):
        size += sum(file.bytes for file in Record.load(path).inputs)
    return float(size)


def _measure_steps(folder: str, account: EnergyAccounting, config: Config, raw: RawBytes) -> dict[str, StepCost]:
    """Return work and cost of each step, summed over its jobs with valid outputs."""
    jobs: dict[str, dict[str, AttemptEnergy]] = {}
    for name, job in account.jobs.items():
        if job.fate == "finished" and job.step in WORKLOADS:
            jobs.setdefault(job.step, {})[name] = job
    costs = {}
    store = FileStore(Path(folder))
    for step, of_step in jobs.items():
        amount = WORKLOADS[step].amount(config, raw)
        figure = sum_energy(of_step.values())
        unknown = sum(not job.is_known for job in of_step.values())
        costs[step] = StepCost(
            work=amount or 0.0,
            seconds=sum(_attempt_seconds(store, name) for name in of_step),
            joules=figure.joules,
            low_joules=figure.low_joules,
            high_joules=figure.high_joules,
            refused=f"the energy of {unknown} of {len(of_step)} jobs of {step} in {folder} is unknown: name another run"
            if unknown
            else None,
        )
    return costs


def _measure_trainings(run: Path, config: Config, record: Record) -> dict[str, MeasuredTraining]:
    """Return the trainings with a measured step time; their metrics must be the inputs of the run's report."""
    read = {entry.path: entry.sha256 for entry in record.inputs}
    trainings = {}
    for name, model in config.models.items():
        metrics = layout.METRICS.path(run, model=name)
        segment = layout.SEGMENT_RECORD.path(run, model=name, step=model.training.steps)
        if not (metrics.is_file() and segment.is_file()):
            continue  # added after the report, or not finished
        content = metrics.read_bytes()
        if read.get(metrics.relative_to(run).as_posix()) != hashlib.sha256(content).hexdigest():
            raise InputError(f"{layout.METRICS.relative_path(model=name)} changed after its report was written")
        seconds = median_step_seconds(map(json.loads, content.splitlines()))
        processes = Record.load(segment).counts.get("world_size")
        if seconds is not None and processes is not None:
            planned = ModelPlan(
                architecture=model.architecture,
                training=TrainingPlan.model_validate(model.training),
                vocabulary_size=config.vocabulary_size(model.tokens),
            )
            trainings[name] = MeasuredTraining(model=planned, processes=processes, step_seconds=seconds)
    return trainings


def _attempt_seconds(store: FileStore, attempt: str) -> float:
    """Return the wall seconds of an attempt."""
    path = layout.ATTEMPT.relative_path(attempt=attempt)
    file = store.find(path)
    if not file.is_file():
        raise InputError(f"{path} is missing, so the time of that job is unknown")
    return Attempt.load(file).wall_seconds
