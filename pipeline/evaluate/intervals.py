"""The 95 % interval of a score: how far it would move with other items of the same kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipeline.ground.statistics import Ratio, ratio, share

# Aggregations of lm-eval that are made of what each item gives by itself.
SUMMED = ("mean", "perplexity", "weighted_perplexity", "bits_per_byte")

FEWEST = 3  # values of which a mean has an interval
ANYWHERE = (-math.inf, math.inf)
NEVER_NEGATIVE = ("bleu", "chrf", "chrfpp", "ter", "f1_score")


def is_right_or_wrong(values: Sequence[Any]) -> bool:
    """Return whether the values of a metric say of each item whether it is right."""
    return all(isinstance(value, (bool, int, float)) and value in (0, 1) for value in values)


def has_value(value: Any) -> bool:
    """Return whether a metric says anything of an item: NaN says nothing."""
    return not (isinstance(value, float) and math.isnan(value))


def interval(
    values: Sequence[Any],
    clusters: Sequence[Any],
    aggregation: Callable[..., Any],
    value: float,
    error: float | None,
    bounds: tuple[float, float] = ANYWHERE,
) -> Ratio:
    """Return a score with its interval; without one where too few items, or none of them, tell how much it moves.

    Args:
        values: what the metric says of each item.
        clusters: what each item shares with items that are like it.
        aggregation: the function of lm-eval that makes one figure of them.
        value: that figure.
        error: its standard error by drawing items again and again, for metrics of all items together, such as chrF.
        bounds: between which the score lies, whatever the items say.

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
        is_known = [*map(has_value, values)]
        found = summed([each if known else 0.0 for each, known in zip(values, is_known, strict=True)])
        known = summed(is_known) > 0
        mean = ratio(found[known], summed(is_known)[known])
        return _with_width(mean, bounds) if sum(is_known) >= FEWEST else Ratio(mean.value, None, None)
    if kind == "perplexity":
        return ratio(summed([-nats for nats in values]), summed(one_each)).of(math.exp)
    if kind in ("weighted_perplexity", "bits_per_byte"):
        nats = ratio(summed([-nats for nats, _ in values]), summed([units for _, units in values]))
        return nats.of(math.exp if kind == "weighted_perplexity" else lambda each: each / math.log(2))
    if error is None or len(names) < 2:
        return Ratio(value, None, None)
    bounds = (0.0, math.inf) if kind in NEVER_NEGATIVE else bounds
    return _with_width(Ratio(value, value - 1.96 * error, value + 1.96 * error), bounds)


def _with_width(found: Ratio, bounds: tuple[float, float]) -> Ratio:
    """Return a score with its interval within bounds; without one where items that are all alike leave it no width."""
    if found.low is None or found.high is None or math.isclose(found.low, found.high):
        return Ratio(found.value, None, None)
    return Ratio(found.value, max(found.low, bounds[0]), min(found.high, bounds[1]))
