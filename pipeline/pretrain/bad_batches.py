"""Detect and skip bad batches: a loss or a gradient norm that is not finite, or a spike.

Data steps number the batches. A training step takes the first data step that is neither used nor skipped, so a skip
moves all later batches by one, and no other sample is lost or repeated.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from pipeline.pretrain.settings import Stability
from pipeline.tokens.sampler import data_step_after_skips

ADVICE = "lower learning_rate, lengthen warmup_steps or use precision fp32"
MINIMUM_DEVIATION = 0.01
"""Minimum deviation as a share of the median: nearly equal losses make no spikes."""


def spike_threshold(values: Sequence[float], deviations: float) -> float:
    """Return median + deviations x median absolute deviation, which is robust against outliers."""
    middle = median(values)
    deviation = median(abs(value - middle) for value in values)
    return middle + deviations * max(deviation, MINIMUM_DEVIATION * abs(middle))


class Rewind(Exception):
    """The training rewinds; the argument is the entry of `pipeline.pretrain.checkpoints.recovery.Rewinds`."""


class BadBatchDetector:
    """Judges every batch by its loss and gradient norm; processes with equal values decide equally."""

    def __init__(self, settings: Stability, skips: Sequence[int], recent: Mapping[str, Sequence[float]]) -> None:
        self.settings = settings
        self.skips = sorted(set(skips))
        self.limits = {"loss": settings.loss_deviations, "gradient_norm": settings.gradient_norm_deviations}
        self.recent = {name: deque(recent.get(name, ()), maxlen=settings.window) for name in self.limits}
        self.consecutive_skips = 0

    def thresholds(self) -> dict[str, float]:
        """Return the largest good loss and gradient_norm of the next batch, infinite where no spikes are known."""
        return {
            name: spike_threshold(self.recent[name], deviations)
            if deviations and len(self.recent[name]) == self.settings.window
            else math.inf
            for name, deviations in self.limits.items()
        }

    def find_reason(self, **values: float) -> str | None:
        """Return why a batch with this loss and gradient_norm is bad, or None."""
        thresholds = self.thresholds()
        for name, value in values.items():
            if not math.isfinite(value):
                return f"{name} is {value}"
            if value > thresholds[name]:
                return f"{name} {value:.6g} is above {thresholds[name]:.6g}"
        return None

    def record_good(self, **values: float) -> None:
        """Record the values of a batch that updated the model."""
        self.consecutive_skips = 0
        for name, value in values.items():
            self.recent[name].append(value)

    def skip(self, step: int, number: int, values: Mapping[str, float], reason: str, back_to: int) -> Mapping[str, Any]:
        """Skip a data step and return its line of metrics.

        Raises:
            Rewind: the settings ask for a rewind, to the step `back_to`.
            FloatingPointError: too many batches in a row are bad, so the data are not the cause.
        """
        if self.settings.bad_step == "rewind":
            numbers = [data_step_after_skips(done, self.skips) for done in range(back_to, step)]
            raise Rewind({"back_to": back_to, "data_steps": numbers, "step": step, "reason": reason})
        self.consecutive_skips += 1
        if self.settings.bad_step == "fail" or self.consecutive_skips > self.settings.skips_in_a_row:
            raise FloatingPointError(f"{reason} in batch {self.consecutive_skips} of step {step}: {ADVICE}")
        insort(self.skips, number)
        finite = {f"skipped_{name}": value if math.isfinite(value) else None for name, value in values.items()}
        return {"step": step, "skipped_data_steps": [number], "reason": reason, **finite}

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, from which a training continues with the same decisions."""
        return {"skips": self.skips, "recent": {name: [*values] for name, values in self.recent.items()}}
