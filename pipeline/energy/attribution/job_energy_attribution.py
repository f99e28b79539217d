"""Attribute the energy of a run's nodes to its jobs; only this module sums joules.

A node counts once, whatever ran on it. Its energy at each time is divided among the jobs that were there, or is idle.
Where no meter measured, the power model gives an estimate with its error, never 0 J.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.energy.attribution.clock_and_name_corrections import (
    add_unmetered_jobs,
    align_clocks,
    resolve_machine_names,
    slurm_job_number,
)
from pipeline.energy.attribution.job_usage_intervals import (
    Floats,
    MeteredJob,
    NodeUseTable,
    Problems,
    RateSeries,
    SeriesKey,
    add_intervals,
    collect_meter_power_series,
    drop_impossible_intervals,
    drop_stuck_intervals,
    format_names,
)
from pipeline.energy.attribution.meter_choice import choose_readings
from pipeline.energy.attribution.node_attribution import EnergyAmount, NodeAttribution
from pipeline.energy.attribution.node_occupancy import NodeOccupancy, TimeBins
from pipeline.energy.attribution.node_power_by_component import NodePower, NodePowerModel
from pipeline.energy.power_model import PowerModel
from pipeline.energy.readings import ExternalReading, MeterInterval

Models = PowerModel | Mapping[str, PowerModel] | Callable[[str], PowerModel]
COVERED_SHARE = 0.99
"""Below this share of a training step's time with known use, its joules are unknown."""
LOST_METER_SECONDS = 120.0
"""A node's meter that ends this much before the job's others has lost intervals, which last up to 60 s."""
TIMELINE_ENTRIES = 400
"""The most entries of a node's timeline in the report."""


@dataclass(frozen=True)
class EnergyShare:
    """The energy that a job used of a component of a node, and its meters; `job` is None for an idle node."""

    job: str | None
    node: str
    component: str
    quantity: EnergyAmount
    meters: tuple[str, ...]


