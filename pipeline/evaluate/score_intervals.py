"""Compute the 95 % interval of a score: its variation over other items of the same kind.

A corpus-level metric, such as chrF or BLEU, is one figure of all items. It follows from sums of sacreBLEU's statistics
of items, so that resamples of items or of clusters need no text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.core.confidence_intervals import (
    ConfidenceInterval,
    assign_cluster_indices,
    bootstrap_sums,
    draw_resamples,
    effective_sample_size,
    proportion_interval,
    ratio_interval,
    simulated_coverage,
    student_t_quantile,
)

# Aggregations of lm-eval that combine independent values of the items.
ADDITIVE_AGGREGATIONS = ("mean", "perplexity", "weighted_perplexity", "bits_per_byte")

LEAST_VALUES = 3  # values of which a mean has an interval
UNBOUNDED = (-math.inf, math.inf)


class ScoreInterval(NamedTuple):
    """A score with its interval, and the share of such intervals that contained the truth in simulations.

    That share is the lowest over several distributions, skewed ones among them, of as many items or clusters; None
    without an interval.
    """

    value: float
    low: float | None = None
    high: float | None = None
    simulated_coverage: float | None = None


def is_binary_metric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, (int, float, np.bool_, np.number)) and value in (0, 1) for value in values)


def has_value(value: Any) -> bool:
    """Return whether a metric has a value for an item: NaN means none."""
    return not (isinstance(value, float) and math.isnan(value))


def score_interval(
    values: Sequence[Any],
    clusters: Sequence[Any],
    aggregation: Callable[..., Any],
    value: float,
    bounds: tuple[float, float] = UNBOUNDED,
    statistics: Sequence[ItemStatistics] | None = None,
) -> ScoreInterval:
    """Return a score with its interval; without one if there are too few items.

    Means of binary values have the interval of `proportion_interval`, other means and log-probabilities by bytes that
    of `ratio_interval`. Other metrics, such as chrF, have a bootstrap over clusters, or over items without clusters.

    Args:
        values: of the metric, by item.
        clusters: what each item shares with similar items.
        aggregation: the function of lm-eval that combines the values.
        value: its result.
        bounds: the least and the largest possible score.
        statistics: of each item for a corpus-level metric, if they are known already.
    """
    cluster_I = assign_cluster_indices(clusters)
    count = int(cluster_I.max()) + 1

    def sum_by_cluster(numbers: Sequence[float]) -> Any:
        return np.bincount(cluster_I, weights=np.asarray(numbers, dtype=np.float64), minlength=count)

    def mean_interval(numbers: Sequence[float], units: Sequence[float]) -> tuple[ConfidenceInterval, Any]:
        unit_K = sum_by_cluster(units)
        has_units = unit_K > 0
        return ratio_interval(sum_by_cluster(numbers)[has_units], unit_K[has_units]), unit_K[has_units]

    kind, size_K = getattr(aggregation, "__name__", ""), sum_by_cluster([1.0] * len(values))
    if kind in ("mean", "nanmean"):  # of the second, items without a value count for nothing
        is_known = [*map(has_value, values)]
        known = [each if is_there else 0.0 for each, is_there in zip(values, is_known, strict=True)]
        if is_binary_metric(known) and any(is_known):
            known_K = sum_by_cluster(is_known)
            return _bounded_interval(
                "share",
                proportion_interval(sum_by_cluster(known)[known_K > 0], known_K[known_K > 0]),
                known_K[known_K > 0],
            )
        of_known, known_K = mean_interval(known, is_known)
        return (
            _bounded_interval("mean", of_known, known_K, bounds)
            if sum(is_known) >= LEAST_VALUES
            else ScoreInterval(of_known.value)
        )
    if kind == "perplexity":
        nats, unit_K = mean_interval([-nats for nats in values], [1.0] * len(values))
        return _bounded_interval("mean", nats.apply_increasing_function(_exp_or_infinity), unit_K, (1.0, math.inf))
    if kind in ("weighted_perplexity", "bits_per_byte"):
        nats, unit_K = mean_interval([-nats for nats, _ in values], [units for _, units in values])
        of_perplexity = kind == "weighted_perplexity"  # no token is likelier than certain
        least = float(of_perplexity)
        return _bounded_interval(
            "mean",
            nats.apply_increasing_function(_exp_or_infinity if of_perplexity else lambda nats: nats / math.log(2)),
            unit_K,
            (least, math.inf),
        )
    if count < 2:
        return ScoreInterval(value)
    statistics = statistics or corpus_metric_statistics_by_item(aggregation, values)
    if statistics:
        metric, sum_KS = CORPUS_METRICS[statistics[0].aggregation], sum_clusters(statistics, cluster_I)
        score = ConfidenceInterval(float(metric.score(sum_KS.sum(axis=0))), *corpus_metric_interval(metric, sum_KS))
        return _bounded_interval("corpus-level", score, sum_KS[:, metric.size], bounds)
    ends = function_interval(aggregation, values, cluster_I) or (None, None)
    return _bounded_interval("function", ConfidenceInterval(value, *ends), size_K, bounds)


def _exp_or_infinity(nats: float) -> float:
    return math.exp(nats) if nats < 709 else math.inf


def _bounded_interval(
    kind: str, score: ConfidenceInterval, size_K: Any, bounds: tuple[float, float] = UNBOUNDED
) -> ScoreInterval:
    """Return a score with its interval within bounds; without one that has no width or is infinite."""
    if score.low is None or score.high is None or math.isclose(score.low, score.high) or math.isinf(score.high):
        return ScoreInterval(score.value)
    coverage = simulated_coverage(kind, effective_sample_size(size_K))
    return ScoreInterval(score.value, max(score.low, bounds[0]), min(score.high, bounds[1]), coverage)


Floats = NDArray[np.float64]
Aggregation = Callable[..., Any]
FUNCTION_RESAMPLES = 199  # resamples of a metric that has to be computed again from all of its items
MOST_JACKKNIFED = 100  # clusters that are left out of such a metric one by one


class ItemStatistics(NamedTuple):
    """The statistics of an item for a corpus-level metric; `aggregation` names the metric's function in lm-eval."""

    aggregation: str
    values: tuple[float, ...]


