"""Intervals have their nominal coverage: for documents of all lengths, for answers, for clustered answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pipeline.core.confidence_intervals import (
    SIMULATED_COVERAGE,
    proportion_interval,
    ratio_interval,
    simulated_coverage,
)
from tests.evaluate.coverage import KINDS, coverage


def test_single_document_has_no_interval() -> None:
    assert ratio_interval(np.array([3.0]), np.array([2])) == (1.5, None, None)
    assert ratio_interval(np.array([3.0, 0.0]), np.array([2, 0])) == (1.5, None, None), "one of them has everything"


def test_interval_of_many_documents_is_students() -> None:
    """Documents of one length, more than are resampled: the jackknife's error of a mean is the mean's own."""
    values = np.random.default_rng(1).exponential(1, 1500)
    result, expected = (
        ratio_interval(3 * values, np.full(1500, 3)),
        stats.ttest_1samp(values, 0).confidence_interval(0.95),
    )
    assert (result.low, result.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def studentised(over: list[float], under: list[float]) -> tuple[float, float, float]:
    """Return a ratio with its studentised interval, resample by resample and document by document."""
    count, value = len(over), sum(over) / sum(under)

    def error(rows: list[int]) -> float:
        total, of_rows = (
            sum(under[row] for row in rows),
            sum(over[row] for row in rows) / sum(under[row] for row in rows),
        )
        return math.sqrt(count / (count - 1) * sum((over[row] - of_rows * under[row]) ** 2 for row in rows)) / total

    smallest, result = error([*range(count)]) / 4, []
    for rows in np.random.default_rng(0).integers(count, size=(1999, count)).tolist():
        moved = sum(over[row] for row in rows) / sum(under[row] for row in rows) - value
        result.append(moved / max(error(rows), smallest))
    result.sort()
    kish = sum(under) ** 2 / sum(one**2 for one in under)
    t, plain = (float(stats.t.ppf(0.975, freedom)) for freedom in (max(kish - 1, 1), count - 1))
    without = [(sum(over) - x) / (sum(under) - u) for x, u in zip(over, under, strict=True)]
    jackknife = math.sqrt((count - 1) / count * sum((one - sum(without) / count) ** 2 for one in without))
    low, high = (
        value - max(t, result[1949] * t / plain) * jackknife,
        value + max(t, -result[49] * t / plain) * jackknife,
    )
    return value, low, high


@pytest.mark.parametrize("documents", [2, 3, 12])
def test_interval_equals_that_of_a_plain_loop(documents: int) -> None:
    random = np.random.default_rng(documents)
    under = random.integers(5, 50, documents).astype(float)
    over = under * random.lognormal(0, 1, documents)
    assert ratio_interval(over, under) == pytest.approx(studentised(over.tolist(), under.tolist()))
    assert ratio_interval(over, under) == ratio_interval(over, under), "always the same resamples"


def test_interval_of_skewed_values_is_longer_on_the_skewed_side() -> None:
    values = np.random.default_rng(2).lognormal(0, 1, 20)
    result, even = ratio_interval(values, np.ones(20)), stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert result.low == pytest.approx(even.low) and result.high > even.high + 0.1 * (even.high - even.low)  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize(("units", "least"), [(5, 0.88), (20, 0.91), (60, 0.93)])
def test_intervals_of_skewed_means_cover_the_truth(units: int, least: float) -> None:
    """Lognormal values, which Student's intervals cover in 82 to 90 of 100 cases."""
    rounds, truth = 2000, math.exp(0.5)
    drawn = np.random.default_rng(units).lognormal(0, 1, (rounds, units))
    results = [ratio_interval(values, np.ones(units)) for values in drawn]
    held = sum(one.low <= truth <= one.high for one in results) / rounds  # type: ignore[operator]
    even = stats.ttest_1samp(drawn, 0, axis=1).confidence_interval(0.95)
    assert least <= held <= 0.97 and held > ((even.low <= truth) & (even.high >= truth)).mean() + 0.03