@dataclass(frozen=True)
class RunAttribution:
    """The energy of a run by job, node and component.

    Attributes:
        seconds: the time that nodes were used, summed over nodes.
        seconds_covered: the part of it that a meter measured.
        models: the power model of each node.
        attributions: of each node.
    """

    jobs: Sequence[MeteredJob]
    shares: Sequence[EnergyShare]
    problems: list[str]
    seconds: float
    seconds_covered: float
    models: Mapping[str, PowerModel]
    attributions: Mapping[str, NodeAttribution]

    def timeline(
        self, node: str, at_most: int = TIMELINE_ENTRIES
    ) -> list[tuple[float, float, dict[str, float], dict[str | None, float]]]:
        """Return at most so many entries (started, ended, watts by component, joules by job) with all the energy."""
        entries = []
        for started, ended, watts, joules in (
            self.attributions[node].timeline(at_most) if node in self.attributions else ()
        ):
            by_name: dict[str | None, float] = defaultdict(float)
            for job, amount in joules.items():
                by_name[self.jobs[job].name if job >= 0 else None] += amount
            entries.append((started, ended, watts, dict(by_name)))
        return entries

    def joules_between(self, attempts: Iterable[str], started: Floats, ended: Floats) -> Floats:
        """Return what some attempts used on all nodes between two Unix times, such as those of training steps.

        NaN where no attempt was on all its nodes for nearly all of the time.
        """
        names = set(attempts)
        joules, seconds = np.zeros(len(started)), np.zeros(len(started))
        for number in (number for number, job in enumerate(self.jobs) if job.name in names):
            least = np.full(len(started), np.inf)
            for attribution in self.attributions.values():
                if number in attribution.indices_of_present_jobs:
                    used, present = attribution.cumulative_use(number, np.stack([started, ended]))
                    joules += used[1] - used[0]
                    least = np.minimum(least, present[1] - present[0])
            seconds = np.maximum(seconds, np.where(np.isinf(least), 0.0, least))
        return np.where(seconds >= COVERED_SHARE * (ended - started), joules, np.nan)

    def joules_per_period(self, moments: Sequence[float]) -> list[float]:
        """Return the energy of all nodes, idle ones too, between consecutive Unix times."""
        total = np.zeros(len(moments) - 1)
        for attribution in self.attributions.values():
            for channel in attribution.channels:
                total += np.diff(
                    np.interp(moments, attribution.bins.edges, attribution.bins.cumulative_integral(channel.watts))
                )
        return [float(joules) for joules in total]

    def _list_shares_by(self, field: str) -> dict[str, list[EnergyShare]]:
        groups: dict[str, list[EnergyShare]] = defaultdict(list)
        for share in self.shares:
            groups[getattr(share, field)].append(share)
        return {key: groups[key] for key in sorted(groups, key=str)}

    def as_json(self) -> dict[str, Any]:
        """Return the content of `report/energy.json`."""
        by_job = self._list_shares_by("job")
        jobs = sorted(self.jobs, key=lambda job: job.name)
        steps = sorted({job.step for job in jobs if job.fate != "snakemake"})

        def sum_shares(some: Iterable[EnergyShare]) -> dict[str, Any]:
            some = list(some)
            meters = sorted({meter for share in some for meter in share.meters})
            return EnergyAmount.sum(share.quantity for share in some).as_json(meters)

        def sum_jobs(wanted: Callable[[MeteredJob], bool]) -> dict[str, Any]:
            names = dict.fromkeys(job.name for job in jobs if wanted(job))
            return sum_shares(share for name in names for share in by_job.get(name, ()))

        def make_step_predicate(step: str) -> Callable[[MeteredJob], bool]:
            return lambda job: job.step == step and job.fate != "snakemake"

        dumps = {node: model.model_dump(mode="json") for node, model in sorted(self.models.items())}
        same = len({str(dump) for dump in dumps.values()}) == 1
        return {
            "total": sum_shares(self.shares),
            "finished": sum_jobs(lambda job: job.fate == "finished"),
            "lost": sum_jobs(lambda job: job.fate == "lost"),
            "idle": sum_shares(share for share in self.shares if share.job is None),
            "snakemake": sum_jobs(lambda job: job.fate == "snakemake"),
            "steps": {step: sum_jobs(make_step_predicate(step)) for step in steps},
            "jobs": {
                job.name: sum_shares(by_job.get(job.name, ()))
                | {"step": job.step, "instance": job.instance, "fate": job.fate}
                for job in jobs
            },
            "components": {name: sum_shares(some) for name, some in self._list_shares_by("component").items()},
            "nodes": {name: sum_shares(some) for name, some in self._list_shares_by("node").items()},
            "coverage": {
                "node_seconds": round(self.seconds, 3),
                "measured_node_seconds": round(self.seconds_covered, 3),
            },
            "problems": list(self.problems),
            "meters": sorted({meter for share in self.shares for meter in share.meters}),
            "model": next(iter(dumps.values())) if same else dumps,
            "timeline": [
                {
                    "node": node,
                    "started": started,
                    "ended": ended,
                    "watts": {name: round(power, 3) for name, power in sorted(watts.items())},
                    "jobs": {name: round(some, 3) for name, some in sorted(joules.items(), key=str) if name},
                }
                for node in sorted(self.attributions)
                for started, ended, watts, joules in self.timeline(node)
            ],
        }


def _select_model(models: Models, node: str) -> PowerModel:
    if isinstance(models, PowerModel):
        return models
    return models[node] if isinstance(models, Mapping) else models(node)


def attribute_run(jobs: Sequence[MeteredJob], external: Sequence[ExternalReading], model: Models) -> RunAttribution:
    """Return the attribution of a run's attempts, Snakemake's processes and external readings.

    Args:
        jobs: attempts and processes of Snakemake.
        external: a meter that knows no jobs, such as a power distribution unit, counts while the run is on its node.
        model: the power model of all nodes, or one by the node's name, as a mapping or a function.
    """
    problems = Problems()
    jobs = align_clocks(jobs, problems)
    machines = resolve_machine_names(jobs, problems)
    nodes = _NodeInputs(jobs, machines)
    taken: set[ExternalReading] = set()
    for one in external:
        what = f"{one.node}: an external reading of {_job_label(one)}"
        if not all(map(math.isfinite, (one.started, one.ended))) or one.ended <= one.started:
            problems.add(f"{what} ends before it starts: left out")
        elif one in taken:
            problems.add(f"{what} occurs twice and counts once")
        else:
            taken.add(one)
            nodes.external[machines.get(one.node, one.node)].append(one)
    for number, job in enumerate(jobs):
        nodes.add_job(number, job, problems)
    add_unmetered_jobs(jobs, nodes.uses, nodes.external, problems)
    shares: dict[tuple[int, str, str], list[tuple[EnergyAmount, str]]] = defaultdict(list)
    attributions, used, seconds, covered = {}, {}, 0.0, 0.0
    for node in sorted(nodes.uses):
        used[node] = _select_model(model, node)
        attribution, occupied, measured = nodes.attribute_energy(node, used[node], problems)
        attributions[node], seconds, covered = attribution, seconds + occupied, covered + measured
        for part in attribution.attribute_energy():
            shares[part.job, node, part.component].append((part.quantity, part.sentence))
    known = {None if number < 0 else jobs[number].name for number, _, _ in shares}
    if unknown := [job.name for job in jobs if job.name not in known and not job.intervals]:
        problems.add(f"The energy of {format_names(unknown)} is unknown: no meter and no external reading has it")
    summed = [
        EnergyShare(
            job=None if number < 0 else jobs[number].name,
            node=node,
            component=component,
            quantity=EnergyAmount.sum(quantity for quantity, _ in parts),
            meters=tuple(sorted({sentence for _, sentence in parts})),
        )
        for (number, node, component), parts in sorted(shares.items())
    ]
    return RunAttribution(jobs, summed, problems.sentences(), seconds, covered, used, attributions)


