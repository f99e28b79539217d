"""Simulations of score intervals with known truth: of means, proportions, differences and corpus-level metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from lm_eval.api import metrics
from numpy.typing import NDArray

from pipeline.core.confidence_intervals import ConfidenceInterval, proportion_interval, ratio_interval
from pipeline.evaluate.differences import paired_shares_interval as interval_of_pairs
from pipeline.evaluate.language_scores import aggregate_by_language
from pipeline.evaluate.score_intervals import (
    CORPUS_METRICS,
    corpus_difference_interval,
    corpus_metric_interval,
    function_interval,
)

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], tuple[ConfidenceInterval, float]]
"""An interval of the given number of units, and the truth; a draw without an interval does not count."""


def _mean(values: Callable[[np.random.Generator, int], Floats], truth: float) -> Draw:
    def draw(random: np.random.Generator, units: int) -> tuple[ConfidenceInterval, float]:
        drawn = values(random, units)
        result = ratio_interval(drawn, np.ones(units))
        return (result if np.ptp(drawn) else ConfidenceInterval(result.value, None, None)), truth

    return draw


def _of_documents(random: np.random.Generator, units: int) -> tuple[ConfidenceInterval, float]:
    """Documents of very unequal length, with tokens correlated within a document."""
    sizes = np.ceil(random.lognormal(5, 0.9, units))
    return ratio_interval(sizes * random.gamma(4, 0.75, units), sizes), 3.0


def _share(truth: float, correlation: float = 0.0) -> Draw:
    def draw(random: np.random.Generator, units: int) -> tuple[ConfidenceInterval, float]:
        if not correlation:
            return proportion_interval((random.random(units) < truth).astype(float), np.ones(units)), truth
        sizes = random.integers(1, 20, units)
        levels = random.beta(
            truth * (1 - correlation) / correlation, (1 - truth) * (1 - correlation) / correlation, units
        )
        return proportion_interval(random.binomial(sizes, levels).astype(float), sizes), truth

    return draw


def _pairs(only_one: float, only_other: float) -> Draw:
    def draw(random: np.random.Generator, units: int) -> tuple[ConfidenceInterval, float]:
        one, other, _ = random.multinomial(units, [only_one, only_other, 1 - only_one - only_other])
        return ConfidenceInterval(0.0, *interval_of_pairs(int(one), int(other), units)), only_one - only_other

    return draw


def translations(random: np.random.Generator, units: int, quality: float, orders: int = 6) -> Floats:
    """Return sums of chrF statistics of documents: n-grams of text, of reference and common ones of each order."""
    sizes = np.ceil(random.lognormal(6, 0.7, units))
    level = random.beta(8 * quality, 8 * (1 - quality), units)
    columns: list[Floats] = []
    for order in range(orders):
        text, reference = np.maximum(sizes * random.uniform(0.8, 1.2, units) - order, 1).round(), sizes - order
        matches = random.binomial(np.minimum(text, reference).astype(int), level ** (1 + order / 2))
        columns += [text, reference, matches.astype(float)]
    return np.stack(columns, axis=1)


def _chrf(quality: float) -> Draw:
    population = translations(np.random.default_rng(1), 400_000, quality)
    truth = float(CORPUS_METRICS["chrf"].score(population.sum(axis=0)))

    def draw(random: np.random.Generator, units: int) -> tuple[ConfidenceInterval, float]:
        return ConfidenceInterval(
            0.0, *corpus_metric_interval(CORPUS_METRICS["chrf"], translations(random, units, quality))
        ), truth

    return draw


def _chrf_difference(random: np.random.Generator, units: int) -> tuple[ConfidenceInterval, float]:
    """Two models of equal quality with the same hard documents."""
    one = translations(random, units, 0.4)
    other = one.copy()
    moved = np.rint(one[:, 2::3] * random.normal(0, 0.1, (units, 1)))
    other[:, 2::3] = np.clip(one[:, 2::3] + moved, 0, np.minimum(one[:, 0::3], one[:, 1::3]))
    swapped = random.random(units) < 0.5
    first, second = np.where(swapped[:, None], one, other), np.where(swapped[:, None], other, one)
    return ConfidenceInterval(0.0, *corpus_difference_interval(CORPUS_METRICS["chrf"], first, second)), 0.0


def _median(random: np.random.Generator, units: int) -> tuple[ConfidenceInterval, float]:
    return _of_function(metrics.median, random.lognormal(0, 1, units)), 1.0


def _mean_of_function(random: np.random.Generator, units: int) -> tuple[ConfidenceInterval, float]:
    return _of_function(metrics.mean, random.lognormal(0, 1, units)), math.exp(0.5)


def _of_function(function: Callable[..., float], values: Floats) -> ConfidenceInterval:
    ends = function_interval(function, values.tolist(), np.arange(len(values)))
    return ConfidenceInterval(0.0, *(ends or (None, None)))


def _language(
    truths: Sequence[float],
    chances: Sequence[float],
    common: float = 0.0,
    data_sets: Sequence[str] = (),
) -> Draw:
    """Return draws of the mean score of a language: items of each task, correct with their probability.

    Args:
        truths: the accuracies by task.
        chances: the accuracies of guessing.
        common: the share of items with one difficulty in all tasks, or in all tasks of a data set, as if two tasks
            had the same questions.
        data_sets: those of the tasks; without any, the results omit it.
    """
    truth = float(
        np.mean([100 * (share - chance) / (1 - chance) for share, chance in zip(truths, chances, strict=True)])
    )

    def draw(random: np.random.Generator, units: int) -> tuple[ConfidenceInterval, float]:
        named, rows = data_sets or [""] * len(truths), []
        shared = {name: random.random(units) for name in dict.fromkeys(named)}
        for number, (share, chance, name) in enumerate(zip(truths, chances, named, strict=True)):
            of_items = np.where(np.arange(units) < common * units, shared[name], random.random(units)) < share
            result = proportion_interval(of_items.astype(float), np.ones(units))
            row = {"suite": "s", "task": str(number), "language": "nl", "higher_is_better": True, "verdict": None}
            if name:
                row["protocol"] = {"data_set": name, "configuration": None, "split": "test"}
            rows.append({**row, **result._asdict(), "chance_level": chance, "examples": units})
        (score,) = aggregate_by_language(rows)
        return ConfidenceInterval(score.value, score.low, score.high), truth

    return draw


def _rare(random: np.random.Generator, units: int) -> Floats:
    return (random.random(units) < 0.1) * random.uniform(0.2, 1, units)


KINDS: dict[str, dict[str, Draw]] = {
    "mean": {
        "normal": _mean(lambda random, units: random.normal(3, 1, units), 3.0),
        "exponential": _mean(lambda random, units: random.exponential(1, units), 1.0),
        "lognormal, σ 0.5": _mean(lambda random, units: random.lognormal(0, 0.5, units), math.exp(0.125)),
        "lognormal, σ 1": _mean(lambda random, units: random.lognormal(0, 1, units), math.exp(0.5)),
        "0 in nine of ten": _mean(_rare, 0.06),
        "documents of unequal length": _of_documents,
    },
    "share": {
        **{f"right in {truth:.0%}": _share(truth) for truth in (0.02, 0.1, 0.25, 0.5)},
        "25 %, in clusters": _share(0.25, 0.1),
        "50 %, in clusters": _share(0.5, 0.3),
    },
    "difference of shares": {"10 and 10 %": _pairs(0.1, 0.1), "20 and 5 %": _pairs(0.2, 0.05), "2 %": _pairs(0.02, 0)},
    "corpus-level": {"chrF about 30": _chrf(0.4), "chrF about 5": _chrf(0.1), "difference": _chrf_difference},
    "language": {
        "2 tasks, guessing": _language([0.25, 0.5], [0.25, 0.5]),
        "2 tasks, 90 and 60 %": _language([0.9, 0.6], [0.25, 0.5]),
        "2 tasks, 98 and 99 %": _language([0.98, 0.99], [0.25, 0.5]),
        "5 tasks, 15 to 75 %": _language([0.15, 0.3, 0.45, 0.6, 0.75], [0.14, 0.25, 0.25, 0.5, 0.5]),
    },
    "language, same questions": {"2 tasks, guessing": _language([0.5, 0.5], [0.5, 0.5], 1.0)},
    "language, two forms of one data set": {
        "guessing": _language([0.25, 0.25], [0.25, 0.25], 1.0, "aa"),
        "70 and 60 %": _language([0.7, 0.6], [0.25, 0.25], 1.0, "aa"),
        "guessing, independent": _language([0.25, 0.25], [0.25, 0.25], 0.0, "aa"),
        "3 data sets, 30 to 70 %": _language([0.3, 0.4, 0.5, 0.6, 0.6, 0.7], [0.25] * 6, 1.0, "aabbcc"),
    },
    "function": {"median, lognormal": _median, "a mean, lognormal": _mean_of_function},
}


def coverage(draw: Draw, units: int, rounds: int, seed: int = 0) -> float:
    """Return the coverage of the intervals, over draws that have one."""
    random, hits, known = np.random.default_rng((seed, units)), 0, 0
    for _ in range(rounds):
        result, truth = draw(random, units)
        if result.low is not None and result.high is not None:
            known += 1
            hits += result.low <= truth <= result.high
    return hits / max(known, 1)
