"""A score's interval is that of what it is made of: right and wrong, sums by bytes, figures of all items together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from lm_eval.api import metrics

from pipeline.evaluate.intervals import interval, is_right_or_wrong
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
