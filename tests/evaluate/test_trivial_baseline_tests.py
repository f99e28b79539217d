"""Nothing is called better than a trivial baseline: guessing, lengths, word counts; and not by chance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from pipeline.evaluate.item_results import TaskItem
from pipeline.evaluate.trivial_baseline_tests import (
    ChoiceScorer,
    add_verdicts,
    chance_p_value,
    compare_with_baselines,
    find_model_constant_answer,
    holm_correction,
    sign_flip_p_value,
    tie_averaged_credit,
)


def item(number: int, choices: Sequence[str], right: int, log_probabilities: Sequence[float]) -> TaskItem:
    best = max(range(len(choices)), key=lambda n: (log_probabilities[n], -n))
    texts = tuple(("", choice) for choice in choices)
    correct = {"acc": best == right}
    return TaskItem(number, str(number), tuple(choices), texts, frozenset({right}), tuple(log_probabilities), correct)


def row(items: list[TaskItem], models: dict[str, ChoiceScorer] | None = None) -> dict[str, Any]:
    result = compare_with_baselines(items, "acc", models or {}) | {"constant_answer": find_model_constant_answer(items)}
    add_verdicts([result])
    return result


def pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return sentences with and without a mistake; the mistake is one missing word, as often."""
    words = np.random.default_rng(seed).choice(["zij", "loopt", "snel", "naar", "huis", "de", "kat"], (count, 6))
    return [(" ".join(line[:5]), " ".join(line)) for line in words]


def test_metric_that_rewards_a_unigram_model_is_detected() -> None:
    """A model that prefers common words reaches 1.0, far above chance; so does a word count: it is not better."""
    counts = {"zij": 9, "loopt": 5, "snel": 4, "naar": 7, "huis": 3, "de": 20, "ik": 2, "kat": 2}

    def unigram(one: TaskItem) -> list[float]:  # a mean over the words, like per-word metrics
        logs = [[math.log(counts[word] / 50) for word in choice.split()] for choice in one.choices]
        return [sum(some) / len(some) for some in logs]

    texts = [(" ".join(["de", *good.split()[1:]]), " ".join(["ik", *good.split()[1:]])) for _, good in pairs(200)]
    items = [item(n, (bad, good), 1, unigram(item(n, (bad, good), 1, (0, 0)))) for n, (good, bad) in enumerate(texts)]
    assert np.mean([one.correct["acc"] for one in items]) == 1.0
    praised = row(items)
    assert praised["verdict"] == "better" and praised["chance_level"] == 0.5
    caught = row(items, {"unigram": unigram})
    assert caught["baselines"]["unigram"] == 1.0 and caught["hardest_baseline"] == "unigram"
    assert caught["verdict"] == "not better" and caught["p_value"] == 1.0


@pytest.mark.parametrize(("longer_is_right", "name"), [(True, "longest answer"), (False, "shortest answer")])
def test_answer_length_bias_of_a_task_is_detected(longer_is_right: bool, name: str) -> None:
    items = [
        item(n, pair, int(longer_is_right), (-5, -4) if longer_is_right else (-4, -5))
        for n, pair in enumerate(pairs(100))
    ]
    result = row(items)
    assert result["baselines"][name] == 1.0 and result["hardest_baseline"] == name and result["verdict"] == "not better"


def test_majority_answer_is_counted_over_other_items_and_unique_texts_are_ignored() -> None:
    yes_no = [item(n, ("ja", "nee"), int(n % 4 == 0), (-1, -2)) for n in range(100)]
    assert row(yes_no)["baselines"]["majority answer"] == 0.75
    once = [item(n, (f"wrong {n}", f"right {n}"), 1, (-2, -1)) for n in range(100)]
    assert row(once)["baselines"]["majority answer"] == 0.5, "that the second is always correct cannot be known"
    assert row(once)["verdict"] == "better"


def test_constant_answer_is_named_and_never_better() -> None:
    items = [item(n, ("ja", "nee"), int(n % 4 == 0), (-1, -2)) for n in range(400)]
    result = row(items)
    assert result["constant_answer"] == "ja" and result["verdict"] == "not better"
    assert find_model_constant_answer([item(n, ("ja", "nee"), 0, (-1, -2)) for n in range(9)]) is None, (
        "which is always correct"
    )
    assert find_model_constant_answer(items[:1]) is None


def test_ties_share_the_credit() -> None:
    assert tie_averaged_credit(item(0, ("a", "b", "c"), 1, (0, 0, 0)), (3.0, 3.0, 1.0)) == 0.5


def test_tests_equal_scipy() -> None:
    right = np.array([True] * 60 + [False] * 40)
    assert chance_p_value(right, np.full(100, 0.5)) == pytest.approx(binomtest(60, 100, 0.5, "greater").pvalue)
    other = np.array([1.0] * 40 + [0.0] * 48 + [1.0] * 12)  # the model alone 20 times, the baseline alone 12 times
    exact = binomtest(20, 32, 0.5, "greater").pvalue
    assert sign_flip_p_value(right, other) == pytest.approx(exact)
    assert sign_flip_p_value(right, other + 1e-6 * np.arange(100)) == pytest.approx(exact, abs=0.01), "by coins"
    assert sign_flip_p_value(right, right.astype(float)) == 1.0
    mixed = np.array([0.25] * 50 + [0.5] * 50)
    draws = np.random.default_rng(1).random((40_000, 100)) < mixed
    assert chance_p_value(right, mixed) == pytest.approx((draws.sum(1) >= 60).mean(), abs=0.002)


