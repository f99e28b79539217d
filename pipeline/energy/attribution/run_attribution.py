"""Attribute the energy of a run's nodes to its jobs: the only place that sums joules.

Meters and external meters say what nodes used, jobs say what they did there. A node counts once, whatever ran on it;
each moment of it is divided among the jobs that were there, or is idle. What nothing measured is told by the power
model, with the model's error, and never as 0 J.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.energy.attribution.job_use import (
    MeteredJob,
    NodeUseTable,
    Problems,
    SeriesKey,
    add_intervals,
    collect_rate_series,
    drop_impossible_intervals,
    drop_stuck_counters,
    format_names,
)
from pipeline.energy.attribution.meter_choice import choose_readings
from pipeline.energy.attribution.meter_corrections import (
    add_unmetered_jobs,
    align_clocks,
    find_machine_names,
    slurm_job_number,
)
from pipeline.energy.attribution.node_attribution import EnergyAmount, NodeAttribution
from pipeline.energy.attribution.node_power import NodePower, NodePowerModel
from pipeline.energy.attribution.node_timeline import Floats, NodeOccupancy, RateSeries, TimeBins
from pipeline.energy.power_model import PowerModel
from pipeline.energy.readings import ExternalReading, MeterInterval

__all__ = ["JobUse", "Quantity", "RunAttribution", "Share", "attribute_run", "read_job_uses"]

Models = PowerModel | Mapping[str, PowerModel] | Callable[[str], PowerModel]
COVERED_SHARE = 0.99
"""Of a training step's time, below which its joules are not known."""
LOST_METER_SECONDS = 120.0
"""A node's meter that ends so much earlier than the job's others has missed something: a line holds up to 60 s."""
TIMELINE_ENTRIES = 400
"""Of a node's time line in the report at most so many."""


@dataclass(frozen=True)
class EnergyShare:
    """What a job (None: nobody, the node was idle) used of a component of a node, and how that is known."""

    job: str | None
    node: str
    component: str
    quantity: EnergyAmount
    meters: tuple[str, ...]


