"""Divide the energy of one node among the jobs that were on it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pipeline.energy.attribution.job_usage_intervals import Flags, Floats, Integers
from pipeline.energy.attribution.node_occupancy import NodeOccupancy, TimeBins
from pipeline.energy.attribution.node_power_by_component import (
    BY_BOARD_USERS,
    BY_CPU,
    BY_OWN_USE,
    BY_PROCESSOR_SHARE,
    NodePowerModel,
    PowerChannel,
    PowerError,
)
from pipeline.energy.readings import Label

IDLE_JOB = -1
"""The job number for energy of a node on which no job worked."""


class ShareRows(NamedTuple):
    """The rows that share a power: job, time, weight and bins of each; rows of one job are in order."""

    job: Integers
    started: Floats
    ended: Floats
    weight: Floats
    first: Integers
    last: Integers


class Split(NamedTuple):
    """A division of a power: a row gets its weight × `density` of the watts of each of its bins."""

    rows: ShareRows
    density: Floats


@dataclass(frozen=True)
class AttributedPart:
    """The energy of a job (IDLE_JOB: of none) on a node, of one component, with the sentence of its meter."""

    job: int
    component: str
    quantity: EnergyAmount
    sentence: str


def _safe_reciprocal(weights: Floats, where: Flags) -> Floats:
    return np.divide(1.0, weights, out=np.zeros(len(weights)), where=where & (weights > 0))


class NodeAttribution:
    """The channels of a node's power and their division; sums are differences of cumulative sums."""

    def __init__(
        self,
        node: str,
        occupancy: NodeOccupancy,
        bins: TimeBins,
        channels: Sequence[PowerChannel],
        model: NodePowerModel,
    ) -> None:
        self.node, self.bins, self.channels = node, bins, channels
        self._occupancy, self._model = occupancy, model
        self._splits = {name: self._make_splits(name) for name in sorted({channel.division for channel in channels})}

    def _share_rows(self, where: Flags, weight: Floats) -> ShareRows:
        of, chosen = self._occupancy, np.flatnonzero(where & (weight > 0))
        chosen = chosen[np.lexsort((of.started[chosen], of.job[chosen]))]
        times = (of.started[chosen], of.ended[chosen])
        return ShareRows(of.job[chosen], *times, weight[chosen], of.first[chosen], of.last[chosen])

    def _assign_to_idle(self, share: Floats) -> Split:
        edges, number = self.bins.edges, len(self.bins.edges) - 1
        rows = ShareRows(np.array([IDLE_JOB]), edges[:1], edges[-1:], np.ones(1), np.array([0]), np.array([number]))
        return Split(rows, share)

    def _make_splits(self, division: str) -> list[Split]:
        """Return the splits of a division; their weights × densities add up to 1 in each bin."""
        of = self._occupancy
        everybody, ones = np.ones(len(of.job), dtype=bool), np.ones(len(of.job))
        if division == BY_PROCESSOR_SHARE:
            return [
                Split(
                    self._share_rows(everybody, of.node_share),
                    _safe_reciprocal(of.sum_row_values_per_bin(of.node_share), of.occupied),
                )
            ]
        if division == BY_OWN_USE:
            weight = self._model.core[0] * of.cpu + self._model.gigabyte[0] * of.gigabytes
            return [
                Split(
                    self._share_rows(everybody, weight),
                    _safe_reciprocal(of.sum_row_values_per_bin(weight), of.occupied),
                )
            ]
        if division == BY_CPU:
            return self._split_by_cpu()
        users = of.rows_by_board()
        if division == BY_BOARD_USERS:
            weight = np.sum([*users.values()], axis=0).astype(float)
        else:
            weight = ones * users.get(division.removeprefix("board "), np.zeros(len(ones)))
        used = of.count_per_bin(weight > 0) > 0
        return [
            Split(self._share_rows(weight > 0, weight), _safe_reciprocal(of.sum_row_values_per_bin(weight), used)),
            self._assign_to_idle((~used).astype(float)),
        ]

    def _split_by_cpu(self) -> list[Split]:
        """Divide by CPU time; without working jobs, those that have the whole node share it, or else it is idle.

        Snakemake shares with working jobs. Without any it gets the share of the node's processors that it kept busy.
        """
        of = self._occupancy
        ones, jobs = np.ones(len(of.job)), ~of.is_snakemake
        waiting = of.occupied & of.has_jobs & ~of.has_working_jobs & of.allocated
        alone = of.occupied & ~of.has_working_jobs & ~waiting
        own = np.where(alone, np.minimum(of.snakemake / of.processors, 1.0), 0.0)
        return [
            Split(self._share_rows(of.cpu > 0, of.cpu), _safe_reciprocal(of.busy, of.occupied & of.has_working_jobs)),
            Split(self._share_rows(jobs, ones), _safe_reciprocal(of.count_per_bin(jobs).astype(float), waiting)),
            Split(self._share_rows(of.is_snakemake, of.cpu), _safe_reciprocal(of.snakemake, alone) * own),
            self._assign_to_idle(np.where(alone, 1.0 - own, 0.0)),
        ]

    def _cumulative_joules_per_weight(
        self, split: int, channel: PowerChannel, error: PowerError | None = None
    ) -> Floats:
        """Return the cumulative sum of a channel's power, or of one of its errors, per weight of a split."""
        watts = channel.watts if error is None else error.watts
        return self.bins.cumulative_integral(watts * self._splits[channel.division][split].density)

    @cached_property
    def _nonempty_splits(self) -> list[tuple[PowerChannel, int, ShareRows]]:
        """Each channel with the number and the rows of each split that gives anybody anything."""
        return [
            (channel, split, rows)
            for channel in self.channels
            for split, (rows, density) in enumerate(self._splits[channel.division])
            if len(rows.job) and (density > 0).any()
        ]

    def attribute_energy(self) -> list[AttributedPart]:
        """Return the energy of each job, and of none, from each channel."""
        parts = []
        for channel, split, rows in self._nonempty_splits:

            def sum_by_job(cumulative: Floats, rows: ShareRows = rows) -> Floats:
                shares = rows.weight * (cumulative[rows.last] - cumulative[rows.first])
                return np.bincount(rows.job + 1, shares).astype(float)

            sums = sum_by_job(self._cumulative_joules_per_weight(split, channel))
            errors = [sum_by_job(self._cumulative_joules_per_weight(split, channel, error)) for error in channel.errors]
            for job in np.flatnonzero(sums != 0):
                quantity = self._quantity(channel, float(sums[job]), [float(error[job]) for error in errors])
                parts.append(AttributedPart(int(job) - 1, channel.component, quantity, channel.sentence))
        return parts

    @staticmethod
    def _quantity(channel: PowerChannel, joules: float, errors: Sequence[float]) -> EnergyAmount:
        sums: dict[str, tuple[float, float]] = {}
        for error, amount in zip(channel.errors, errors, strict=True):
            low, high = sums.get(error.source, (0.0, 0.0))
            sums[error.source] = (low + amount * error.low, high + amount * error.high)
        return EnergyAmount.from_joules(channel.label, joules, sums)

    @cached_property
    def indices_of_present_jobs(self) -> set[int]:
        return set(np.unique(self._occupancy.job).tolist())

    def cumulative_use(self, job: int, moments: Floats) -> tuple[Floats, Floats]:
        """Return the joules that a job had used before each time, and the seconds that it had been there."""
        watts = np.zeros(len(self.bins))
        for channel, split, rows in self._nonempty_splits:
            mine = slice(*np.searchsorted(rows.job, [job, job + 1]))
            weight = self.bins.sum_range_values_per_bin(rows.first[mine], rows.last[mine], rows.weight[mine])
            watts += channel.watts * self._splits[channel.division][split].density * weight
        present = self._occupancy.count_per_bin(self._occupancy.job == job) > 0
        joules, seconds = (
            np.interp(moments, self.bins.edges, self.bins.cumulative_integral(of)) for of in (watts, present)
        )
        return joules, seconds

    def timeline(self, at_most: int) -> list[tuple[float, float, dict[str, float], dict[int, float]]]:
        """Return at most so many entries (started, ended, watts by component, joules by job) with all the energy."""
        edges = self.bins.edges
        grid = np.linspace(edges[0], edges[-1], at_most + 1)
        chosen = np.unique(np.searchsorted(edges, grid)) if len(edges) > at_most + 1 else np.arange(len(edges))
        moments = edges[chosen]
        joules: list[dict[int, float]] = [defaultdict(float) for _ in moments[1:]]
        watts: list[dict[str, float]] = [defaultdict(float) for _ in moments[1:]]
        for channel in self.channels:
            for number, amount in enumerate(np.diff(self.bins.cumulative_integral(channel.watts)[chosen])):
                if amount > 0:
                    watts[number][channel.component] += amount / (moments[number + 1] - moments[number])
        size = int(self._occupancy.job.max()) + 2
        for channel, split, rows in self._nonempty_splits:
            first = np.searchsorted(moments, rows.started, side="right") - 1
            times = np.searchsorted(moments, rows.ended) - first
            row = np.repeat(np.arange(len(times)), times)
            entry = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times) + first[row]
            ends = (np.maximum(rows.started[row], moments[entry]), np.minimum(rows.ended[row], moments[entry + 1]))
            cumulative = self._cumulative_joules_per_weight(split, channel)
            before, after = (np.interp(some, edges, cumulative) for some in ends)
            amounts = rows.weight[row] * (after - before)
            keys, places = np.unique(entry * size + rows.job[row] + 1, return_inverse=True)
            for key, amount in zip(keys.tolist(), np.bincount(places, amounts).tolist(), strict=True):
                if amount > 0:
                    joules[key // size][key % size - 1] += amount
        return [
            (float(moments[number]), float(moments[number + 1]), dict(watts[number]), dict(joules[number]))
            for number in range(len(moments) - 1)
            if watts[number]
        ]


# An amount of energy with its label and its 95 % interval, which stays correct in sums.
#
# The interval is the sum of the effects of each source of error, such as a meter's calibration or the power model of a
# node. The effects of one source on several amounts add up linearly, with their sign; independent sources add up in
# quadrature (Guide to the expression of uncertainty in measurement, JCGM 100:2008, 5.1 and 5.2).


@dataclass(frozen=True)
class EnergyAmount:
    """Joules by label, and the effect of each source of error on their sum.

    Attributes:
        errors: by source, the change of the sum at the lower and at the upper end of that source's 95 % interval.
    """

    measured: float = 0.0
    estimated: float = 0.0
    stated: float = 0.0
    errors: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def from_joules(cls, label: Label, joules: float, errors: Mapping[str, tuple[float, float]]) -> EnergyAmount:
        return cls(**{label: joules}, errors=errors)

    @classmethod
    def sum(cls, amounts: Iterable[EnergyAmount]) -> EnergyAmount:
        """Return the sum by label; errors of one source add up linearly."""
        measured = estimated = stated = 0.0
        errors: dict[str, tuple[float, float]] = {}
        for one in amounts:
            measured += one.measured
            estimated += one.estimated
            stated += one.stated
            for source, (low, high) in one.errors.items():
                before = errors.get(source, (0.0, 0.0))
                errors[source] = (before[0] + low, before[1] + high)
        return cls(measured, estimated, stated, errors)

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
        """Return the entry of the report's JSON, to a millijoule."""
        return {
            "joules": round(self.joules, 3),
            "low_joules": round(self.low, 3),
            "high_joules": round(self.high, 3),
            "measured_joules": round(self.measured, 3),
            "estimated_joules": round(self.estimated, 3),
            "stated_joules": round(self.stated, 3),
            "meters": [*meters],
        }