def test_hardest_baseline_is_the_best_of_those_not_beaten() -> None:
    """Correct in 60 of 100: one in 55 of these and nowhere else (p 0.03), one in 32 and 20 others (p 0.16)."""
    models: dict[str, ChoiceScorer] = {
        "inside": lambda one: [1, 0] if one.number < 55 else [0, 1],
        "beside": lambda one: [1, 0] if one.number < 32 or one.number >= 80 else [0, 1],
    }
    items = [item(n, (f"a {n:03}", f"b {n:03}"), 0, (1, 0) if n < 60 else (0, 1)) for n in range(100)]
    result = compare_with_baselines(items, "acc", models)
    assert result["baselines"]["inside"] == 0.55 and result["baselines"]["beside"] == 0.52
    assert result["hardest_baseline"] == "beside" and result["p_value"] == pytest.approx(0.156, abs=0.001)


def test_constant_answer_is_not_better_despite_significant_tests() -> None:
    rows: list[dict[str, Any]] = [{"p_value": 1e-9, "constant_answer": answer} for answer in (None, "ja")]
    add_verdicts([*rows, {"p_value": None, "constant_answer": None}])
    assert [one["verdict"] for one in rows] == ["better", "not better"]


def test_items_of_one_group_win_or_lose_together() -> None:
    """Ten groups of twenty items with equal answers, eight of them correct: no more than eight of ten clusters."""
    items = [item(n, (f"a {n:03}", f"b {n:03}"), 0, (1, 0) if n < 160 else (0, 1)) for n in range(200)]
    apart = compare_with_baselines(items, "acc", {"reversed": lambda one: [0, 1] if one.number < 160 else [1, 0]})
    assert apart["p_value"] < 1e-9
    groups = [replace(one, cluster=str(one.number // 20)) for one in items]
    together = compare_with_baselines(groups, "acc", {"reversed": lambda one: [0, 1] if one.number < 160 else [1, 0]})
    assert together["p_value"] == pytest.approx(binomtest(8, 10, 0.5, "greater").pvalue)
    assert compare_with_baselines(groups, "acc", {})["p_value"] == together["p_value"], "guessing, too"


def test_holm_correction_equals_the_published_procedure() -> None:
    assert holm_correction([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_correction([]) == [] and holm_correction([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize("pages", [250, pytest.param(1000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", ["guessing", "like a counter of words"])
def test_models_without_skill_are_rarely_called_better(kind: str, pages: int) -> None:
    """At most 5 % of the pages of five tasks name one, if models guess or follow a baseline."""
    random, wrong = np.random.default_rng(5), 0
    texts = [("a b", "c d"), ("e f", "g h")]
    for _ in range(pages):
        rows = []
        for _ in range(5):
            words = random.normal(0, 1, (40, 2))
            own = words + random.normal(0, 1, (40, 2)) if kind != "guessing" else random.normal(0, 1, (40, 2))
            right = (
                random.integers(0, 2, 40) if kind == "guessing" else (words + random.normal(0, 1, (40, 2))).argmax(1)
            )
            items = [item(n, texts[n % 2], int(right[n]), own[n].tolist()) for n in range(40)]
            result = compare_with_baselines(
                items, "acc", {"unigram": lambda one, words=words: words[one.number].tolist()}
            )
            rows.append(result | {"constant_answer": None})
        add_verdicts(rows)
        wrong += any(one["verdict"] == "better" for one in rows)
    assert wrong <= 0.05 * pages


def test_skilled_model_is_called_better() -> None:
    random, result = np.random.default_rng(6), 0
    for _ in range(50):
        right = random.integers(0, 2, 300)
        own = [(1.0, 0.0) if (answer == 0) == (random.random() < 0.75) else (0.0, 1.0) for answer in right]
        result += row([item(n, ("a b", "c d"), int(right[n]), own[n]) for n in range(300)])["verdict"] == "better"
    assert result == 50


def test_large_lead_in_graded_items_stays_significant_among_many_comparisons() -> None:
    random = np.random.default_rng(4)
    first, second = random.normal(0.5, 1.0, 400), random.normal(0.0, 1.0, 400)
    p_value = sign_flip_p_value(first, second)
    assert p_value < 0.05 / 1000 and holm_correction([p_value, *[0.5] * 999])[0] < 0.05
    assert sign_flip_p_value(second, first) > 0.99


def test_rare_lead_is_sampled_until_its_p_value_is_known() -> None:
    """Sixteen leads of different size, only the smallest the other's: two of 65,536 permutations are as large."""
    leads = np.array([-0.01, *np.linspace(0.5, 0.9, 15)])
    signs = np.array([*itertools.product((-1, 1), repeat=16)])
    exact = float((signs @ np.abs(leads) >= leads.sum() - 1e-12).mean())
    assert exact == 2 / 65_536
    p_value = sign_flip_p_value(leads, np.zeros(16))
    assert p_value == pytest.approx(exact, rel=0.6)
    assert p_value < 1 / 20_001 < 0.05 / 500 + p_value
