"""Test a score against trivial baselines.

A model is better than a baseline if its score on the same items is significantly higher: one-sided, 5 % over all scores
of a checkpoint (Holm, 1979). Its verdict requires it to be better than every baseline.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc

from pipeline.core.confidence_intervals import assign_cluster_indices
from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.evaluate.item_results import TaskItem
from pipeline.evaluate.score_intervals import CORPUS_METRICS, CorpusMetric, ItemStatistics, sum_clusters

LEVEL = 0.05
SLOR = "acc_slor"  # the right sentence has the higher SLOR
PERMUTATIONS = 20_000
FEW_EXTREMES, MORE_FACTOR = 10, 9  # drawings that lead as much, and how many times as many follow where there are fewer
TIE_TOLERANCE = 1e-9  # nats: two choices that differ by less are equal
Floats = NDArray[np.float64]
ChoiceScorer = Callable[[TaskItem], Sequence[float]]


def tie_averaged_credit(item: TaskItem, scores: Sequence[float]) -> float:
    """Return the share of right answers among the choices with the best score: the mean over random tie-breaks."""
    best = [number for number, score in enumerate(scores) if score >= max(scores) - TIE_TOLERANCE]
    return len(item.right.intersection(best)) / len(best)


def majority_credits(items: Sequence[TaskItem]) -> Floats:
    """Return the credits of always answering the text that is right most often among the other items."""
    often = Counter(normalize_nfc(item.choices[number]) for item in items for number in item.right)

    def score_by_answer_frequency(item: TaskItem) -> list[float]:
        own = {normalize_nfc(item.choices[number]) for number in item.right}
        return [often[choice] - (choice in own) for choice in map(normalize_nfc, item.choices)]

    return np.array([tie_averaged_credit(item, score_by_answer_frequency(item)) for item in items])


def normalize_choice_scores_by_length(item: TaskItem, metric: str, scores: Sequence[float]) -> list[float]:
    """Normalize the log-probabilities of the choices as a metric does.

    `acc_norm` divides by the characters. `acc_slor` subtracts the unigram log-probability and divides by the number of
    tokens: SLOR, Pauls and Klein, ACL 2012.
    """
    if metric == "acc_norm":
        return [score / max(len(normalize_nfc(choice)), 1) for score, choice in zip(scores, item.choices, strict=True)]
    if metric == SLOR:
        of_choices = zip(scores, item.unigram, item.tokens, strict=True)
        return [(score - unigram) / max(tokens, 1) for score, unigram, tokens in of_choices]
    return list(scores)


def baseline_credits(
    items: Sequence[TaskItem], metric: str, models: dict[str, ChoiceScorer], others: dict[str, Floats]
) -> dict[str, Floats]:
    """Return the credits per item of each baseline by its name.

    Args:
        items: with the model's answers.
        metric: that of the score.
        models: return the log-probabilities of the choices of an item, by name.
        others: the credits of earlier baselines by name; NaN for items that they did not answer.
    """
    credits_by_baseline: dict[str, Floats] = {}
    if all(item.choices for item in items):
        lengths = [[len(normalize_nfc(choice)) for choice in item.choices] for item in items]
        credits_by_baseline = {
            "chance": np.array([len(item.right) / len(item.choices) for item in items]),
            "majority answer": majority_credits(items),
            "longest answer": np.array(
                [tie_averaged_credit(item, length) for item, length in zip(items, lengths, strict=True)]
            ),
            "shortest answer": np.array(
                [
                    tie_averaged_credit(item, [-one for one in length])
                    for item, length in zip(items, lengths, strict=True)
                ]
            ),
        }
        for name, model in models.items():
            credits_by_baseline[name] = np.array(
                [
                    tie_averaged_credit(item, normalize_choice_scores_by_length(item, metric, model(item)))
                    for item in items
                ]
            )
    return credits_by_baseline | {name: credits for name, credits in others.items() if not np.isnan(credits).all()}


def chance_p_value(right: Floats, chance: Floats) -> float:
    """Return the exact p-value of guessing, for items with different numbers of choices."""
    from scipy import stats  # here, for it loads for half a second in every process that reads scores

    return float(stats.poisson_binom.sf(int(right.sum()) - 1, chance))


def sign_flip_p_value(right: Floats, credits: Floats) -> float:
    """Return the one-sided p-value of a paired test with random signs of the differences.

    If all differences have the same size, as with credits of 0 and 1, this is McNemar's exact test; else signs are
    drawn.
    """
    difference = right - credits
    differing = difference[difference != 0]
    if not len(differing):
        return 1.0
    if float(np.ptp(np.abs(differing))) < TIE_TOLERANCE:
        return float(bdtrc(int((differing > 0).sum()) - 1, len(differing), 0.5))
    return _permutation_p_value(len(differing), lambda signs_RK: signs_RK @ differing)


def paired_randomization_p_value(
    own_KS: Floats, other_KS: Floats, metric: CorpusMetric, *, two_sided: bool = False
) -> float:
    """Return the p-value of a difference of a corpus-level metric by approximate randomization.

    As in sacreBLEU (Noreen, Computer-Intensive Methods for Testing Hypotheses, 1989), but items of a cluster are
    swapped together.

    Args:
        own_KS: the sums of statistics of each cluster, (clusters, S).
        other_KS: the same of the other model.
        metric: of these sums.
        two_sided: whether a lead of the other model counts as well.
    """
    is_other_K = (own_KS != other_KS).any(axis=1)
    if not is_other_K.any():
        return 1.0
    differing_KS, total_S = (own_KS - other_KS)[is_other_K], own_KS.sum(axis=0) + other_KS.sum(axis=0)
    direction = 1 if metric.higher_is_better else -1

    def permuted_leads(signs_RK: NDArray[np.int8]) -> Floats:
        change_RS = signs_RK @ differing_KS
        lead_R = direction * (metric.score((total_S + change_RS) / 2) - metric.score((total_S - change_RS) / 2))
        return np.abs(lead_R) if two_sided else lead_R

    return _permutation_p_value(len(differing_KS), permuted_leads)


def _permutation_p_value(units: int, permuted_leads: Callable[[NDArray[np.int8]], Floats]) -> float:
    """Return the share of random signs of units whose lead is at least the observed one.

    Args:
        units: the number of signs.
        permuted_leads: returns the leads, (permutations,), of signs, (permutations, units); all +1 is the observed one.
    """
    random, lead = np.random.default_rng(0), float(permuted_leads(np.ones((1, units), dtype=np.int8))[0])

    def count_extreme_permutations(flips: int) -> int:
        """Count the permutations with at least the observed lead."""
        count = 0
        for rounds in np.array_split(np.arange(flips), max(1, flips * units // 10**7)):
            signs_RK = random.integers(0, 2, (len(rounds), units), dtype=np.int8) * 2 - 1
            count += int((permuted_leads(signs_RK) >= lead - TIE_TOLERANCE).sum())
        return count

    flips, at_least = PERMUTATIONS, count_extreme_permutations(PERMUTATIONS)
    if at_least < FEW_EXTREMES:  # or no lead could be real among hundreds of comparisons
        flips, at_least = (
            flips + MORE_FACTOR * PERMUTATIONS,
            at_least + count_extreme_permutations(MORE_FACTOR * PERMUTATIONS),
        )
    return (1 + at_least) / (1 + flips)


def holm_correction(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple tests (Holm, Scand. J. Stat. 6, 1979)."""
    corrected, least = [1.0] * len(p_values), 0.0
    for place, number in enumerate(sorted(range(len(p_values)), key=lambda number: p_values[number])):
        least = max(least, min(1.0, (len(p_values) - place) * p_values[number]))
        corrected[number] = least
    return corrected


