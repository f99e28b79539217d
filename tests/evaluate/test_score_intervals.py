"""A score's interval depends on its components: binary, sums by bytes, metrics over all items."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api import metrics
from scipy import stats

from pipeline.core.confidence_intervals import proportion_interval, ratio_interval, simulated_coverage
from pipeline.evaluate.score_intervals import is_binary_metric, score_interval
from pipeline.evaluate.text_metrics import BOUNDS


def test_accuracy_interval_by_cluster() -> None:
    values, clusters = [1, 0, 1, 1, 0, 1], ["a", "a", "b", "b", "c", "c"]
    assert is_binary_metric(values) and not is_binary_metric([0, 0.5]) and not is_binary_metric([("a", "b")])
    interval = score_interval(values, clusters, metrics.mean, 4 / 6)
    assert interval[:3] == proportion_interval(np.array([1.0, 2.0, 1.0]), np.array([2.0, 2.0, 2.0]))
    assert interval != score_interval(values, range(6), metrics.mean, 4 / 6)


def test_interval_of_a_numeric_mean() -> None:
    values = [0.25, 0.5, 0.75, 0.1]
    assert score_interval(values, range(4), metrics.mean, 0.4)[:3] == ratio_interval(np.array(values), np.ones(4))


def test_interval_is_clipped_to_the_range_of_its_score() -> None:
    values = [0.2, 1.0, 1.0, 1.0, 1.0]
    interval = score_interval(values, range(5), metrics.nanmean, 0.84, BOUNDS["claims_found"])
    free = score_interval(values, range(5), metrics.nanmean, 0.84)
    assert free.high is not None and free.high > 1 and interval == (free.value, free.low, 1, free.simulated_coverage)
    low = score_interval([0.8, 0, 0, 0, 0], range(5), metrics.mean, 0.16, BOUNDS["rouge_l"])
    assert low.low == 0 and low.high == pytest.approx(min(1, 1 - interval.low))


@pytest.mark.parametrize("aggregation", [metrics.mean, metrics.nanmean])
def test_few_or_constant_values_have_no_interval(aggregation: Any) -> None:
    assert score_interval([95.1] * 7, range(7), aggregation, 95.1) == (pytest.approx(95.1), None, None, None)
    assert score_interval([3.5, 7.25], range(2), aggregation, 5.375) == (5.375, None, None, None)
    assert score_interval([3.5, 7.25, 4.0], range(3), aggregation, 14.75 / 3).low is not None
    values = [3.5, math.nan, 7.25, math.nan]
    assert score_interval(values, range(4), metrics.nanmean, 5.375) == (5.375, None, None, None)
    assert score_interval([("a", "a")] * 9, range(9), metrics.chrf, 100.0) == (100.0, None, None, None)


def test_coverage_is_that_of_the_effective_number_of_clusters() -> None:
    """One cluster of 30 items and twenty of one item count as 2.7 of equal size."""
    values, clusters = [0.25, 0.5, 0.75, 0.1, 0.9] * 10, [*[0] * 30, *range(1, 21)]
    interval = score_interval(values, clusters, metrics.mean, 0.5)
    coverage = simulated_coverage("mean", 50**2 / (30**2 + 20))
    assert interval.simulated_coverage == coverage != simulated_coverage("mean", 21)


@given(st.lists(st.booleans(), min_size=2, max_size=40))
def test_accuracy_always_has_an_interval(right: list[bool]) -> None:
    """Wilson's interval has a width even if all or none are correct."""
    interval = score_interval(right, range(len(right)), metrics.mean, sum(right) / len(right))
    assert interval.low is not None and interval.high is not None and 0 <= interval.low < interval.high <= 1


def test_items_without_a_value_are_ignored() -> None:
    values, clusters = [0.25, math.nan, 0.75, 0.1, math.nan], ["a", "b", "c", "a", "c"]
    expected = ratio_interval(np.array([0.35, 0.75]), np.array([2.0, 1.0]))
    assert score_interval(values, clusters, metrics.nanmean, 1.1 / 3)[:3] == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["bits_per_byte", "weighted_perplexity", "perplexity"])
