"""A score's interval is that of what it is made of: right and wrong, sums by bytes, figures of all items together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api import metrics

from pipeline.evaluate.intervals import interval, is_right_or_wrong
from pipeline.evaluate.written import BOUNDS
from pipeline.ground.statistics import ratio, share


def test_right_and_wrong_by_cluster() -> None:
    values, clusters = [1, 0, 1, 1, 0, 1], ["a", "a", "b", "b", "c", "c"]
    assert is_right_or_wrong(values) and not is_right_or_wrong([0, 0.5]) and not is_right_or_wrong([("a", "b")])
    found = interval(values, clusters, metrics.mean, 4 / 6, 0.2)
    assert found == share(np.array([1.0, 2.0, 1.0]), np.array([2.0, 2.0, 2.0]))
    assert found != interval(values, range(6), metrics.mean, 4 / 6, 0.2)


def test_a_mean_of_numbers() -> None:
    values = [0.25, 0.5, 0.75, 0.1]
    assert interval(values, range(4), metrics.mean, 0.4, None) == ratio(np.array(values), np.ones(4))


def test_an_interval_stays_where_its_score_lies() -> None:
    values = [0.2, 1.0, 1.0, 1.0, 1.0]
    found = interval(values, range(5), metrics.nanmean, 0.84, None, BOUNDS["claims_found"])
    free = interval(values, range(5), metrics.nanmean, 0.84, None)
    assert free.high is not None and free.high > 1 and found == (free.value, free.low, 1)
    low = interval([0.8, 0, 0, 0, 0], range(5), metrics.mean, 0.16, None, BOUNDS["rouge_l"])
    assert low.low == 0 and low.high == pytest.approx(1 - found.low)


@pytest.mark.parametrize("aggregation", [metrics.mean, metrics.nanmean])
def test_values_that_are_few_or_all_alike_have_no_interval(aggregation: Any) -> None:
    assert interval([95.1] * 7, range(7), aggregation, 95.1, None) == (pytest.approx(95.1), None, None)
    assert interval([3.5, 7.25], range(2), aggregation, 5.375, None) == (5.375, None, None)
    assert interval([3.5, 7.25, 4.0], range(3), aggregation, 14.75 / 3, None).low is not None
    values = [3.5, math.nan, 7.25, math.nan]
    assert interval(values, range(4), metrics.nanmean, 5.375, None) == (5.375, None, None)
    assert interval([("a", "a")] * 9, range(9), metrics.chrf, 100.0, 0.0) == (100.0, None, None)


@given(st.lists(st.booleans(), min_size=2, max_size=40))
def test_right_and_wrong_always_have_an_interval(right: list[bool]) -> None:
    """Wilson's has a width even where all or none are right."""
    found = interval(right, range(len(right)), metrics.mean, sum(right) / len(right), None)
    assert found.low is not None and found.high is not None and 0 <= found.low < found.high <= 1


def test_items_without_a_value_count_for_nothing() -> None:
    values, clusters = [0.25, math.nan, 0.75, 0.1, math.nan], ["a", "b", "c", "a", "c"]
    expected = ratio(np.array([0.35, 0.75]), np.array([2.0, 1.0]))
    assert interval(values, clusters, metrics.nanmean, 1.1 / 3, 0.2) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["bits_per_byte", "weighted_perplexity", "perplexity"])
def test_sums_of_log_probabilities_have_the_value_of_lm_eval(kind: str) -> None:
    random = np.random.default_rng(1)
    nats, units = -random.uniform(20, 60, 30), random.integers(10, 30, 30)
    values: list[Any] = [*map(float, nats / 30)] if kind == "perplexity" else [*zip(nats, units, strict=True)]
    aggregation = getattr(metrics, kind)
    found = interval(values, range(30), aggregation, aggregation(values), None)
    assert found.value == pytest.approx(aggregation(values))
    assert found.low is not None and found.high is not None and found.low < found.value < found.high
    twice = interval(values * 2, [*range(30)] * 2, aggregation, aggregation(values), None)
    assert (twice.low, twice.high) == (pytest.approx(found.low), pytest.approx(found.high)), "the same texts again"


def test_a_figure_of_all_items_has_the_error_of_drawing_them_again() -> None:
    pairs = [("a cat sat", "a cat sat"), ("the dog", "a dog")] * 5
    found = interval(pairs, range(10), metrics.chrf, 61.0, 2.5)
    assert found == (61.0, 61 - 1.96 * 2.5, 61 + 1.96 * 2.5)
    assert interval(pairs, range(10), metrics.chrf, 1.0, 2.5).low == 0
    assert interval(pairs, range(10), metrics.matthews_corrcoef, 0.1, 0.2).low == pytest.approx(-0.292)
    assert interval(pairs, range(10), metrics.chrf, 61.0, None) == (61.0, None, None)
    assert interval(pairs, ["one text"] * 10, metrics.chrf, 61.0, 2.5) == (61.0, None, None)
    assert math.isfinite(found.value)