def compare_with_baselines(
    items: Sequence[TaskItem], metric: str, models: dict[str, ChoiceScorer], others: dict[str, Floats] | None = None
) -> dict[str, Any]:
    """Return the baselines' scores, the hardest baseline, and the p-value of being better than each; or nothing.

    The metric is binary or graded; the other arguments are those of `baseline_credits`.
    """
    right = np.array([(item.correct | item.graded)[metric] for item in items], dtype=np.float64)
    credits = baseline_credits(items, metric, models, others or {})
    if not credits:
        return {}
    values = {name: float(np.nanmean(each)) for name, each in credits.items()}
    p_values = {name: clustered_p_value(items, right, each) for name, each in credits.items()}
    if "chance" in credits and all(item.cluster is None for item in items):
        p_values["chance"] = chance_p_value(right, credits["chance"])
    return _summarize_baselines(values, p_values, values) | {"chance_level": values.get("chance")}


def compare_bits_with_baselines(items: Sequence[TaskItem], credits: dict[str, Floats]) -> dict[str, Any]:
    """Return the same for bits per byte; credits are a baseline's log-probabilities of the texts, in nats."""
    own = np.array([item.target_log_probability for item in items])
    bytes_I = np.array([item.target_bytes for item in items], dtype=np.float64)
    credits = {name: each for name, each in credits.items() if not np.isnan(each).all()}
    if not credits:
        return {}
    values = {
        name: -float(np.nansum(each)) / math.log(2) / float(bytes_I[~np.isnan(each)].sum())
        for name, each in credits.items()
    }
    p_values = {name: clustered_p_value(items, own, each) for name, each in credits.items()}
    return _summarize_baselines(values, p_values, {name: -value for name, value in values.items()})


