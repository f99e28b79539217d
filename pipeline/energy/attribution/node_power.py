"""Compute the power of a node in each cut, by component: measured, or by the power model where nothing is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.energy.attribution.job_use import Problems
from pipeline.energy.attribution.meter_choice import ChosenReading
from pipeline.energy.attribution.node_timeline import Flags, Floats, NodeOccupancy, TimeBins
from pipeline.energy.power_model import PowerInterval, PowerModel
from pipeline.energy.readings import Label

NEGLIGIBLE_JOULES = 1.0
"""Meters of a moment that differ by no more are nothing to tell."""
MISMATCH_SHARE = 0.05
"""A node whose parts say more than it does, by more than this share, has a meter that does not see all of it."""
BOARD_WATTS = (300.0, 40.0, 1400.0)
"""A board of which nothing is known, with its least and most: from an idle board to the limit of the largest ones.

A careful figure of this program; NVIDIA's data sheets allow 70 W for a T4, 700 W for an H100 and 1,400 W for a GB300.
"""

BY_CPU, BY_BOARD_USERS, BY_PROCESSOR_SHARE, BY_OWN_USE = "cpu", "holders of boards", "idle share", "own use"


class PowerError(NamedTuple):
    """What a source of error does to a power: `watts` times `low` and `high` at the ends of its 95 % interval."""

    source: str
    watts: Floats
    low: float
    high: float


class PowerChannel(NamedTuple):
    """Watts of one kind in each cut, known in one way, and divided among jobs in one way."""

    component: str
    label: Label
    sentence: str
    watts: Floats
    errors: Sequence[PowerError]
    way: str


class NodePowerModel(NamedTuple):
    """A power model for arrays: watts, low and high per node's share of idle, per busy core and per gigabyte."""

    idle: PowerInterval
    core: PowerInterval
    gigabyte: PowerInterval
    source: str
    sentence: str

    @classmethod
    def of(cls, model: PowerModel, node: str) -> NodePowerModel:
        """Return the model of a node.

        The error of a fitted model is one of each node. A range of what is not known is the same mistake on all nodes.
        """
        idle, core = model.watts(0.0), model.watts(1.0, idle_share=0.0)
        gigabyte = model.watts(0.0, idle_share=0.0, gigabytes=1.0)
        even = all(abs(high + low - 2 * watts) <= 1e-9 * watts for watts, low, high in (idle, core))
        source = f"power model, {node}" if even and idle.low > 0 else "power model"
        return cls(idle, core, gigabyte, source, f"power model, estimated: {model.source}")

    def watts(self, share: Floats, busy: Floats, gigabytes: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the power and what may be missing (below zero) or too much of it."""
        columns = zip(self.idle, self.core, self.gigabyte, strict=True)
        watts, low, high = (idle * share + core * busy + more * gigabytes for idle, core, more in columns)
        return watts, low - watts, high - watts


def _measured_channel(one: ChosenReading, where: Flags, way: str, component: str) -> PowerChannel:
    watts = np.where(where, one.watts, 0.0)
    error = PowerError(one.source, watts, -one.accuracy.below, one.accuracy.above)
    return PowerChannel(component, one.label, one.sentence, watts, [error], way)


class NodePower:
    """The channels of a node, and which cuts a meter covers wholly."""

    def __init__(
        self,
        presence: NodeOccupancy,
        cuts: TimeBins,
        chosen: Sequence[ChosenReading],
        model: NodePowerModel,
        node_cpu: Floats,
        node: str,
    ) -> None:
        self.presence, self.cuts, self.model, self.node = presence, cuts, model, node
        self.chosen = chosen
        self.counted: Flags = presence.there & ~presence.contaminated
        self.of_node = [one for one in chosen if one.component == "node"]
        self.processors = [one for one in chosen if one.component in ("package", "dram")]
        self.boards = [one for one in chosen if one.component == "board"]
        self.node_watts, self.part_watts = self._sum(self.of_node), self._sum(self.processors)
        self.board_watts = self._sum(self.boards)
        self.has_node: Flags = self.node_watts > 0
        self.has_package: Flags = self._sum([one for one in chosen if one.component == "package"]) > 0
        self.busy = np.where(np.isnan(node_cpu) | presence.contaminated, presence.busy, node_cpu)
        self.held_boards = presence.holders()
        self.naming = {one.meter for one in self.boards if one.part in self.held_boards}
        self.missing_boards, self.hidden_boards = self._unread_boards()

    def _sum(self, some: Sequence[ChosenReading]) -> Floats:
        return sum((one.watts for one in some), np.zeros(len(self.cuts)))

    def way(self, one: ChosenReading) -> str:
        """Return how the energy of a board is divided: by who had it, or among all who had boards of other names."""
        return f"board {one.part}" if one.meter in self.naming or not self.held_boards else BY_BOARD_USERS

    def _unread_boards(self) -> tuple[dict[str, Flags], dict[str, Flags]]:
        """Return, for each board that a job had, the cuts in which nothing tells its energy.

        And those in which the reading of the node holds it, of which others, who did not have the board, would get a
        part.
        """
        others = self._sum([one for one in self.boards if one.meter not in self.naming]) > 0
        in_node = self.has_node & self.counted
        missing, hidden = {}, {}
        for part, rows in self.held_boards.items():
            told = others | (self._sum([one for one in self.boards if one.part == part]) > 0)
            unread = (self.presence.count(rows) > 0) & ~told
            if (nowhere := unread & ~in_node).any():
                missing[part] = nowhere
            elsewhere = self.presence.count(~rows & (self.presence.cpu > 0)) > 0
            if (inside := unread & in_node & elsewhere).any():
                hidden[part] = inside
        return missing, hidden

    def covered_seconds(self) -> float:
        """Return for how many seconds a meter read the node, or all components that its meters know, beside no other.

        Memory counts among them where any meter of this node has ever read it, boards where a job had them.
        """
        dram = [one for one in self.chosen if one.component == "dram"]
        parts = self.has_package & ((self._sum(dram) > 0) if dram else True)
        for missing in self.missing_boards.values():
            parts &= ~missing
        measured = self._sum([one for one in self.of_node if one.label == "measured"]) > 0
        unsure = self._sum([one for one in self.processors + self.boards if one.label != "measured"]) > 0
        return float(self.cuts.seconds[self.counted & (measured | (parts & ~unsure & ~self.has_node))].sum())

    def channels(self, problems: Problems) -> list[PowerChannel]:
        """Return the power of the node by component, as far as it is the run's."""
        parts = [_measured_channel(one, self.counted, BY_CPU, one.component) for one in self.processors]
        missing = self._guessed_boards(self.missing_boards, np.full(len(self.cuts), np.inf), problems)
        told = self.part_watts + self.board_watts
        hidden = self._guessed_boards(self.hidden_boards, np.maximum(self.node_watts - told, 0.0), problems)
        found = [*parts, *self._board_channels(), *hidden]
        found += self._rest_of_measured(found, hidden, problems) + self._rest_by_model(parts)
        found += [*missing, *self._beside_strangers()]
        return [channel for channel in found if (channel.watts > 0).any()]

    def _board_channels(self) -> list[PowerChannel]:
        """Return the boards; those that nobody of the run had count where the node is the run's alone."""
        found = []
        for one in self.boards:
            way = self.way(one)
            holders = self.held_boards.get(one.part)
            if way == BY_BOARD_USERS:
                held: Flags = np.any([self.presence.count(rows) > 0 for rows in self.held_boards.values()], axis=0)
            else:
                held = self.presence.count(holders) > 0 if holders is not None else np.zeros(len(self.cuts), dtype=bool)
            mine = self.presence.there & (held | (self.presence.own_machine & self.counted))
            found.append(_measured_channel(one, mine, way, "board"))
        return found

    def _rest_of_measured(
        self, parts: Sequence[PowerChannel], hidden: Sequence[PowerChannel], problems: Problems
    ) -> list[PowerChannel]:
        """Return what a node's meter says beyond its parts; `node` where it is not told apart from the processors.

        `hidden` are those among the parts that are estimated, within the node's reading.
        """
        told = self.part_watts + self.board_watts
        below = self.counted & self.has_node & (told > self.node_watts)
        wrong = below & (told > (1 + MISMATCH_SHARE) * self.node_watts)
        node, sums = self.cuts.integral(self.node_watts, wrong), self.cuts.integral(told, wrong)
        if sums - node > NEGLIGIBLE_JOULES:
            names = " and ".join(sorted({one.meter for one in self.of_node if (one.watts[wrong] > 0).any()}))
            problems.add(
                f"{self.node}: {names} says {node:,.0f} J of the node and less than its parts, {sums:,.0f} J: the "
                "parts count there, as the node's meter does not see all of it",
                float(self.cuts.seconds[wrong].sum()),
            )
        told = told + sum((channel.watts for channel in hidden), np.zeros(len(self.cuts)))
        found = []
        for component, where in (("rest", self.has_package), ("node", ~self.has_package)):
            for one in self.of_node:
                here = self.counted & where & ~below & (one.watts > 0)
                measured = _measured_channel(one, here, BY_CPU, component)
                less = [
                    PowerError(error.source, np.where(here, error.watts, 0.0), -error.low, -error.high)
                    for part in parts
                    for error in part.errors
                ]
                watts = np.where(here, np.maximum(one.watts - told, 0.0), 0.0)
                found.append(measured._replace(watts=watts, errors=[*measured.errors, *less]))
        return found

    def _rest_by_model(self, parts: Sequence[PowerChannel]) -> list[PowerChannel]:
        """Return what the model says of a node that no meter reads, beyond the parts that meters do read."""
        gigabytes = self.presence.sum(self.presence.gigabytes)
        modelled, below, above = self.model.watts(np.ones(len(self.cuts)), self.busy, gigabytes)
        unread = self.counted & ~self.has_node
        watts = np.where(unread, np.maximum(modelled - self.part_watts, 0.0), 0.0)
        low = np.maximum(below, -watts)
        high = np.maximum(modelled + above - self.part_watts, 0.0) - watts
        found = []
        for component, where in (("rest", self.has_package), ("node", ~self.has_package)):
            here, source = unread & where, self.model.source
            errors = [
                PowerError(source, np.where(here, low, 0.0), 1.0, 0.0),
                PowerError(source, np.where(here, high, 0.0), 0, 1),
            ]
            inside = here & (watts > 0)
            for part in parts:
                for error in part.errors:
                    errors.append(PowerError(error.source, np.where(inside, error.watts, 0.0), -error.low, -error.high))
            sums = np.where(here, watts, 0.0)
            found.append(PowerChannel(component, "estimated", self.model.sentence, sums, errors, BY_CPU))
        return found

    def _beside_strangers(self) -> list[PowerChannel]:
        """Return the run's share where others worked on the node: the model's for what it used, at most the reading."""
        presence, beside = self.presence, self.presence.contaminated
        if not beside.any():
            return []
        own = np.minimum(presence.sum(presence.node_share), 1.0)
        none = np.zeros(len(self.cuts))
        idle = self.model.watts(own, none, none)
        use = self.model.watts(none, presence.busy, presence.sum(presence.gigabytes))
        limit = np.where(self.has_node, np.maximum(self.node_watts - self.board_watts, 0.0), np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.where(beside, np.nan_to_num(np.minimum(1.0, limit / (idle[0] + use[0])), nan=1.0), 0.0)
        sentence = f"{self.model.sentence}; time × power on a node shared with others"
        found = []
        for (watts, low, high), way in ((idle, BY_PROCESSOR_SHARE), (use, BY_OWN_USE)):
            source = self.model.source
            errors = [PowerError(source, low * factor, 1.0, 0.0), PowerError(source, high * factor, 0.0, 1.0)]
            found.append(PowerChannel("node", "estimated", sentence, watts * factor, errors, way))
        return found

    def _guessed_boards(self, unread: Mapping[str, Flags], limit: Floats, problems: Problems) -> list[PowerChannel]:
        """Return the boards that jobs had and nothing read: as much as else on this node, or what boards may use.

        `limit` is how many watts they may be in all: what is left of a reading of the node.
        """
        found = []
        for part, here in unread.items():
            told = self._sum([one for one in self.boards if one.part == part])
            seen = told[told > 0]
            if seen.size:
                mean = self.cuts.integral(told) / float(self.cuts.seconds[told > 0].sum())
                spread = max(float(seen.max()) - mean, mean - float(seen.min()), 0.25 * mean)
                ends, how = (mean, max(mean - spread, 0.0), mean + spread), "its mean power where it was read"
            else:
                ends, how = BOARD_WATTS, f"a board that nothing is known of, {BOARD_WATTS[1]:g} to {BOARD_WATTS[2]:g} W"
            inside = " within what was read of the node" if np.isfinite(limit).all() else ""
            seconds = float(self.cuts.seconds[here].sum())
            problems.add(f"{self.node}: board {part} was not read: estimated{inside} by {how}", seconds)
            watts, low, high = (np.where(here, np.minimum(end, limit), 0.0) for end in ends)
            source = f"boards not read, {self.node}"
            errors = [PowerError(source, watts - low, -1.0, 0.0), PowerError(source, high - watts, 0.0, 1.0)]
            found.append(PowerChannel("board", "estimated", f"board, estimated: {how}", watts, errors, f"board {part}"))
            limit = limit - watts
        return found