@dataclass(frozen=True)
class RunAttribution:
    """Who used how many joules, with intervals; `seconds` are of nodes, `seconds_covered` of those a meter saw."""

    jobs: Sequence[MeteredJob]
    shares: Sequence[EnergyShare]
    problems: list[str]
    seconds: float
    seconds_covered: float
    models: Mapping[str, PowerModel]
    attributions: Mapping[str, NodeAttribution]

    def _sum(self, wanted: Callable[[EnergyShare], bool]) -> EnergyAmount:
        return EnergyAmount.sum(share.quantity for share in self.shares if wanted(share))

    def total(self) -> EnergyAmount:
        """Return the energy of all attempts, of Snakemake and of idle nodes."""
        return self._sum(lambda share: True)

    def of_job(self, name: str) -> EnergyAmount:
        """Return the energy of an attempt."""
        return self._sum(lambda share: share.job == name)

    def of_step(self, step: str) -> EnergyAmount:
        """Return the energy of all attempts at a step, also of those that were lost."""
        names = {job.name for job in self.jobs if job.step == step and job.fate != "snakemake"}
        return self._sum(lambda share: share.job in names)

    def of_fate(self, fate: str) -> EnergyAmount:
        """Return the energy of the attempts with one fate: finished, lost or snakemake."""
        names = {job.name for job in self.jobs if job.fate == fate}
        return self._sum(lambda share: share.job in names)

    def of_component(self) -> dict[str, EnergyAmount]:
        """Return the energy by component."""
        return {
            name: EnergyAmount.sum(share.quantity for share in found) for name, found in self._by("component").items()
        }

    def idle(self) -> EnergyAmount:
        """Return the energy of nodes of the run on which no job worked."""
        return self._sum(lambda share: share.job is None)

    def timeline(
        self, node: str, at_most: int = TIMELINE_ENTRIES
    ) -> list[tuple[float, float, dict[str, float], dict[str | None, float]]]:
        """Return (started, ended, watts by component, joules by job), in at most so many entries that keep energy."""
        found = []
        for started, ended, watts, joules in (
            self.attributions[node].timeline(at_most) if node in self.attributions else ()
        ):
            by_name: dict[str | None, float] = defaultdict(float)
            for job, amount in joules.items():
                by_name[self.jobs[job].name if job >= 0 else None] += amount
            found.append((started, ended, watts, dict(by_name)))
        return found

    def joules_between(self, attempts: Iterable[str], started: Floats, ended: Floats) -> Floats:
        """Return what some attempts used on all nodes between two moments of Unix time, such as in training steps.

        NaN where none of them was there in nearly all of the time on all of its nodes.
        """
        names = set(attempts)
        joules, seconds = np.zeros(len(started)), np.zeros(len(started))
        for number in (number for number, job in enumerate(self.jobs) if job.name in names):
            least = np.full(len(started), np.inf)
            for attribution in (
                attribution for attribution in self.attributions.values() if number in attribution.numbers
            ):
                used, there = attribution.before(number, np.stack([started, ended]))
                joules += used[1] - used[0]
                least = np.minimum(least, there[1] - there[0])
            seconds = np.maximum(seconds, np.where(np.isinf(least), 0.0, least))
        return np.where(seconds >= COVERED_SHARE * (ended - started), joules, np.nan)

    def joules_per_period(self, moments: Sequence[float]) -> list[float]:
        """Return what everybody used, and idle nodes did, between each two of the moments of Unix time."""
        found = np.zeros(len(moments) - 1)
        for attribution in self.attributions.values():
            for channel in attribution.channels:
                found += np.diff(np.interp(moments, attribution.cuts.edges, attribution.cuts.running(channel.watts)))
        return [float(joules) for joules in found]

    def _by(self, field: str) -> dict[str, list[EnergyShare]]:
        found: dict[str, list[EnergyShare]] = defaultdict(list)
        for share in self.shares:
            found[getattr(share, field)].append(share)
        return {key: found[key] for key in sorted(found, key=str)}

    def as_json(self) -> dict[str, Any]:
        """Return what `report/energy.json` holds."""
        by_job = self._by("job")
        jobs = sorted(self.jobs, key=lambda job: job.name)
        steps = sorted({job.step for job in jobs if job.fate != "snakemake"})

        def told(some: Iterable[EnergyShare]) -> dict[str, Any]:
            some = list(some)
            meters = sorted({meter for share in some for meter in share.meters})
            return EnergyAmount.sum(share.quantity for share in some).as_json(meters)

        def of(wanted: Callable[[MeteredJob], bool]) -> dict[str, Any]:
            names = dict.fromkeys(job.name for job in jobs if wanted(job))
            return told(share for name in names for share in by_job.get(name, ()))

        def having(step: str) -> Callable[[MeteredJob], bool]:
            return lambda job: job.step == step and job.fate != "snakemake"

        dumps = {node: model.model_dump(mode="json") for node, model in sorted(self.models.items())}
        same = len({str(dump) for dump in dumps.values()}) == 1
        return {
            "total": told(self.shares),
            "finished": of(lambda job: job.fate == "finished"),
            "lost": of(lambda job: job.fate == "lost"),
            "idle": told(share for share in self.shares if share.job is None),
            "snakemake": of(lambda job: job.fate == "snakemake"),
            "steps": {step: of(having(step)) for step in steps},
            "jobs": {
                job.name: told(by_job.get(job.name, ()))
                | {"step": job.step, "instance": job.instance, "fate": job.fate}
                for job in jobs
            },
            "components": {name: told(some) for name, some in self._by("component").items()},
            "nodes": {name: told(some) for name, some in self._by("node").items()},
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
    """Return the attribution of a run: of its attempts, of Snakemake's processes, and of the meters read afterwards.

    `model` is the power model of all nodes, or by the node's name: a mapping or a function. A meter that knows no jobs,
    such as that of a power distribution unit, counts while the run is on its node.
    """
    problems = Problems()
    jobs = align_clocks(jobs, problems)
    machines = find_machine_names(jobs, problems)
    nodes = _NodeInputs(jobs, machines)
    taken: set[ExternalReading] = set()
    for one in external:
        if not all(map(math.isfinite, (one.started, one.ended))) or one.ended <= one.started:
            problems.add(f"{one.node}: a book of {_job_label(one)} ends before it starts and is left out")
        elif one in taken:
            problems.add(f"{one.node}: a book of {_job_label(one)} stands twice and counts once")
        else:
            taken.add(one)
            nodes.external[machines.get(one.node, one.node)].append(one)
    for number, job in enumerate(jobs):
        nodes.add(number, job, problems)
    add_unmetered_jobs(jobs, nodes.uses, nodes.external, problems)
    shares: dict[tuple[int, str, str], list[tuple[EnergyAmount, str]]] = defaultdict(list)
    attributions, used, seconds, covered = {}, {}, 0.0, 0.0
    for node in sorted(nodes.uses):
        used[node] = _select_model(model, node)
        attribution, there, seen = nodes.attribution(node, used[node], problems)
        attributions[node], seconds, covered = attribution, seconds + there, covered + seen
        for part in attribution.parts():
            shares[part.job, node, part.component].append((part.quantity, part.sentence))
    named = {None if number < 0 else jobs[number].name for number, _, _ in shares}
    nothing = [job.name for job in jobs if job.name not in named and not job.intervals]
    if nothing:
        problems.add(f"No energy is known of {format_names(nothing)}: no meter and no book tells of them")
    found = [
        EnergyShare(
            job=None if number < 0 else jobs[number].name,
            node=node,
            component=component,
            quantity=EnergyAmount.sum(quantity for quantity, _ in parts),
            meters=tuple(sorted({sentence for _, sentence in parts})),
        )
        for (number, node, component), parts in sorted(shares.items())
    ]
    return RunAttribution(jobs, found, problems.sentences(), seconds, covered, used, attributions)


def _job_label(one: ExternalReading) -> str:
    return f"job {one.job}" if one.job else "no job"


class _NodeInputs:
    """What is known of each node: uses, series of readings, and books."""

    def __init__(self, jobs: Sequence[MeteredJob], machines: Mapping[str, str]) -> None:
        self.jobs, self.machines = jobs, machines
        self.uses: dict[str, NodeUseTable] = defaultdict(NodeUseTable)
        self.external: dict[str, list[ExternalReading]] = defaultdict(list)
        self.streams: dict[str, dict[SeriesKey, list[RateSeries]]] = defaultdict(lambda: defaultdict(list))
        self.node_cpu: dict[str, list[RateSeries]] = defaultdict(list)

    def add(self, number: int, job: MeteredJob, problems: Problems) -> None:
        """Add what a job's meters wrote."""
        by_node: dict[str, list[MeterInterval]] = defaultdict(list)
        for line in job.intervals:
            by_node[line.node].append(line)
        last = max((line.ended for line in job.intervals), default=0.0)
        for name, lines in sorted(by_node.items()):
            lines = drop_impossible_intervals(job.name, name, lines, problems)
            if not lines:
                continue
            node = self.machines[name]
            uses, first = self.uses[node], len(self.uses[node].job)
            # A node of a job of Slurm is held until the job ends.
            was_held = job.slurm_job is not None and last - lines[-1].ended > LOST_METER_SECONDS
            last_seen = job.last_seen if lines[-1].ended == last else last if was_held else None
            add_intervals(uses, number, lines, job.name, node, problems, last_seen)
            columns = (np.array(column[first:]) for column in (uses.started, uses.ended, uses.node_cpu))
            started, ended, node_cpu = columns
            real = ~np.isnan(node_cpu)
            self.node_cpu[node].append(RateSeries(job.name, started[real], ended[real], node_cpu[real]))
            readings = ((line.started, line.ended, line.readings) for line in lines)
            for kind, stream in collect_rate_series(readings, node, job.name, problems).items():
                self.streams[node][kind].append(stream)

    def attribution(self, node: str, model: PowerModel, problems: Problems) -> tuple[NodeAttribution, float, float]:
        """Return the node's energy divided among its jobs, for how long they were there, and how long it was read."""
        uses, streams, external = self.uses[node], self.streams[node], self.external[node]
        known = {slurm_job_number(job.slurm_job) for job in self.jobs if job.slurm_job}
        mine = [one for one in external if one.job is not None and slurm_job_number(one.job) in known]
        for one in (one for one in external if one.job is None or one in mine):
            said = collect_rate_series([(one.started, one.ended, one.readings)], node, _job_label(one), problems)
            for kind, stream in said.items():
                streams[kind].append(stream)
        for kind in sorted(streams, key=str):
            what = f"{node}: {kind[2]} of {kind[0]} {kind[1]}".rstrip()
            streams[kind] = drop_stuck_counters(streams[kind], what, problems)
        streams = {kind: some for kind, some in streams.items() if some}
        ends: list[Floats] = [uses.floats("started"), uses.floats("ended")]
        ends += [moments for some in streams.values() for one in some for moments in (one.started, one.ended)]
        ends += [np.array([one.started, one.ended]) for one in external]
        cuts = TimeBins(ends)
        presence = NodeOccupancy(uses, cuts, self.jobs, mine)
        presence.explain(node, problems)
        chosen = choose_readings(cuts, streams, node, problems)
        power_model = NodePowerModel.of(model, node)
        power = NodePower(presence, cuts, chosen, power_model, cuts.painted(self.node_cpu[node]), node)
        there = float(cuts.seconds[presence.there].sum())
        attribution = NodeAttribution(node, presence, cuts, power.channels(problems), power_model)
        return attribution, there, power.covered_seconds()