class CorpusMetric(NamedTuple):
    """A metric as a function of sums of statistics.

    Attributes:
        of_items: computes the statistics, (items, S), from lm-eval's log of the items.
        score: computes the metric from sums of statistics, (…, S) to (…).
        size: the index of the statistic that measures the size of an item.
        higher_is_better: whether a larger value is better.
        bounds: the least and the largest possible value.
    """

    of_items: Callable[[Sequence[Any]], Floats]
    score: Callable[[Floats], Floats]
    size: int
    higher_is_better: bool = True
    bounds: tuple[float, float] = (0.0, 100.0)


def _divide(over: Floats, under: Floats) -> Floats:
    """Divide; 0 / 0 is 0."""
    return np.divide(over, under, out=np.zeros(np.broadcast_shapes(over.shape, under.shape)), where=under != 0)


def bleu_score(sum_XS: Floats) -> Floats:
    """Return BLEU with `exp` smoothing, from the lengths of text and reference, matches and n-grams of 4 orders."""
    length, wanted, match_XN, total_XN = sum_XS[..., 0], sum_XS[..., 1], sum_XS[..., 2:6], sum_XS[..., 6:10]
    # Each order without a match counts as half of a match, the next one as a quarter, and so on.
    halved_XN = np.cumsum(np.logical_and(match_XN == 0, total_XN > 0), axis=-1)
    precision_XN = _divide(np.where(match_XN > 0, match_XN, 0.5**halved_XN), total_XN)
    is_scored = np.logical_and(np.any(match_XN > 0, axis=-1), np.all(total_XN > 0, axis=-1))
    logarithm = np.log(np.where(np.expand_dims(is_scored, -1), precision_XN, 1.0)).mean(axis=-1)
    brevity = np.minimum(0.0, 1 - _divide(wanted, length))
    return np.where(is_scored, 100 * np.exp(brevity + logarithm), 0.0)


def chrf_score(sum_XS: Floats) -> Floats:
    """Return chrF or chrF++ from the numbers of n-grams of text, of reference and of both, for each order."""
    text_XN, reference_XN, match_XN = sum_XS[..., 0::3], sum_XS[..., 1::3], sum_XS[..., 2::3]
    counted_XN = (text_XN > 0) & (reference_XN > 0)
    orders = counted_XN.sum(axis=-1)
    precision, recall = (
        _divide((_divide(match_XN, each_XN) * counted_XN).sum(axis=-1), orders) for each_XN in (text_XN, reference_XN)
    )
    return 100 * _divide(5 * precision * recall, 4 * precision + recall)  # recall counts twice as much


def translation_edit_rate(sum_XS: Floats) -> Floats:
    """Return the translation edit rate, from edits and the length of the reference."""
    edits, length = sum_XS[..., 0], sum_XS[..., 1]
    return 100 * np.where(length > 0, _divide(edits, length), np.sign(edits))


