"""An amount of energy with its label and its 95 % interval, so that sums of such amounts stay honest.

An interval is the sum of what each source of error does to it, such as the calibration of a meter or the power model of
one node. What one source does to several amounts adds up linearly, with its sign; sources are independent of one
another and add up in quadrature (Guide to the expression of uncertainty in measurement, JCGM 100:2008, 5.1 and 5.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.energy.readings import Label


@dataclass(frozen=True)
class Quantity:
    """Joules by label, and what each source of error may add to their sum.

    `errors` says, for each source, by how many joules the sum changes where that source stands at the lower and at the
    upper end of its own 95 % interval.
    """

    measured: float = 0.0
    estimated: float = 0.0
    stated: float = 0.0
    errors: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, label: Label, joules: float, errors: Mapping[str, tuple[float, float]] | None = None) -> Quantity:
        """Return so many joules with one label."""
        return cls(**{label: joules}, errors=errors or {})

    @classmethod
    def sum(cls, quantities: Iterable[Quantity]) -> Quantity:
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

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity.sum((self, other))

    def times(self, factor: float) -> Quantity:
        """Return it multiplied by a number that is exact, such as a share or a PUE."""
        errors = {source: (low * factor, high * factor) for source, (low, high) in self.errors.items()}
        return Quantity(self.measured * factor, self.estimated * factor, self.stated * factor, errors)

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