def compare_corpus_metric_with_baselines(
    items: Sequence[TaskItem], metric: str, others: dict[str, Sequence[ItemStatistics | None]]
) -> dict[str, Any]:
    """Return the same for a corpus-level metric, from the baselines' statistics; None for unanswered items."""
    values: dict[str, float] = {}
    p_values: dict[str, float] = {}
    kind = CORPUS_METRICS[items[0].statistics[metric].aggregation]
    cluster_I = item_cluster_indices(items)
    for name, of_items in others.items():
        own = [item.statistics[metric] if other else None for item, other in zip(items, of_items, strict=True)]
        if not any(own):
            continue
        own_KS, other_KS = sum_clusters(own, cluster_I), sum_clusters(of_items, cluster_I)
        values[name] = float(kind.score(other_KS.sum(axis=0)))
        p_values[name] = paired_randomization_p_value(own_KS, other_KS, kind)
    if not values:
        return {}
    direction = 1 if kind.higher_is_better else -1
    return _summarize_baselines(values, p_values, {name: direction * value for name, value in values.items()})


def _summarize_baselines(
    values: dict[str, float], p_values: dict[str, float], merits: dict[str, float]
) -> dict[str, Any]:
    """Return the keys of a row; the hardest baseline is the best unbeaten one, or the best if all are beaten."""
    hardest = max(merits, key=lambda name: (p_values[name] >= LEVEL, merits[name]))
    return {"baselines": values, "hardest_baseline": hardest, "p_value": max(p_values.values())}


def item_cluster_indices(items: Sequence[TaskItem]) -> NDArray[np.int64]:
    """Return the number of the cluster of each item; an item without one is a cluster of its own."""
    return assign_cluster_indices(item.number if item.cluster is None else item.cluster for item in items)


def clustered_p_value(items: Sequence[TaskItem], own: Floats, other: Floats) -> float:
    """Return the paired p-value with items of a cluster swapped together; NaN marks unanswered items."""
    cluster_I = item_cluster_indices(items)
    answered = ~np.isnan(other)

    def summed(each: Floats) -> Floats:
        return np.bincount(cluster_I[answered], weights=each[answered]).astype(np.float64)

    return sign_flip_p_value(summed(own), summed(other))


def find_model_constant_answer(items: Sequence[TaskItem]) -> str | None:
    """Return the model's only answer to all items, if it is wrong for some; None if answers vary, or are not asked."""
    given = [item.choices[item.predicted_index] if item.choices else item.written for item in items]
    answers = {normalize_nfc(answer) for answer in given if answer is not None}
    if len(items) < 2 or len(answers) != 1:
        return None
    (answer,) = answers
    never_wrong = all(
        answer in {normalize_nfc(item.choices[number]) for number in item.right}
        if item.choices
        else any(item.correct.values())
        for item in items
    )
    return None if never_wrong else answer


def has_mostly_truncated_prompts(row: dict[str, Any]) -> bool:
    """Return whether more than half of the examples of a score had a truncated prompt."""
    return bool(2 * row.get("examples_truncated", 0) > row["examples"] + row.get("examples_without_value", 0))


def add_verdicts(rows: Sequence[dict[str, Any]]) -> None:
    """Add the corrected p-value and the verdict to the scores of a checkpoint that have a p-value."""
    tested = [row for row in rows if row.get("p_value") is not None]
    for row, corrected in zip(tested, holm_correction([row["p_value"] for row in tested]), strict=True):
        is_better = corrected < LEVEL and row["constant_answer"] is None
        row["p_value_corrected"] = corrected
        row["verdict"] = "better" if is_better else "not better"