def _job_label(one: ExternalReading) -> str:
    return f"job {one.job}" if one.job else "no job"


class _NodeInputs:
    """The inputs of each node: uses, series of readings, and external readings."""

    def __init__(self, jobs: Sequence[MeteredJob], machines: Mapping[str, str]) -> None:
        self.jobs, self.machines = jobs, machines
        self.uses: dict[str, NodeUseTable] = defaultdict(NodeUseTable)
        self.external: dict[str, list[ExternalReading]] = defaultdict(list)
        self.streams: dict[str, dict[SeriesKey, list[RateSeries]]] = defaultdict(lambda: defaultdict(list))
        self.node_cpu: dict[str, list[RateSeries]] = defaultdict(list)

    def add_job(self, number: int, job: MeteredJob, problems: Problems) -> None:
        by_node: dict[str, list[MeterInterval]] = defaultdict(list)
        for line in job.intervals:
            by_node[line.node].append(line)
        last = max((line.ended for line in job.intervals), default=0.0)
        for name, lines in sorted(by_node.items()):
            lines = drop_impossible_intervals(job.name, name, lines, problems)
            if not lines:
                continue
            node = self.machines[name]
            uses, first = self.uses[node], len(self.uses[node].rows)
            # Slurm keeps all nodes of a job allocated until it ends.
            is_lost = job.slurm_job is not None and last - lines[-1].ended > LOST_METER_SECONDS
            last_seen = job.last_seen if lines[-1].ended == last else last if is_lost else None
            add_intervals(uses, number, lines, job.name, node, problems, last_seen)
            started, ended, node_cpu = (uses.float_column(name, first) for name in ("started", "ended", "node_cpu"))
            real = ~np.isnan(node_cpu)
            if real.any():
                self.node_cpu[node].append(RateSeries(job.name, started[real], ended[real], node_cpu[real]))
            readings = ((line.started, line.ended, line.readings) for line in lines)
            for kind, stream in collect_meter_power_series(readings, node, job.name, problems).items():
                self.streams[node][kind].append(stream)

    def attribute_energy(
        self, node: str, model: PowerModel, problems: Problems
    ) -> tuple[NodeAttribution, float, float]:
        """Return the node's energy by job, the seconds that jobs were there, and those that a meter measured."""
        uses, streams, external = self.uses[node], self.streams[node], self.external[node]
        known = {slurm_job_number(job.slurm_job) for job in self.jobs if job.slurm_job}
        mine = [one for one in external if one.job is not None and slurm_job_number(one.job) in known]
        for one in (one for one in external if one.job is None or one in mine):
            series = collect_meter_power_series(
                [(one.started, one.ended, one.readings)], node, _job_label(one), problems
            )
            for kind, stream in series.items():
                streams[kind].append(stream)
        for kind in sorted(streams, key=str):
            what = f"{node}: {kind[2]} of {kind[0]} {kind[1]}".rstrip()
            streams[kind] = drop_stuck_intervals(streams[kind], what, problems)
        streams = {kind: some for kind, some in streams.items() if some}
        ends: list[Floats] = [uses.float_column("started"), uses.float_column("ended")]
        ends += [moments for some in streams.values() for one in some for moments in (one.started, one.ended)]
        ends += [np.array([one.started, one.ended]) for one in external]
        bins = TimeBins(ends)
        occupancy = NodeOccupancy(uses, bins, self.jobs, mine)
        occupancy.report_foreign_work(node, problems)
        chosen = choose_readings(bins, streams, node, problems)
        power_model = NodePowerModel.from_power_model(model, node)
        power = NodePower(occupancy, bins, chosen, power_model, bins.rate_by_bin(self.node_cpu[node]), node)
        occupied = float(bins.seconds[occupancy.occupied].sum())
        attribution = NodeAttribution(node, occupancy, bins, power.channels(problems), power_model)
        return attribution, occupied, power.covered_seconds()
