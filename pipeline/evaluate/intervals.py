"""The 95 % interval of a score: how far it would move with other items of the same kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipeline.ground.statistics import Ratio, ratio, share

# Aggregations of lm-eval that are made of what each item gives by itself.
SUMMED = ("mean", "perplexity", "weighted_perplexity", "bits_per_byte")

NEVER_NEGATIVE = ("bleu", "chrf", "chrfpp", "ter", "f1_score")


def is_right_or_wrong(values: Sequence[Any]) -> bool:
    """Return whether the values of a metric say of each item whether it is right."""
    return all(isinstance(value, (bool, int, float)) and value in (0, 1) for value in values)


def interval(
    values: Sequence[Any], clusters: Sequence[Any], aggregation: Callable[..., Any], value: float, error: float | None
) -> Ratio:
    """Return a score with its interval; without one where too few items tell how much it moves.

    Args:
        values: what the metric says of each item.
        clusters: what each item shares with items that are like it.
        aggregation: the function of lm-eval that makes one figure of them.
        value: that figure.
        error: its standard error by drawing items again and again, for metrics of all items together, such as chrF.

    The mean of right and wrong is `share`'s, other means and sums of log-probabilities by bytes are `ratio`'s.
    """
    names: dict[Any, int] = {}
    cluster_I = np.array([names.setdefault(cluster, len(names)) for cluster in clusters])

    def summed(numbers: Sequence[float]) -> Any:
        return np.bincount(cluster_I, weights=np.asarray(numbers, dtype=np.float64), minlength=len(names))

    kind, one_each = aggregation.__name__, [1.0] * len(values)
    if kind == "mean" and is_right_or_wrong(values):
        return share(summed(values), summed(one_each))
    if kind in ("mean", "nanmean"):  # of the second, items without a value count for nothing
        has_value = [float(not math.isnan(each)) for each in values]
        found = summed([each if known else 0.0 for each, known in zip(values, has_value, strict=True)])
        known = summed(has_value) > 0
        return ratio(found[known], summed(has_value)[known])
    if kind == "perplexity":
        return ratio(summed([-nats for nats in values]), summed(one_each)).of(math.exp)
    if kind in ("weighted_perplexity", "bits_per_byte"):
        nats = ratio(summed([-nats for nats, _ in values]), summed([units for _, units in values]))
        return nats.of(math.exp if kind == "weighted_perplexity" else lambda each: each / math.log(2))
    if error is None or len(names) < 2:
        return Ratio(value, None, None)
    low = value - 1.96 * error
    return Ratio(value, max(low, 0.0) if kind in NEVER_NEGATIVE else low, value + 1.96 * error)
