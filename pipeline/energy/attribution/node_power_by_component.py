"""Compute the power of a node in each time bin, by component: measured, or by the power model where nothing is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.energy.attribution.job_usage_intervals import Flags, Floats, Problems
from pipeline.energy.attribution.meter_choice import ChosenReading
from pipeline.energy.attribution.node_occupancy import NodeOccupancy, TimeBins
from pipeline.energy.power_model import GENERIC, UNREAD_SHARE, UNREAD_SOURCE, UNREAD_WATTS, PowerInterval, PowerModel
from pipeline.energy.readings import Label

ESTIMATED, SHARED = "power model, estimated", "time × power on a node shared with others"
NEGLIGIBLE_JOULES = 1.0
"""A smaller mismatch between two meters is not reported."""
MISMATCH_SHARE = 0.05
"""If a node's parts exceed the node by more than this share, the node's meter does not see all of it."""
BOARD_WATTS = (300.0, 40.0, 1400.0)
"""The power of an unknown board, with its least and most: from an idle board to the limit of the largest ones.

An estimate of this program; NVIDIA's data sheets allow 70 W for a T4, 700 W for an H100 and 1,400 W for a GB300.
"""

BY_CPU, BY_BOARD_USERS, BY_PROCESSOR_SHARE, BY_OWN_USE = "cpu", "users of boards", "share of processors", "own use"


class PowerError(NamedTuple):
    """The effect of a source of error on a power: `watts` × `low` and × `high` at the ends of its 95 % interval."""

    source: str
    watts: Floats
    low: float
    high: float


class PowerChannel(NamedTuple):
    """The watts of one component in each bin, with one label, divided among jobs in one way (`division`)."""

    component: str
    label: Label
    sentence: str
    watts: Floats
    errors: Sequence[PowerError]
    division: str


class NodePowerModel(NamedTuple):
    """A power model for arrays: watts, low and high for an idle node, a busy core and a gigabyte in use."""

    idle: PowerInterval
    core: PowerInterval
    gigabyte: PowerInterval
    source: str
    sentence: str
    is_generic: bool

    @classmethod
    def from_power_model(cls, model: PowerModel, node: str) -> NodePowerModel:
        """Return the model of a node.

        A fitted model errs for each node separately; a range of unknown values errs the same way on all nodes.
        """
        idle, core = model.watts(0.0), model.watts(1.0, idle_share=0.0)
        gigabyte = model.watts(0.0, idle_share=0.0, gigabytes=1.0)
        even = all(abs(high + low - 2 * watts) <= 1e-9 * watts for watts, low, high in (idle, core))
        source = f"power model, {node}" if even and idle.low > 0 else "power model"
        return cls(idle, core, gigabyte, source, f"{ESTIMATED}: {model.source}", model == GENERIC)

    def watts(self, share: Floats, busy: Floats, gigabytes: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the power, and its lower and upper end relative to it."""
        columns = zip(self.idle, self.core, self.gigabyte, strict=True)
        watts, low, high = (idle * share + core * busy + more * gigabytes for idle, core, more in columns)
        return watts, low - watts, high - watts


def _measured_channel(one: ChosenReading, where: Flags, division: str, component: str) -> PowerChannel:
    watts = np.where(where, one.watts, 0.0)
    error = PowerError(one.shared_error_key, watts, -one.accuracy.below, one.accuracy.above)
    return PowerChannel(component, one.label, one.sentence, watts, [error], division)


