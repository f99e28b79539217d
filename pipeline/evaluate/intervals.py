"""Compute the 95 % interval of a score: how far it would move with other items of the same kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.core.confidence_intervals import Ratio, effective, number_clusters, ratio, share, simulated_coverage
from pipeline.evaluate.corpus_level import (
    METRICS,
    Statistics,
    interval_of_function,
    interval_of_sums,
    statistics_of,
    sums,
)

# Aggregations of lm-eval that are made of what each item gives by itself.
SUMMED = ("mean", "perplexity", "weighted_perplexity", "bits_per_byte")

FEWEST = 3  # values of which a mean has an interval
ANYWHERE = (-math.inf, math.inf)


class ScoreInterval(NamedTuple):
    """A score with its interval, and which share of such intervals held the truth in simulations.

    That share is the lowest of several distributions, skewed ones among them, of as many items or clusters; None where
    there is no interval.
    """

    value: float
    low: float | None = None
    high: float | None = None
    simulated_coverage: float | None = None


def is_right_or_wrong(values: Sequence[Any]) -> bool:
    """Return whether the values of a metric say of each item whether it is right."""
    return all(isinstance(value, (int, float, np.bool_, np.number)) and value in (0, 1) for value in values)


def has_value(value: Any) -> bool:
    """Return whether a metric says anything of an item: NaN says nothing."""
    return not (isinstance(value, float) and math.isnan(value))


def interval(
    values: Sequence[Any],
    clusters: Sequence[Any],
    aggregation: Callable[..., Any],
    value: float,
    bounds: tuple[float, float] = ANYWHERE,
    statistics: Sequence[Statistics] | None = None,
) -> ScoreInterval:
    """Return a score with its interval; without one where too few items, or none of them, tell how much it moves.

    Args:
        values: what the metric says of each item.
        clusters: what each item shares with items that are like it.
        aggregation: the function of lm-eval that makes one figure of them.
        value: that figure.
        bounds: between which the score lies, whatever the items say.
        statistics: what each item adds to a corpus-level metric, where that is known already.

    The mean of right and wrong is `share`'s, other means and sums of log-probabilities by bytes are `ratio`'s. Of other
    metrics, such as chrF, clusters are drawn again and again; of items without clusters, items.
    """
    cluster_I = number_clusters(clusters)
    count = int(cluster_I.max()) + 1

    def summed(numbers: Sequence[float]) -> Any:
        return np.bincount(cluster_I, weights=np.asarray(numbers, dtype=np.float64), minlength=count)

    def mean(numbers: Sequence[float], units: Sequence[float]) -> tuple[Ratio, Any]:
        has_units = summed(units) > 0
        return ratio(summed(numbers)[has_units], summed(units)[has_units]), summed(units)[has_units]

    kind, size_K = getattr(aggregation, "__name__", ""), summed([1.0] * len(values))
    if kind in ("mean", "nanmean"):  # of the second, items without a value count for nothing
        is_known = [*map(has_value, values)]
        known = [each if is_there else 0.0 for each, is_there in zip(values, is_known, strict=True)]
        if is_right_or_wrong(known) and any(is_known):
            known_K = summed(is_known)
            return _interval("share", share(summed(known)[known_K > 0], known_K[known_K > 0]), known_K[known_K > 0])
        of_known, known_K = mean(known, is_known)
        return (
            _interval("mean", of_known, known_K, bounds) if sum(is_known) >= FEWEST else ScoreInterval(of_known.value)
        )
    if kind == "perplexity":
        nats, unit_K = mean([-nats for nats in values], [1.0] * len(values))
        return _interval("mean", nats.of(_exp), unit_K, (1.0, math.inf))
    if kind in ("weighted_perplexity", "bits_per_byte"):
        nats, unit_K = mean([-nats for nats, _ in values], [units for _, units in values])
        of_perplexity = kind == "weighted_perplexity"  # no token is likelier than certain
        least = float(of_perplexity)
        return _interval("mean", nats.of(_exp if of_perplexity else _in_bits), unit_K, (least, math.inf))
    if count < 2:
        return ScoreInterval(value)
    statistics = statistics or statistics_of(aggregation, values)
    if statistics:
        metric, sum_KS = METRICS[statistics[0].aggregation], sums(statistics, cluster_I)
        score = Ratio(float(metric.score(sum_KS.sum(axis=0))), *interval_of_sums(metric, sum_KS))
        return _interval("corpus-level", score, sum_KS[:, metric.size], bounds)
    ends = interval_of_function(aggregation, values, cluster_I) or (None, None)
    return _interval("function", Ratio(value, *ends), size_K, bounds)


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 709 else math.inf


def _in_bits(nats: float) -> float:
    return nats / math.log(2)


def _interval(kind: str, score: Ratio, size_K: Any, bounds: tuple[float, float] = ANYWHERE) -> ScoreInterval:
    """Return a score with its interval within bounds; without one where that has no width, or no end in 64 bits."""
    if score.low is None or score.high is None or math.isclose(score.low, score.high) or math.isinf(score.high):
        return ScoreInterval(score.value)
    coverage = simulated_coverage(kind, effective(size_K))
    return ScoreInterval(score.value, max(score.low, bounds[0]), min(score.high, bounds[1]), coverage)
