"""Intervals hold the truth as often as they say: of documents of all lengths, of answers, of answers that are alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pipeline.ground.statistics import ratio, share


def test_a_single_document_has_no_interval() -> None:
    assert ratio(np.array([3.0]), np.array([2])) == (1.5, None, None)
    assert ratio(np.array([3.0, 0.0]), np.array([2, 0])) == (1.5, None, None), "one of them has everything"


def test_an_interval_is_that_of_the_textbook() -> None:
    """Three documents of one length: ratio 2, left out one by one 1.5, 2.25 and 2.25; t at 97.5 % of 2 is 4.3027."""
    found = ratio(np.array([6.0, 3.0, 3.0]), np.array([2, 2, 2]))
    without = [6 / 4, 9 / 4, 9 / 4]
    error = math.sqrt(2 / 3 * sum((one - 2.0) ** 2 for one in without))
    assert found.value == 2.0 and found.low == pytest.approx(2 - 4.302652729911275 * error)
    assert found.high == pytest.approx(2 + 4.302652729911275 * error)


@pytest.mark.parametrize(("documents", "spread", "least"), [(12, 0.5, 0.93), (80, 0.9, 0.94), (400, 1.3, 0.94)])
def test_intervals_of_ratios_cover_the_truth(documents: int, spread: float, least: float) -> None:
    """Documents of very unequal length, whose tokens are alike within a document and harder in short ones."""
    random = np.random.default_rng(documents)
    rounds, hits = 4000, 0
    sizes = np.ceil(random.lognormal(5, spread, (rounds, documents)))
    level = 3 + random.normal(0, 0.5, sizes.shape) + 4 / np.sqrt(sizes)
    nats = sizes * level + np.sqrt(sizes) * random.normal(0, 2, sizes.shape)
    many = np.ceil(random.lognormal(5, spread, 10**6))
    truth = float((many * (3 + 4 / np.sqrt(many))).sum() / many.sum())
    for nats_D, size_D in zip(nats, sizes, strict=True):
        found = ratio(nats_D, size_D)
        assert found.low is not None and found.high is not None
        hits += found.low <= truth <= found.high
    assert least <= hits / rounds <= 0.96


def test_the_interval_of_a_share_is_wilsons() -> None:
    """Of 30 items alone in their clusters; with Student's t in place of the normal's, as the variance is estimated."""
    found = share(np.array([1.0] * 21 + [0.0] * 9), np.ones(30))
    t = float(stats.t.ppf(0.975, 29))
    middle = (0.7 + t**2 / 60) / (1 + t**2 / 30)
    reach = t / (1 + t**2 / 30) * math.sqrt(0.7 * 0.3 / 30 + t**2 / 3600)
    assert found == (pytest.approx(0.7), pytest.approx(middle - reach), pytest.approx(middle + reach))
    normal = stats.binomtest(21, 30).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((normal.low, normal.high), abs=0.01)


def test_items_that_repeat_each_other_count_once() -> None:
    """Ten questions, each asked five times and answered alike, tell as much as ten."""
    once = share(np.array([1.0] * 6 + [0.0] * 4), np.ones(10))
    five = share(np.array([5.0] * 6 + [0.0] * 4), np.full(10, 5.0))
    assert five.low == pytest.approx(once.low, abs=0.03) and five.high == pytest.approx(once.high, abs=0.03)
    apart = share(np.array([1.0] * 30 + [0.0] * 20), np.ones(50))
    assert five.high - five.low > 2 * (apart.high - apart.low)  # type: ignore[operator]


def test_a_share_of_all_is_not_certain_and_a_single_cluster_tells_nothing() -> None:
    found = share(np.ones(20), np.ones(20))
    assert found.value == found.high == 1 and found.low == pytest.approx(0.82, abs=0.01)
    assert share(np.array([3.0]), np.array([5])) == (0.6, None, None)


@pytest.mark.parametrize("items", [40, 100, 1000])
def test_intervals_of_shares_cover_the_truth_nineteen_times_of_twenty(items: int) -> None:
    random, rounds, hits = np.random.default_rng(items), 600, 0
    truths = np.linspace(0.05, 0.95, 10)
    for truth in truths:
        for right in random.random((rounds, items)) < truth:
            found = share(right.astype(float), np.ones(items))
            hits += found.low <= truth <= found.high  # type: ignore[operator]
    assert 0.94 <= round(hits / (rounds * len(truths)), 2) <= 0.96


@pytest.mark.parametrize("alike", [0.05, 0.3])
def test_intervals_of_items_that_are_alike_cover_it_too(alike: float) -> None:
    """Forty texts with 1 to 20 questions each, whose answers are alike; taken one by one they would claim too much."""
    random, rounds, hits, of_single = np.random.default_rng(7), 800, 0, 0
    truths = (0.25, 0.5, 0.75)
    for truth in truths:
        for _ in range(rounds):
            sizes = random.integers(1, 20, 40)
            levels = random.beta(truth * (1 - alike) / alike, (1 - truth) * (1 - alike) / alike, 40)
            right = random.binomial(sizes, levels).astype(float)
            found = share(right, sizes)
            single = share(np.repeat([1.0, 0.0], [int(right.sum()), int((sizes - right).sum())]), np.ones(sizes.sum()))
            hits += found.low <= truth <= found.high  # type: ignore[operator]
            of_single += single.low <= truth <= single.high  # type: ignore[operator]
    assert 0.935 <= hits / (rounds * len(truths)) <= 0.965
    assert of_single / (rounds * len(truths)) < (0.9 if alike < 0.1 else 0.7)