class NodePower:
    """The channels of a node, and the bins that a meter covers fully."""

    def __init__(
        self,
        occupancy: NodeOccupancy,
        bins: TimeBins,
        chosen: Sequence[ChosenReading],
        model: NodePowerModel,
        node_cpu: Floats,
        node: str,
    ) -> None:
        self.occupancy, self.bins, self.model, self.node = occupancy, bins, model, node
        self.chosen = chosen
        self.counted: Flags = occupancy.occupied & ~occupancy.shared
        self.of_node = [one for one in chosen if one.component == "node"]
        self.processors = [one for one in chosen if one.component in ("package", "dram")]
        self.boards = [one for one in chosen if one.component == "board"]
        self.node_watts, self.part_watts = self._sum_watts(self.of_node), self._sum_watts(self.processors)
        self.board_watts = self._sum_watts(self.boards)
        self.has_node: Flags = self.node_watts > 0
        self.has_package: Flags = self._sum_watts([one for one in chosen if one.component == "package"]) > 0
        self.busy = np.where(np.isnan(node_cpu) | occupancy.shared, occupancy.busy, node_cpu)
        self.board_rows = occupancy.rows_by_board()
        self.naming = {one.meter for one in self.boards if one.part in self.board_rows}
        self.missing_boards, self.hidden_boards = self._find_unread_boards()

    def _sum_watts(self, some: Sequence[ChosenReading]) -> Floats:
        return sum((one.watts for one in some), np.zeros(len(self.bins)))

    def _find_unread_boards(self) -> tuple[dict[str, Flags], dict[str, Flags]]:
        """Return the bins in which no meter reads a board that a job may use, by board.

        First those in which no reading includes the board. Then those in which the node's reading includes it, so that
        a job without the board would get a part of its energy.
        """
        others = self._sum_watts([one for one in self.boards if one.meter not in self.naming]) > 0
        in_node = self.has_node & self.counted
        missing, hidden = {}, {}
        for part, rows in self.board_rows.items():
            read = others | (self._sum_watts([one for one in self.boards if one.part == part]) > 0)
            unread = (self.occupancy.count_per_bin(rows) > 0) & ~read
            if (nowhere := unread & ~in_node).any():
                missing[part] = nowhere
            elsewhere = self.occupancy.count_per_bin(~rows & (self.occupancy.cpu > 0)) > 0
            if (inside := unread & in_node & elsewhere).any():
                hidden[part] = inside
        return missing, hidden

    def covered_seconds(self) -> float:
        """Return the seconds in which a meter measured the node, or all its components, without foreign work.

        Memory is required where any meter of this node has ever read it, boards where a job may use them.
        """
        dram = [one for one in self.chosen if one.component == "dram"]
        parts = self.has_package & ((self._sum_watts(dram) > 0) if dram else True)
        for missing in self.missing_boards.values():
            parts &= ~missing
        measured = self._sum_watts([one for one in self.of_node if one.label == "measured"]) > 0
        unsure = self._sum_watts([one for one in self.processors + self.boards if one.label != "measured"]) > 0
        return float(self.bins.seconds[self.counted & (measured | (parts & ~unsure & ~self.has_node))].sum())

    def channels(self, problems: Problems) -> list[PowerChannel]:
        """Return the power of the node by component, as far as it belongs to the run."""
        parts = [_measured_channel(one, self.counted, BY_CPU, one.component) for one in self.processors]
        missing = self._estimate_boards(self.missing_boards, np.full(len(self.bins), np.inf), problems)
        measured = self.part_watts + self.board_watts
        hidden = self._estimate_boards(self.hidden_boards, np.maximum(self.node_watts - measured, 0.0), problems)
        channels = [*parts, *self._board_channels(), *hidden]
        channels += self._measured_remainder(channels, hidden, problems) + self._modeled_remainder(parts)
        channels += [*missing, *self._channels_during_foreign_work()]
        return [channel for channel in channels if (channel.watts > 0).any()]

    def _board_channels(self) -> list[PowerChannel]:
        """Return the boards; unused ones count where the node is the run's alone.

        A board whose name no job knows is divided among all users of boards with other names.
        """
        channels = []
        for one in self.boards:
            users = self.board_rows.get(one.part)
            if one.meter in self.naming or not self.board_rows:
                division = f"board {one.part}"
                used: Flags = (
                    np.zeros(len(self.bins), dtype=bool) if users is None else self.occupancy.count_per_bin(users) > 0
                )
            else:
                division = BY_BOARD_USERS
                used = np.any([self.occupancy.count_per_bin(rows) > 0 for rows in self.board_rows.values()], axis=0)
            mine = self.occupancy.occupied & (used | (self.occupancy.own_machine & self.counted))
            channels.append(_measured_channel(one, mine, division, "board"))
        return channels

    def _measured_remainder(
        self, parts: Sequence[PowerChannel], hidden: Sequence[PowerChannel], problems: Problems
    ) -> list[PowerChannel]:
        """Return the reading of the node less its parts: `rest` next to processors' meters, else `node`.

        Args:
            parts: all channels of parts.
            hidden: those of them that are estimated within the node's reading.
            problems: gets a node's reading that is below its parts.
        """
        measured = self.part_watts + self.board_watts
        below = self.counted & self.has_node & (measured > self.node_watts)
        wrong = below & (measured > (1 + MISMATCH_SHARE) * self.node_watts)
        node, sums = self.bins.integral(self.node_watts, wrong), self.bins.integral(measured, wrong)
        if sums - node > NEGLIGIBLE_JOULES:
            names = " and ".join(sorted({one.meter for one in self.of_node if (one.watts[wrong] > 0).any()}))
            problems.add(
                f"{self.node}: {names} measured {node:,.0f} J of the node, less than its parts, {sums:,.0f} J: the "
                "parts count, as the node's meter does not see all of it",
                float(self.bins.seconds[wrong].sum()),
            )
        measured = measured + sum((channel.watts for channel in hidden), np.zeros(len(self.bins)))
        channels = []
        for component, where in (("rest", self.has_package), ("node", ~self.has_package)):
            for one in self.of_node:
                here = self.counted & where & ~below & (one.watts > 0)
                channel = _measured_channel(one, here, BY_CPU, component)
                less = [
                    PowerError(error.source, np.where(here, error.watts, 0.0), -error.low, -error.high)
                    for part in parts
                    for error in part.errors
                ]
                watts = np.where(here, np.maximum(one.watts - measured, 0.0), 0.0)
                channels.append(channel._replace(watts=watts, errors=[*channel.errors, *less]))
        return channels

    def _modeled_remainder(self, parts: Sequence[PowerChannel]) -> list[PowerChannel]:
        """Return the model's power of a node without a meter, less the parts that meters read.

        Of an unknown machine whose processors are read: `UNREAD_WATTS`, and `UNREAD_SHARE` of what is read.
        """
        gigabytes = self.occupancy.sum_row_values_per_bin(self.occupancy.gigabytes)
        modeled, below, above = self.model.watts(np.ones(len(self.bins)), self.busy, gigabytes)
        unread = self.counted & ~self.has_node
        if self.model.is_generic:
            read = self.part_watts + self.board_watts
            rest, low, high = (watts + share * read for watts, share in zip(UNREAD_WATTS, UNREAD_SHARE, strict=True))
            modeled = np.where(self.has_package, self.part_watts + rest, modeled)
            below, above = np.where(self.has_package, (low - rest, high - rest), (below, above))
        watts = np.where(unread, np.maximum(modeled - self.part_watts, 0.0), 0.0)
        low = np.maximum(below, -watts)
        high = np.maximum(modeled + above - self.part_watts, 0.0) - watts
        channels = []
        for component, where in (("rest", self.has_package), ("node", ~self.has_package)):
            here, source = unread & where, self.model.source
            inside = here & (watts > 0)
            is_share = self.model.is_generic and component == "rest"
            errors = [
                PowerError(source, np.where(here, low, 0.0), 1.0, 0.0),
                PowerError(source, np.where(here, high, 0.0), 0, 1),
                *(
                    PowerError(error.source, np.where(inside, error.watts, 0.0), -error.low, -error.high)
                    for part in ([] if is_share else parts)
                    for error in part.errors
                ),
            ]
            own = np.where(here, watts, 0.0)
            sentence = f"{ESTIMATED}: {UNREAD_SOURCE}" if is_share else self.model.sentence
            channels.append(PowerChannel(component, "estimated", sentence, own, errors, BY_CPU))
        return channels

    def _channels_during_foreign_work(self) -> list[PowerChannel]:
        """Return the run's share during foreign work: the model's power for its use, at most the node's reading."""
        occupancy, shared = self.occupancy, self.occupancy.shared
        if not shared.any():
            return []
        own = np.minimum(occupancy.sum_row_values_per_bin(occupancy.node_share), 1.0)
        none = np.zeros(len(self.bins))
        idle = self.model.watts(own, none, none)
        use = self.model.watts(none, occupancy.busy, occupancy.sum_row_values_per_bin(occupancy.gigabytes))
        limit = np.where(self.has_node, np.maximum(self.node_watts - self.board_watts, 0.0), np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.where(shared, np.nan_to_num(np.minimum(1.0, limit / (idle[0] + use[0])), nan=1.0), 0.0)
        sentence, source = f"{self.model.sentence}; {SHARED}", self.model.source
        channels = []
        for (watts, low, high), division in ((idle, BY_PROCESSOR_SHARE), (use, BY_OWN_USE)):
            errors = [PowerError(source, low * factor, 1.0, 0.0), PowerError(source, high * factor, 0.0, 1.0)]
            channels.append(PowerChannel("node", "estimated", sentence, watts * factor, errors, division))
        return channels

    def _estimate_boards(self, unread: Mapping[str, Flags], limit: Floats, problems: Problems) -> list[PowerChannel]:
        """Estimate unread boards by their own mean power, or by the range of all boards.

        Args:
            unread: the bins by board.
            limit: the most watts of all of them, what remains of a reading of the node.
            problems: gets a sentence for each board.
        """
        channels = []
        for part, here in unread.items():
            known = self._sum_watts([one for one in self.boards if one.part == part])
            seen = known[known > 0]
            if seen.size:
                mean = self.bins.integral(known) / float(self.bins.seconds[known > 0].sum())
                reach = max(float(seen.max()) - mean, mean - float(seen.min()), 0.25 * mean)
                ends, how = (mean, max(mean - reach, 0.0), mean + reach), "its mean power where it was read"
            else:
                ends, how = BOARD_WATTS, f"the range of all boards, {BOARD_WATTS[1]:g} to {BOARD_WATTS[2]:g} W"
            inside = " within the reading of the node" if np.isfinite(limit).all() else ""
            seconds = float(self.bins.seconds[here].sum())
            problems.add(f"{self.node}: board {part} was not read: estimated{inside} by {how}", seconds)
            watts, low, high = (np.where(here, np.minimum(end, limit), 0.0) for end in ends)
            source = f"boards not read, {self.node}"
            errors = [PowerError(source, watts - low, -1.0, 0.0), PowerError(source, high - watts, 0.0, 1.0)]
            sentence = f"board, estimated: {how}"
            channels.append(PowerChannel("board", "estimated", sentence, watts, errors, f"board {part}"))
            limit = limit - watts
        return channels
