"""Which batches are kept out of the model: a loss or a gradient that is not finite, or that stands out.

Batches are numbered by data steps. A training step draws the first data step that is neither used nor skipped, so
that what is skipped moves all later batches by one and no sample is lost or repeated but those that were skipped.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from pipeline.pretrain.settings import Stability
from pipeline.tokens.sampler import data_step

ADVICE = "lower learning_rate, lengthen warmup_steps or use precision fp32"
MINIMUM_DEVIATION = 0.01
"""The least deviation that counts, as a share of the median: losses that hardly differ make no spikes."""


def spike_threshold(values: Sequence[float], deviations: float) -> float:
    """Return median + deviations x the median absolute deviation, which a few outliers hardly move."""
    middle = median(values)
    deviation = median(abs(value - middle) for value in values)
    return middle + deviations * max(deviation, MINIMUM_DEVIATION * abs(middle))


class Rewind(Exception):
    """The training goes back; the argument says where and why, as `pipeline.pretrain.checkpoints.recovery` keeps it."""


class BadBatchDetector:
    """Decides on every batch from its loss and its gradient's norm; with equal values every process decides alike."""

    def __init__(self, settings: Stability, skips: Sequence[int], recent: Mapping[str, Sequence[float]]) -> None:
        self.settings = settings
        self.skips = sorted(set(skips))
        self.limits = {"loss": settings.loss_deviations, "gradient_norm": settings.gradient_norm_deviations}
        self.recent = {name: deque(recent.get(name, ()), maxlen=settings.window) for name in self.limits}
        self.consecutive_skips = 0

    def find_reason(self, **values: float) -> str | None:
        """Return why a batch with this loss and gradient_norm must not change the model, or None."""
        for name, value in values.items():
            if not math.isfinite(value):
                return f"{name} is {value}"
            recent, deviations = self.recent[name], self.limits[name]
            if deviations and len(recent) == self.settings.window:
                limit = spike_threshold(recent, deviations)
                if value > limit:
                    return f"{name} {value:.6g} is above {limit:.6g}"
        return None

    def record_good(self, **values: float) -> None:
        """Note the values of a batch that has changed the model."""
        self.consecutive_skips = 0
        for name, value in values.items():
            self.recent[name].append(value)

    def skip(self, step: int, number: int, values: Mapping[str, float], reason: str, back_to: int) -> Mapping[str, Any]:
        """Leave a data step out and return the line of metrics that tells it; or raise Rewind, to the step `back_to`.

        A FloatingPointError says that there were too many in a row: the data are not the cause.
        """
        if self.settings.bad_step == "rewind":
            numbers = [data_step(done, self.skips) for done in range(back_to, step)]
            raise Rewind({"back_to": back_to, "data_steps": numbers, "step": step, "reason": reason})
        self.consecutive_skips += 1
        if self.settings.bad_step == "fail" or self.consecutive_skips > self.settings.skips_in_a_row:
            raise FloatingPointError(f"{reason} in batch {self.consecutive_skips} of step {step}: {ADVICE}")
        insort(self.skips, number)
        finite = {f"skipped_{name}": value if math.isfinite(value) else None for name, value in values.items()}
        return {"step": step, "skipped_data_steps": [number], "reason": reason, **finite}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, so that a training that continues decides as one that was not stopped."""
        return {"skips": self.skips, "recent": {name: [*values] for name, values in self.recent.items()}}