def test_log_probability_sums_equal_the_lm_eval_value(kind: str) -> None:
    random = np.random.default_rng(1)
    nats, units = -random.uniform(20, 60, 30), random.integers(10, 30, 30)
    values: list[Any] = [*map(float, nats / 30)] if kind == "perplexity" else [*zip(nats, units, strict=True)]
    aggregation = getattr(metrics, kind)
    interval = score_interval(values, range(30), aggregation, aggregation(values))
    assert interval.value == pytest.approx(aggregation(values))
    assert interval.low is not None and interval.high is not None and interval.low < interval.value < interval.high
    twice = score_interval(values * 2, [*range(30)] * 2, aggregation, aggregation(values))
    assert (twice.low, twice.high) == (pytest.approx(interval.low), pytest.approx(interval.high)), (
        "the same texts again"
    )


def test_other_aggregations_are_bootstrapped() -> None:
    values = [0.2, 0.4, 0.9, 1.5, 3.0, 0.1, 0.7, 2.2]
    interval = score_interval(values, range(8), metrics.median, 0.9)
    drawn = np.random.default_rng(0).integers(8, size=(199, 8))
    medians = sorted(sorted(values[place] for place in row)[4] for row in drawn)
    tail = stats.norm.cdf(-stats.t.ppf(0.975, 7) * math.sqrt(8 / 7))
    assert interval.low <= np.quantile(medians, tail) < np.quantile(medians, 1 - tail) <= interval.high  # type: ignore[operator]
    many = score_interval([*np.arange(120.0)], range(120), metrics.median, 60.0)
    drawn = np.random.default_rng(0).integers(120, size=(199, 120))
    medians = sorted(float(sorted(row)[60]) for row in drawn.tolist())
    tail = stats.norm.cdf(-stats.t.ppf(0.975, 119) * math.sqrt(120 / 119))
    assert (many.low, many.high) == pytest.approx((np.quantile(medians, tail), np.quantile(medians, 1 - tail)))
    grouped = score_interval(values, [0, 0, 1, 1, 2, 2, 3, 3], metrics.median, 0.9)
    assert grouped.high - grouped.low > interval.high - interval.low  # type: ignore[operator]
    assert score_interval(values, range(8), partial(lambda by, each: sum(each) / by, 2.0), 4.5).low is not None
    assert score_interval(values, range(8), lambda each: 1 / (len({*each}) - 8), 1.0) == (1.0, None, None, None), (
        "it fails"
    )
    assert score_interval(values, ["one text"] * 8, metrics.median, 0.9).low is None


def test_few_items_have_a_lower_reported_coverage() -> None:
    few, many = (score_interval([*np.linspace(0.1, 0.9, n)], range(n), metrics.mean, 0.5) for n in (5, 200))
    assert few.simulated_coverage < 0.93 < many.simulated_coverage  # type: ignore[operator]


def test_infinite_bound_is_omitted_and_undefined_resamples_are_handled() -> None:
    surprising = [-1.0, -2.0, -800.0]
    assert score_interval(surprising, range(3), metrics.perplexity, metrics.perplexity(surprising)).high is None
    for values, aggregation, least in (
        ([(-1.0, 2), (-2.0, 3), (-9.0, 4)], metrics.bits_per_byte, 0.0),
        ([(-1.0, 2), (-2.0, 3), (-9.0, 4)], metrics.weighted_perplexity, 1.0),
        ([-0.1, -0.2, -4.0], metrics.perplexity, 1.0),
    ):
        assert score_interval(values, range(3), aggregation, aggregation(values)).low == least


def test_items_without_bytes_are_ignored() -> None:
    values = [(-1.0, 2), (-2.0, 3), (-9.0, 4), (0.0, 0)]
    with_empty, without = (
        score_interval(some, range(len(some)), metrics.bits_per_byte, metrics.bits_per_byte(some))
        for some in (values, values[:3])
    )
    assert with_empty == without


def test_accuracy_accepts_numpy_values_and_missing_items() -> None:
    expected = score_interval([1, 0, 1], range(3), metrics.mean, 2 / 3)
    assert score_interval([np.bool_(1), np.int64(0), np.float32(1)], range(3), metrics.mean, 2 / 3) == expected
    assert score_interval([1.0, 0.0, math.nan, 1.0], range(4), metrics.nanmean, 2 / 3) == expected
