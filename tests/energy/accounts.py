"""Lines of meters, external readings and jobs for attribution tests, and the invariants of every attribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pipeline.energy.attribution.job_energy_attribution import EnergyShare, Models, RunAttribution, attribute_run
from pipeline.energy.attribution.job_usage_intervals import MeteredJob
from pipeline.energy.attribution.node_attribution import EnergyAmount
from pipeline.energy.power_model import PowerModel
from pipeline.energy.readings import ExternalReading, MeterInterval, Reading

MODEL = PowerModel(idle_watts=100.0, busy_core_watts=10.0, relative_error=0.1, source="a test")


def reading(component: str, joules: float | None, part: str = "", **more: object) -> Reading:
    known = {"node": "pm_counters", "package": "rapl", "dram": "rapl", "board": "nvml"}
    fields = {"label": "measured", "method": "counter", "meter": known[component], **more}
    return Reading(component=component, part=part, joules=joules, **fields)


def line(started: float, ended: float, cpu: float, *readings: Reading, **more: object) -> MeterInterval:
    fields = {"node": "n1", "node_cpu_seconds": cpu, "processors": 10, "job_processors": 10, "job_memory_bytes": 0}
    return MeterInterval(started=started, ended=ended, job_cpu_seconds=cpu, readings=readings, **{**fields, **more})


def job(
    name: str, *lines: MeterInterval, fate: str = "finished", step: str = "", slurm: str | None = None
) -> MeteredJob:
    return MeteredJob(name, step or f"step.{name}", {}, fate, slurm, lines)


def external_reading(
    started: float, ended: float, *readings: Reading, slurm: str | None = "7", whole: bool | None = True
) -> ExternalReading:
    return ExternalReading(node="n1", started=started, ended=ended, job=slurm, whole_node=whole, readings=readings)


class Account(RunAttribution):
    """An attribution with sums that only tests need."""

    def _sum(self, wanted: Callable[[EnergyShare], bool]) -> EnergyAmount:
        return EnergyAmount.sum(share.quantity for share in self.shares if wanted(share))

    def total(self) -> EnergyAmount:
        return self._sum(lambda share: True)

    def idle(self) -> EnergyAmount:
        return self._sum(lambda share: share.job is None)

    def of_job(self, name: str) -> EnergyAmount:
        return self._sum(lambda share: share.job == name)

    def of_step(self, step: str) -> EnergyAmount:
        names = {job.name for job in self.jobs if job.step == step and job.fate != "snakemake"}
        return self._sum(lambda share: share.job in names)

    def of_fate(self, fate: str) -> EnergyAmount:
        names = {job.name for job in self.jobs if job.fate == fate}
        return self._sum(lambda share: share.job in names)

    def of_component(self) -> dict[str, EnergyAmount]:
        components = sorted({share.component for share in self.shares})
        return {name: self._sum(lambda share, name=name: share.component == name) for name in components}  # type: ignore[misc]


def attribute(jobs: Sequence[MeteredJob], external: Sequence[ExternalReading], model: Models) -> Account:
    return Account(**vars(attribute_run(jobs, external, model)))


def made(*jobs: MeteredJob, external_readings: tuple[ExternalReading, ...] = (), model: PowerModel = MODEL) -> Account:
    result = attribute(jobs, external_readings, model)
    parts = [result.idle(), result.of_fate("snakemake"), *map(result.of_step, {one.step for one in jobs})]
    assert EnergyAmount.sum(parts).joules == pytest.approx(result.total().joules)
    times = [entry for node in result.attributions for entry in result.timeline(node)]
    in_time = sum(power * (ended - started) for started, ended, watts, _ in times for power in watts.values())
    assert in_time == pytest.approx(result.total().joules)
    assert sum(sum(joules.values()) for *_, joules in times) == pytest.approx(result.total().joules)
    assert EnergyAmount.sum(result.of_component().values()).joules == pytest.approx(result.total().joules)
    return result


def problem(run_attribution: RunAttribution, *words: str) -> bool:
    return any(all(word in sentence for word in words) for sentence in run_attribution.problems)