def f1_score(sum_XS: Floats) -> Floats:
    """Return F1 of two classes, from the numbers of items, of real, of predicted and of true positives."""
    return _divide(2 * sum_XS[..., 3], sum_XS[..., 1] + sum_XS[..., 2])


def matthews_correlation(sum_XS: Floats) -> Floats:
    """Return Matthews' correlation of two classes, from the same sums."""
    items, real, called, right = np.moveaxis(sum_XS, -1, 0)
    return _divide(items * right - real * called, np.sqrt(real * (items - real) * called * (items - called)))


def _sacrebleu_statistics(name: str, **settings: Any) -> Callable[[Sequence[Any]], Floats]:
    """Return a function that computes a sacreBLEU metric's statistics of pairs of references and text."""

    def extract_sacrebleu_statistics(pairs: Sequence[Any]) -> Floats:
        import sacrebleu
        from lm_eval.api.metrics import _sacreformat

        references, texts = _sacreformat([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        metric = getattr(sacrebleu, name)(**settings)
        return np.array(metric._extract_corpus_statistics(texts, references), dtype=np.float64)

    return extract_sacrebleu_statistics


def _binary_class_statistics(pairs: Sequence[Any]) -> Floats:
    """Return 1, the real class, the predicted class and their product, of classes 0 and 1."""
    class_I2 = np.array(pairs, dtype=np.float64)
    if class_I2.ndim != 2 or not np.isin(class_I2, (0, 1)).all():
        raise ValueError("more than two classes")
    return np.column_stack([np.ones(len(class_I2)), class_I2, class_I2.prod(axis=1)])


CORPUS_METRICS = {
    "bleu": CorpusMetric(_sacrebleu_statistics("BLEU", force=True), bleu_score, size=1),
    "chrf": CorpusMetric(_sacrebleu_statistics("CHRF"), chrf_score, size=1),
    "chrfpp": CorpusMetric(_sacrebleu_statistics("CHRF", word_order=2), chrf_score, size=1),
    "ter": CorpusMetric(
        _sacrebleu_statistics("TER"), translation_edit_rate, size=1, higher_is_better=False, bounds=(0.0, np.inf)
    ),
    "f1_score": CorpusMetric(_binary_class_statistics, f1_score, size=0, bounds=(0.0, 1.0)),
    "entity_f1": CorpusMetric(
        partial(np.array, dtype=np.float64),
        lambda sum_XS: _divide(2 * sum_XS[..., 0], sum_XS[..., 1] + sum_XS[..., 2]),
        size=2,
        bounds=(0.0, 1.0),
    ),
    "instruction_share": CorpusMetric(
        partial(np.array, dtype=np.float64),
        lambda sum_XS: _divide(sum_XS[..., 0], sum_XS[..., 1]),
        size=1,
        bounds=(0.0, 1.0),
    ),
    "matthews_corrcoef": CorpusMetric(_binary_class_statistics, matthews_correlation, size=0, bounds=(-1.0, 1.0)),
}
"""By the names of the functions of lm-eval, and of `register_aggregations`."""


def corpus_metric_statistics_by_item(aggregation: Aggregation, values: Sequence[Any]) -> list[ItemStatistics] | None:
    """Return the statistics of each item; None for a metric that has none.

    None, too, if the statistics do not reproduce lm-eval's metric, such as with more than two classes.
    """
    from lm_eval.api import metrics

    name = getattr(aggregation, "__name__", "")
    if name not in CORPUS_METRICS or getattr(metrics, name, aggregation) is not aggregation:
        return None
    try:
        statistics_IS = CORPUS_METRICS[name].of_items(values)
    except (ValueError, TypeError):
        return None
    if not np.isclose(CORPUS_METRICS[name].score(statistics_IS.sum(axis=0)), aggregation(values), rtol=1e-9, atol=1e-9):
        return None
    return [ItemStatistics(name, tuple(row)) for row in statistics_IS.tolist()]


def sum_clusters(statistics: Sequence[ItemStatistics | None], cluster_I: NDArray[np.int64]) -> Floats:
    """Return the sums of each cluster, (clusters, S); items without statistics add nothing."""
    rows = [(cluster, one.values) for cluster, one in zip(cluster_I.tolist(), statistics, strict=True) if one]
    sum_KS = np.zeros((int(cluster_I.max()) + 1, len(rows[0][1])))
    np.add.at(sum_KS, [cluster for cluster, _ in rows], np.array([values for _, values in rows]))
    return sum_KS


def _percentile_interval(score_B: Floats, clusters: float) -> tuple[float, float]:
    """Return the 95 % interval of the scores of resamples.

    The percentiles are expanded to the reach of Student's t, for resamples of few clusters vary too little (Hesterberg,
    The American Statistician 69, 2015, section 5.3).
    """
    from scipy.special import ndtr

    clusters = max(clusters, 2.0)
    tail = float(ndtr(-student_t_quantile(clusters - 1) * np.sqrt(clusters / (clusters - 1))))
    low, high = np.quantile(score_B, (tail, 1 - tail))
    return float(low), float(high)


def corpus_metric_interval(metric: CorpusMetric, sum_KS: Floats) -> tuple[float, float]:
    """Return the bootstrap interval of a metric over clusters.

    Each end is the wider one of two intervals: the percentiles of the resampled metric, and the studentized bootstrap
    of the linearized metric by `ratio_interval`. With few clusters the percentiles alone contain the truth too rarely.
    """
    interval = _widest_interval(
        metric.score(bootstrap_sums(sum_KS)), jackknife_pseudovalues(metric, sum_KS), sum_KS[:, metric.size]
    )
    return max(interval[0], metric.bounds[0]), min(interval[1], metric.bounds[1])


def corpus_difference_interval(metric: CorpusMetric, one_KS: Floats, other_KS: Floats) -> tuple[float, float]:
    """Return the same interval for the difference of two models, with the same clusters in each resample."""
    score_B, other_B = (metric.score(bootstrap_sums(each_KS)) for each_KS in (one_KS, other_KS))
    merit_K, other_K = (jackknife_pseudovalues(metric, each_KS) for each_KS in (one_KS, other_KS))
    return _widest_interval(score_B - other_B, merit_K - other_K, one_KS[:, metric.size])


def _widest_interval(score_B: Floats, merit_K: Floats, size_K: Floats) -> tuple[float, float]:
    """Combine the intervals by the metric's resamples and by the clusters' contributions and sizes."""
    low, high = _percentile_interval(score_B, effective_sample_size(size_K))
    value = float(merit_K.mean())
    interval = ratio_interval(value * size_K + (merit_K - value) * size_K.mean(), size_K)
    return (
        (low, high)
        if interval.low is None or interval.high is None
        else (min(low, interval.low), max(high, interval.high))
    )


def function_interval(
    aggregation: Aggregation, values: Sequence[Any], cluster_I: NDArray[np.int64]
) -> tuple[float, float] | None:
    """Return the interval of any function of all items by resampling; None if the function fails.

    Up to MOST_JACKKNIFED clusters it is computed as in `corpus_metric_interval`, beyond by the percentiles alone.
    """
    members = [np.flatnonzero(cluster_I == cluster).tolist() for cluster in range(int(cluster_I.max()) + 1)]
    count, size_K = len(members), np.array([float(len(places)) for places in members])

    def resampled_value(times_K: Sequence[int]) -> float:
        drawn = [place for times, places in zip(times_K, members, strict=True) for place in places * times]
        return float(aggregation([values[place] for place in drawn]))

    times_BK = draw_resamples(np.random.default_rng(0), count, FUNCTION_RESAMPLES).astype(int)
    times_KK = 1 - np.eye(count, dtype=int) if count <= MOST_JACKKNIFED else np.empty((0, count), dtype=int)
    try:
        score_B, without_K = (np.array([*map(resampled_value, times.tolist())]) for times in (times_BK, times_KK))
        whole = resampled_value([1] * count)
    except (ArithmeticError, ValueError, TypeError, LookupError):
        return None
    if not np.isfinite([whole, *score_B, *without_K]).all():
        return None
    if not len(without_K):
        return _percentile_interval(score_B, effective_sample_size(size_K))
    return _widest_interval(score_B, _pseudovalues(whole, without_K), size_K)


def jackknife_pseudovalues(metric: CorpusMetric, sum_KS: Floats) -> Floats:
    """Return the jackknife's contribution of each cluster to a metric, (clusters,); their mean is the metric."""
    total_S = sum_KS.sum(axis=0)
    return _pseudovalues(float(metric.score(total_S)), metric.score(total_S - sum_KS))


def _pseudovalues(whole: float, without_K: Floats) -> Floats:
    """Return θ + (K - 1) (mean of θ₋ - θ₋), with θ₋ the metric without a cluster.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 11.5.
    """
    return np.asarray(whole + (len(without_K) - 1) * (without_K.mean() - without_K))
