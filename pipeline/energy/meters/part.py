"""One part of a node that a meter watches: joules between two takes, or the sentence why they are not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from pipeline.energy.readings import MOST_WATTS, Component, Reading

SLACK = 1.2  # by which a true figure may be above the limit that its hardware states
STILL_SECONDS = 0.5  # from which on a counter that has not moved at all is one that stands still
SHORTEST_SECONDS = 0.2  # counters are renewed so seldom: in less time they may show what was used in this
STAMP_SECONDS = 2.0  # by which the stamps of a counter may go on otherwise than the clock between two looks


class Meter(Protocol):
    """Something that tells joules of the node; times are seconds of Unix time that never jump."""

    @property
    def gpus(self) -> Sequence[str]:
        """The part that tells the energy of each GPU, in the driver's order: the same for two dies of a card."""

    def read(self, now: float) -> None:
        """Look at it, between two takes."""

    def take(self, now: float) -> list[Reading]:
        """Return the readings since the last call."""


class Part:
    """What one part has used since the last take.

    What cannot be trusted makes the whole of an interval unknown, and says why: a counter that was reset, could not be
    read or stands still, and more than the hardware can use.
    """

    def __init__(
        self,
        meter: str,
        component: Component,
        name: str,
        *,
        most_watts: float | None = None,
        range_joules: float | None = None,
    ) -> None:
        self.meter, self.component, self.name = meter, component, name
        self.most_watts = (most_watts or MOST_WATTS[component]) * SLACK
        self.range_joules = range_joules
        self._last: tuple[float, float, float] | None = None  # joules or watts, moment, clock
        self._joules = 0.0
        self._problem: str | None = None
        self._began: float | None = None

    def lost(self, problem: str) -> None:
        """Write down that a stretch of this interval is not known; what is counted begins anew."""
        self._problem, self._last = self._problem or problem, None

    def _note_gap(self) -> None:
        """Where there is nothing to count from, what came before in this interval is not known, except in the first."""
        if self._last is None and self._began is not None:
            self._problem = self._problem or "it could not be read when the interval began"

    def counter(self, joules: float, moment: float, clock: float | None = None) -> None:
        """Take what an energy counter shows at a moment, in seconds.

        Where the moment is a stamp of the counter's own, `clock` is when it was looked at: both must go on alike, for
        else a stamp that leaps or stands would make any number of joules look possible.
        """
        self._note_gap()
        clock = moment if clock is None else clock
        before, self._last = self._last, (joules, moment, clock)
        if before is None:
            return
        used, stamped, seconds = joules - before[0], moment - before[1], clock - before[2]
        if abs(stamped - seconds) > STAMP_SECONDS:
            self._problem = self._problem or f"its stamps went on by {stamped:,.1f} s in {seconds:,.1f} s"
            return
        seconds = max(stamped, seconds)
        if used < 0 and self.range_joules and used + self.range_joules <= self.most_watts * seconds:
            used += self.range_joules
        if used < 0:
            self.lost("its counter was reset")
            self._last = joules, moment, clock
        else:
            self._add(used, seconds)

    def power(self, watts: float, moment: float) -> None:
        """Take what a part draws at a moment; between two it is the mean of both."""
        self._note_gap()
        before, self._last = self._last, (watts, moment, moment)
        if before is not None:
            self._add((watts + before[0]) / 2 * (moment - before[1]), moment - before[1])

    def _add(self, joules: float, seconds: float) -> None:
        longest = max(seconds, SHORTEST_SECONDS)
        if joules > self.most_watts * longest:
            self._problem = self._problem or (
                f"it shows {joules / longest:,.0f} W, and such a part can draw {self.most_watts / SLACK:,.0f} W"
            )
        else:
            self._joules += joules

    def take(self, now: float, method: Literal["counter", "power"]) -> Reading:
        """Return the reading since the last take."""
        problem = self._problem
        if self._began is None:
            problem = "it has only now been looked at"
        elif problem is None and self._joules == 0 and now - self._began >= STILL_SECONDS:
            problem = "it shows no energy at all: its counter stands still"
        reading = Reading(
            component=self.component,
            part=self.name,
            joules=self._joules if problem is None else None,
            label="measured",
            method=method,
            meter=self.meter,
            problem=problem and f"{self.meter}{f' {self.name}' if self.name else ''}: {problem}",
        )
        self._joules, self._problem, self._began = 0.0, None, now
        return reading


class Unreadable:
    """A meter that is there and cannot be read: each interval says so."""

    gpus: Sequence[str] = ()

    def __init__(self, meter: str, component: Component, problem: str) -> None:
        self._reading = Reading(
            component=component, joules=None, label="measured", method="counter", meter=meter, problem=problem
        )

    def read(self, now: float) -> None:
        """Do nothing."""

    def take(self, now: float) -> list[Reading]:
        """Return that nothing was read."""
        return [self._reading]