def test_printed_coverage_equals_that_of_the_benchmark() -> None:
    for kind, name in (("mean", "lognormal, σ 1"), ("corpus-level", "chrF about 5")):
        assert coverage(KINDS[kind][name], 10, 500) >= simulated_coverage(kind, 10) - 0.03
    assert simulated_coverage("mean", 19.99) == simulated_coverage("mean", 10) < simulated_coverage("mean", 80)
    assert (
        simulated_coverage("mean", 1.2) == SIMULATED_COVERAGE["mean"][0] and simulated_coverage("share", 10**6) >= 0.94
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("documents", "spread", "least", "rounds"),
    [
        (12, 0.5, 0.93, 4000),
        (80, 0.9, 0.94, 1500),
        (400, 1.3, 0.94, 300),
        pytest.param(80, 0.9, 0.94, 4000, marks=pytest.mark.thorough),
        pytest.param(400, 1.3, 0.94, 4000, marks=pytest.mark.thorough),
    ],
)
def test_intervals_of_ratios_cover_the_truth(documents: int, spread: float, least: float, rounds: int) -> None:
    """Documents of very unequal length, with tokens correlated within a document and harder in short ones."""
    random = np.random.default_rng(documents)
    hits = 0
    sizes = np.ceil(random.lognormal(5, spread, (rounds, documents)))
    level = 3 + random.normal(0, 0.5, sizes.shape) + 4 / np.sqrt(sizes)
    nats = sizes * level + np.sqrt(sizes) * random.normal(0, 2, sizes.shape)
    many = np.ceil(random.lognormal(5, spread, 10**6))
    truth = float((many * (3 + 4 / np.sqrt(many))).sum() / many.sum())
    for nats_D, size_D in zip(nats, sizes, strict=True):
        result = ratio_interval(nats_D, size_D)
        assert result.low is not None and result.high is not None
        hits += result.low <= truth <= result.high
    assert least <= hits / rounds <= 0.98


def test_interval_of_a_proportion_is_wilsons_with_students_t() -> None:
    """30 items in separate clusters; t instead of 1.96, as the variance is estimated."""
    result = proportion_interval(np.array([1.0] * 21 + [0.0] * 9), np.ones(30))
    t = float(stats.t.ppf(0.975, 29))
    middle = (0.7 + t**2 / 60) / (1 + t**2 / 30)
    reach = t / (1 + t**2 / 30) * math.sqrt(0.7 * 0.3 / 30 + t**2 / 3600)
    assert result == (pytest.approx(0.7), pytest.approx(middle - reach), pytest.approx(middle + reach))
    normal = stats.binomtest(21, 30).proportion_ci(method="wilson")
    assert (result.low, result.high) == pytest.approx((normal.low, normal.high), abs=0.01)


def test_repeated_items_count_once() -> None:
    """Ten questions, each asked five times with equal answers, carry the information of ten."""
    once = proportion_interval(np.array([1.0] * 6 + [0.0] * 4), np.ones(10))
    five = proportion_interval(np.array([5.0] * 6 + [0.0] * 4), np.full(10, 5.0))
    assert five.low == pytest.approx(once.low, abs=0.03) and five.high == pytest.approx(once.high, abs=0.03)
    apart = proportion_interval(np.array([1.0] * 30 + [0.0] * 20), np.ones(50))
    assert five.high - five.low > 2 * (apart.high - apart.low)  # type: ignore[operator]


def test_proportion_of_one_has_a_lower_bound_and_one_cluster_has_no_interval() -> None:
    result = proportion_interval(np.ones(20), np.ones(20))
    assert result.value == result.high == 1 and result.low == pytest.approx(0.82, abs=0.01)
    assert proportion_interval(np.full(20, 9.0), np.full(20, 9.0)) == result, "nine equal ones count as one"
    assert proportion_interval(np.array([3.0]), np.array([5])) == (0.6, None, None)


@pytest.mark.slow
@pytest.mark.parametrize("items", [40, 100, 1000])
def test_proportion_intervals_cover_the_truth_in_95_percent(items: int) -> None:
    random, rounds, hits = np.random.default_rng(items), 600, 0
    truths = np.linspace(0.05, 0.95, 10)
    for truth in truths:
        for right in random.random((rounds, items)) < truth:
            result = proportion_interval(right.astype(float), np.ones(items))
            hits += result.low <= truth <= result.high  # type: ignore[operator]
    assert 0.94 <= round(hits / (rounds * len(truths)), 2) <= 0.96


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.05, 0.3])
def test_proportion_intervals_of_clustered_items_cover_the_truth(correlation: float) -> None:
    """Forty texts with 1 to 20 questions each and correlated answers; independent items would claim too much."""
    random, rounds, hits, of_single = np.random.default_rng(7), 800, 0, 0
    truths = (0.25, 0.5, 0.75)
    for truth in truths:
        for _ in range(rounds):
            sizes = random.integers(1, 20, 40)
            levels = random.beta(
                truth * (1 - correlation) / correlation, (1 - truth) * (1 - correlation) / correlation, 40
            )
            right = random.binomial(sizes, levels).astype(float)
            result = proportion_interval(right, sizes)
            single = proportion_interval(
                np.repeat([1.0, 0.0], [int(right.sum()), int((sizes - right).sum())]), np.ones(sizes.sum())
            )
            hits += result.low <= truth <= result.high  # type: ignore[operator]
            of_single += single.low <= truth <= single.high  # type: ignore[operator]
    assert 0.935 <= hits / (rounds * len(truths)) <= 0.965
    assert of_single / (rounds * len(truths)) < (0.9 if correlation < 0.1 else 0.7)
