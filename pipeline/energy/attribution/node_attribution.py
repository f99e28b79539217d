"""Divide the energy of one node among the jobs that were on it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pipeline.energy.attribution.node_power import (
    BY_BOARD_USERS,
    BY_CPU,
    BY_OWN_USE,
    BY_PROCESSOR_SHARE,
    NodePowerModel,
    PowerChannel,
)
from pipeline.energy.attribution.node_timeline import Flags, Floats, Integers, NodeOccupancy, TimeBins
from pipeline.energy.readings import Label

IDLE_JOB = -1
"""The number of nobody among the jobs: energy of a node on which no job worked."""


class ShareRows(NamedTuple):
    """Who shares: the job of each row, from when to when, and how much it weighs; rows of a job in their order."""

    job: Integers
    started: Floats
    ended: Floats
    weight: Floats
    first: Integers
    last: Integers


class Split(NamedTuple):
    """A division of a power: a row gets its weight × `density` of the watts of each cut in which it lies."""

    rows: ShareRows
    density: Floats


@dataclass(frozen=True)
class AttributedPart:
    """Energy of a job (None: idle) on a node, of one component, and by which meters it is known."""

    job: int
    component: str
    quantity: EnergyAmount
    sentence: str


def _inverse(weights: Floats, where: Flags) -> Floats:
    return np.divide(1.0, weights, out=np.zeros(len(weights)), where=where & (weights > 0))


class NodeAttribution:
    """The channels of a node's power with their division; all sums are differences of running sums."""

    def __init__(
        self,
        node: str,
        presence: NodeOccupancy,
        cuts: TimeBins,
        channels: Sequence[PowerChannel],
        model: NodePowerModel,
    ) -> None:
        self.node, self.cuts, self.channels = node, cuts, channels
        self._presence, self._model = presence, model
        self._ways = {way: self._splits(way) for way in sorted({channel.way for channel in channels})}

    def _rows(self, where: Flags, weight: Floats) -> ShareRows:
        of, chosen = self._presence, np.flatnonzero(where & (weight > 0))
        chosen = chosen[np.lexsort((of.started[chosen], of.job[chosen]))]
        times = (of.started[chosen], of.ended[chosen])
        return ShareRows(of.job[chosen], *times, weight[chosen], of.first[chosen], of.last[chosen])

    def _nobody(self, share: Floats) -> Split:
        edges, number = self.cuts.edges, len(self.cuts.edges) - 1
        rows = ShareRows(np.array([IDLE_JOB]), edges[:1], edges[-1:], np.ones(1), np.array([0]), np.array([number]))
        return Split(rows, share)

    def _splits(self, way: str) -> list[Split]:
        """Return how a channel's watts are divided; the weights × densities of the splits add up to 1 in each cut."""
        of = self._presence
        everybody, ones = np.ones(len(of.job), dtype=bool), np.ones(len(of.job))
        if way == BY_PROCESSOR_SHARE:
            return [Split(self._rows(everybody, of.node_share), _inverse(of.sum(of.node_share), of.there))]
        if way == BY_OWN_USE:
            weight = self._model.core[0] * of.cpu + self._model.gigabyte[0] * of.gigabytes
            return [Split(self._rows(everybody, weight), _inverse(of.sum(weight), of.there))]
        if way == BY_CPU:
            return self._by_cpu(of.there)
        holders = of.holders()
        if way == BY_BOARD_USERS:
            weight = np.sum([*holders.values()], axis=0).astype(float)
        else:
            weight = ones * holders.get(way.removeprefix("board "), np.zeros(len(ones)))
        had = of.count(weight > 0) > 0
        return [
            Split(self._rows(weight > 0, weight), _inverse(of.sum(weight), had)),
            self._nobody((~had).astype(float)),
        ]

    def _by_cpu(self, there: Flags) -> list[Split]:
        """Return the division by CPU time; where no job works, the holders share the node, or else it is idle.

        Snakemake shares with jobs that work. Beside none it gets the part of the node's processors that it kept busy.
        """
        of = self._presence
        ones, jobs = np.ones(len(of.job)), ~of.is_snakemake
        waiting = there & of.jobs_there & ~of.jobs_work & of.held
        alone = there & ~of.jobs_work & ~waiting
        own = np.where(alone, np.minimum(of.snakemake / of.processors, 1.0), 0.0)
        return [
            Split(self._rows(of.cpu > 0, of.cpu), _inverse(of.busy, there & of.jobs_work)),
            Split(self._rows(jobs, ones), _inverse(of.count(jobs).astype(float), waiting)),
            Split(self._rows(of.is_snakemake, of.cpu), _inverse(of.snakemake, alone) * own),
            self._nobody(np.where(alone, 1.0 - own, 0.0)),
        ]

    def _running_of(self, way: str, split: int, channel: int, error: int) -> Floats:
        """Return the running sum of a channel's power, or of one of its errors, per weight of a split."""
        of = self.channels[channel]
        watts = of.watts if error < 0 else of.errors[error].watts
        return self.cuts.running(watts * self._ways[way][split].density)

    @cached_property
    def _pieces(self) -> list[tuple[int, int, ShareRows]]:
        """The numbers of channel and split, and the rows, wherever anybody has anything."""
        return [
            (number, split, rows)
            for number, channel in enumerate(self.channels)
            for split, (rows, density) in enumerate(self._ways[channel.way])
            if len(rows.job) and (density > 0).any()
        ]

    def _joules(self, channel: int, split: int, edges: tuple[Floats, Floats], weight: Floats) -> Floats:
        running = self._running_of(self.channels[channel].way, split, channel, -1)
        first, last = (np.interp(moments, self.cuts.edges, running) for moments in edges)
        return weight * (last - first)

    def _of_jobs(self, channel: int, split: int, rows: ShareRows, error: int) -> Floats:
        """Return what each job has, or what an error does to it, nobody first."""
        running = self._running_of(self.channels[channel].way, split, channel, error)
        shares = rows.weight * (running[rows.last] - running[rows.first])
        return np.bincount(rows.job + 1, shares).astype(float)

    def parts(self) -> list[AttributedPart]:
        """Return what each job, and nobody, has of each channel."""
        found = []
        for number, split, rows in self._pieces:
            channel, sums = self.channels[number], self._of_jobs(number, split, rows, -1)
            errors = [self._of_jobs(number, split, rows, error) for error in range(len(channel.errors))]
            for job in np.flatnonzero(sums != 0):
                quantity = self._quantity(channel, float(sums[job]), [float(error[job]) for error in errors])
                found.append(AttributedPart(int(job) - 1, channel.component, quantity, channel.sentence))
        return found

    @staticmethod
    def _quantity(channel: PowerChannel, joules: float, errors: Sequence[float]) -> EnergyAmount:
        sums: dict[str, tuple[float, float]] = {}
        for error, amount in zip(channel.errors, errors, strict=True):
            low, high = sums.get(error.source, (0.0, 0.0))
            sums[error.source] = (low + amount * error.low, high + amount * error.high)
        return EnergyAmount.of(channel.label, joules, sums)

    @cached_property
    def numbers(self) -> set[int]:
        """The jobs that were on the node."""
        return set(np.unique(self._presence.job).tolist())

    def before(self, job: int, moments: Floats) -> tuple[Floats, Floats]:
        """Return how many joules a job had used before each moment, and for how many seconds it was there."""
        watts = np.zeros(len(self.cuts))
        for number, split, rows in self._pieces:
            mine = slice(*np.searchsorted(rows.job, [job, job + 1]))
            weight = self.cuts.sum(rows.first[mine], rows.last[mine], rows.weight[mine])
            channel = self.channels[number]
            watts += channel.watts * self._ways[channel.way][split].density * weight
        there = self._presence.count(self._presence.job == job) > 0
        joules, seconds = (np.interp(moments, self.cuts.edges, self.cuts.running(of)) for of in (watts, there))
        return joules, seconds

    def timeline(self, at_most: int) -> list[tuple[float, float, dict[str, float], dict[int, float]]]:
        """Return (started, ended, watts by component, joules by job) of at most so many times; energy is kept."""
        edges = self.cuts.edges
        grid = np.linspace(edges[0], edges[-1], at_most + 1)
        chosen = np.unique(np.searchsorted(edges, grid)) if len(edges) > at_most + 1 else np.arange(len(edges))
        moments = edges[chosen]
        joules: list[dict[int, float]] = [defaultdict(float) for _ in moments[1:]]
        watts: list[dict[str, float]] = [defaultdict(float) for _ in moments[1:]]
        for channel in self.channels:
            for number, amount in enumerate(np.diff(self.cuts.running(channel.watts)[chosen])):
                if amount > 0:
                    watts[number][channel.component] += amount / (moments[number + 1] - moments[number])
        for number, split, rows in self._pieces:
            first = np.searchsorted(moments, rows.started, side="right") - 1
            last = np.searchsorted(moments, rows.ended)
            times = last - first
            row = np.repeat(np.arange(len(times)), times)
            bins = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times) + first[row]
            ends = (np.maximum(rows.started[row], moments[bins]), np.minimum(rows.ended[row], moments[bins + 1]))
            amounts = self._joules(number, split, ends, rows.weight[row])
            size = int(self._presence.job.max()) + 2
            keys, places = np.unique(bins * size + rows.job[row] + 1, return_inverse=True)
            for key, amount in zip(keys.tolist(), np.bincount(places, amounts).tolist(), strict=True):
                if amount > 0:
                    joules[key // size][key % size - 1] += amount
        return [
            (float(moments[number]), float(moments[number + 1]), dict(watts[number]), dict(joules[number]))
            for number in range(len(moments) - 1)
            if watts[number]
        ]


# An amount of energy with its label and its 95 % interval, so that sums of such amounts stay honest.
#
# An interval is the sum of what each source of error does to it, such as the calibration of a meter or the power
# model of one node. What one source does to several amounts adds up linearly, with its sign; sources are independent
# of one another and add up in quadrature (Guide to the expression of uncertainty in measurement, JCGM 100:2008, 5.1
# and 5.2).


@dataclass(frozen=True)
class EnergyAmount:
    """Joules by label, and what each source of error may add to their sum.

    `errors` says, for each source, by how many joules the sum changes where that source stands at the lower and at the
    upper end of its own 95 % interval.
    """

    measured: float = 0.0
    estimated: float = 0.0
    stated: float = 0.0
    errors: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, label: Label, joules: float, errors: Mapping[str, tuple[float, float]] | None = None) -> EnergyAmount:
        """Return so many joules with one label."""
        return cls(**{label: joules}, errors=errors or {})

    @classmethod
    def sum(cls, quantities: Iterable[EnergyAmount]) -> EnergyAmount:
        """Return the sum; labels stay apart, and errors of one source add up linearly."""
        measured = estimated = stated = 0.0
        errors: dict[str, tuple[float, float]] = {}
        for quantity in quantities:
            measured += quantity.measured
            estimated += quantity.estimated
            stated += quantity.stated
            for source, (low, high) in quantity.errors.items():
                before = errors.get(source, (0.0, 0.0))
                errors[source] = (before[0] + low, before[1] + high)
        return cls(measured, estimated, stated, errors)

    def __add__(self, other: EnergyAmount) -> EnergyAmount:
        return EnergyAmount.sum((self, other))

    def times(self, factor: float) -> EnergyAmount:
        """Return it multiplied by a number that is exact, such as a share or a PUE."""
        errors = {source: (low * factor, high * factor) for source, (low, high) in self.errors.items()}
        return EnergyAmount(self.measured * factor, self.estimated * factor, self.stated * factor, errors)

    @property
    def joules(self) -> float:
        """The sum of all labels, in joules."""
        return self.measured + self.estimated + self.stated

    @property
    def low(self) -> float:
        """The lower end of the 95 % interval, in joules."""
        return max(0.0, self.joules - math.hypot(*(min(0.0, *ends) for ends in self.errors.values())))

    @property
    def high(self) -> float:
        """The upper end of the 95 % interval, in joules."""
        return self.joules + math.hypot(*(max(0.0, *ends) for ends in self.errors.values()))

    def as_json(self, meters: Sequence[str] = ()) -> dict[str, Any]:
        """Return it as the report's JSON has it, in millijoules' precision."""
        return {
            "joules": round(self.joules, 3),
            "low_joules": round(self.low, 3),
            "high_joules": round(self.high, 3),
            "measured_joules": round(self.measured, 3),
            "estimated_joules": round(self.estimated, 3),
            "stated_joules": round(self.stated, 3),
            "meters": [*meters],
        }
