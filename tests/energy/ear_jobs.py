"""Jobs measured by EAR on Snellius, with the errors of power model and forecast; for tests and benchmarks.

Published with the paper "Predicting the Energy of a Complete LLM Data-Curation Pipeline on Shared HPC":
https://github.com/kruuusher13/GPT-NL-Energy-Estimation- (Apache-2.0), paper/data/measurements_raw.csv.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from pipeline.energy.energy_forecast import CostForecast
from pipeline.energy.power_model import PowerModel
from tests.energy.power_fit import ObservedPower, WattRange, fit_power_model

STEPS = ("data_splitting", "string_normalization", "heuristic_filtering")
SMALL, LARGE = (1_000, 100_000), (400_000, 1_400_000)
# Two EPYC 9654 of 360 W (AMD, data sheet) draw 222 W with one busy core (EAR, the same rows), which leaves 2.6 W for
# each other core; a server with them draws 1,000 to 1,200 W where all 192 are busy (ServeTheHome), 3.7 to 4.8 W each.
GENOA_CORE_WATTS = WattRange(4.2, 2.6, 4.9)


class EarJob(NamedTuple):
    """A job of one core; `run` is the corpus, with suffix `sh` if the node was shared."""

    run: str
    documents: int
    replicate: int
    step: str
    seconds: float
    watts: float
    cpu_percent: float
    megabytes: float

    @property
    def joules(self) -> float:
        """Energy of the node while the job ran."""
        return self.seconds * self.watts

    @property
    def busy_cores(self) -> float:
        """EAR's CPU_UTIL is of the job's single core: it is 95 to 98 % if the job computes throughout."""
        return self.cpu_percent / 100


class Run(NamedTuple):
    """A run of a step: one or two jobs on exclusive nodes; joules summed, seconds of the longer one."""

    step: str
    documents: int
    replicate: int
    seconds: float
    joules: float
    megabytes: float


def table(path: Path) -> list[EarJob]:
    """Return the jobs of the table next to this file."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [
        EarJob(
            row["run"], int(row["documents"]), int(row["replicate"]), row["stage"], float(row["seconds"]),
            float(row["watts"]), float(row["cpu_percent"]), float(row["megabytes"]),
        )
        for row in csv.DictReader(lines)
    ]  # fmt: skip


def published_table(path: Path) -> list[EarJob]:
    """Return the jobs of the published measurements_raw.csv, without those of its deduplication check."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(row["slug"].split("_")[0], row) for row in csv.DictReader(file)]
    return [
        EarJob(
            "size" if name.startswith("size") else name, int(row["size"]), int(row["replicate"]), row["stage"],
            float(row["time_sec"]), float(row["dc_node_power_w"]), float(row["cpu_util"]),
            float(row["io_mbs"]) * float(row["time_sec"]),
        )
        for name, row in rows
        if name != "dedupval"
    ]  # fmt: skip


def runs(jobs: Iterable[EarJob], run: str = "size") -> list[Run]:
    """Return the runs of a corpus, as the published measurements.csv has them."""
    result: dict[tuple[str, int, int], list[EarJob]] = defaultdict(list)
    for job in jobs:
        if job.run == run:
            result[job.step, job.documents, job.replicate].append(job)
    return [
        Run(*key, max(j.seconds for j in jobs), sum(j.joules for j in jobs), sum(j.megabytes for j in jobs))
        for key, jobs in sorted(result.items())
    ]


def calibrated(jobs: Iterable[EarJob]) -> PowerModel:
    """Return the power model of the jobs of the small runs, each alone on its node."""
    small = [job for job in jobs if job.run == "size" and job.documents in SMALL]
    rows = [ObservedPower(job.busy_cores, job.watts, job.seconds) for job in small]
    return fit_power_model(rows, source="EAR", busy_core_watts=GENOA_CORE_WATTS)


def model_errors(model: PowerModel, jobs: Iterable[EarJob]) -> tuple[float, float]:
    """Return the mean relative error of the model's power, and the coverage of its interval."""
    pairs = [(model.watts(job.busy_cores), job.watts) for job in jobs]
    return fmean(abs(m.watts / w - 1) for m, w in pairs), fmean(m.low <= w <= m.high for m, w in pairs)


def shared_errors(model: PowerModel, jobs: list[EarJob]) -> list[tuple[EarJob, float, float]]:
    """Return each job of a shared node with the relative errors of EAR's power and of the model's, both × time.

    The truth is the mean energy of the jobs of the same step on the same documents that were alone on their nodes.
    """
    results = []
    for job in jobs:
        if job.run.endswith("sh"):
            same = {"amstsh": ("amst", "size"), "euparlsh": ("euparl",)}[job.run]
            alone = [j.joules for j in jobs if j.run in same and (j.step, j.documents) == (job.step, job.documents)]
            ours = job.seconds * model.watts(job.busy_cores).watts
            results.append((job, job.joules / fmean(alone) - 1, ours / fmean(alone) - 1))
    return results


def work_of(runs: list[Run], small: Iterable[int] = SMALL) -> Callable[[Run], float]:
    """Return the work of a run in megabytes read and written, without those of a startup.

    The startup bytes come from the calibration runs alone: a line through their megabytes by documents. The rest
    is the texts themselves, which can be measured before the run.
    """
    start = {}
    for step in STEPS:
        rows = [run for run in runs if run.step == step and run.documents in small]
        documents, megabytes = fmean(run.documents for run in rows), fmean(run.megabytes for run in rows)
        along = sum((run.documents - documents) ** 2 for run in rows)
        slope = sum((run.documents - documents) * (run.megabytes - megabytes) for run in rows) / along
        start[step] = megabytes - slope * documents
    return lambda run: run.megabytes - start[run.step]


class HeldOut(NamedTuple):
    """The errors of a forecast on held-out runs."""

    error: float
    """Mean relative error of the joules."""
    seconds_error: float
    covered: list[bool]
    half_widths: list[float]


def held_out(
    runs: list[Run],
    work: Callable[[Run], float],
    small: Iterable[int] = SMALL,
    large: Iterable[int] = LARGE,
    replicates: Iterable[int] = (1, 2),
) -> dict[str, HeldOut]:
    """Return for each step the errors of a forecast from the small runs on the large ones."""
    results = {}
    for step in STEPS:
        own = [run for run in runs if run.step == step]
        forecast = CostForecast.fit(
            [(work(r), r.seconds, r.joules) for r in own if r.documents in small and r.replicate in replicates]
        )
        pairs = [(forecast.predict(work(run)), run) for run in own if run.documents in large]
        results[step] = HeldOut(
            fmean(abs(p.joules / run.joules - 1) for p, run in pairs),
            fmean(abs(p.seconds / run.seconds - 1) for p, run in pairs),
            [p.low <= run.joules <= p.high for p, run in pairs],
            [(p.high - p.low) / 2 / p.joules for p, _ in pairs],
        )
    return results


def summary(result: dict[str, HeldOut]) -> tuple[float, float]:
    """Return the interval coverage over all runs, and the median half-width as a share of the value."""
    return (
        fmean(inside for step in result.values() for inside in step.covered),
        median(width for step in result.values() for width in step.half_widths),
    )
