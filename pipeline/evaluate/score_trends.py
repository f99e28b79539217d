"""Find tasks whose scores grow during training by more than noise.

The criteria are those of FineTasks (Hugging Face, 2024) and of Heineman et al., Signal and Noise (2025): scores are
monotonic in training steps, and differences between checkpoints are large relative to noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.core.confidence_intervals import assign_cluster_indices
from pipeline.evaluate.checkpoint_and_baseline_answers import EvaluatedCheckpoint
from pipeline.evaluate.item_results import ANSWER_BITS, BITS, ItemKey, ScoreKey
from pipeline.evaluate.score_intervals import CORPUS_METRICS, jackknife_pseudovalues, sum_clusters
from pipeline.evaluate.trivial_baseline_tests import LEVEL, holm_correction, sign_flip_p_value

LEAST_CHECKPOINTS = 3  # checkpoints: of two, any noise is in order half of the time
MOST_ENUMERATED = 8  # checkpoints, of which all orders are tried
Floats = NDArray[np.float64]


class RankTrend(NamedTuple):
    """Spearman's rank correlation of scores and steps, and its one-sided p-value."""

    correlation: float | None
    p_value: float


def rank_trend(merits_C: Floats) -> RankTrend:
    """Return the rank correlation of the checkpoints' merits, in the order of their steps.

    The p-value enumerates all orders; beyond eight checkpoints it is Student's approximation. Equal merits have no
    correlation.
    """
    count = len(merits_C)
    if float(np.ptp(merits_C)) == 0.0:
        return RankTrend(None, 1.0)
    from scipy import stats  # here, for it loads for half a second in every process that reads scores

    place, ranks = np.arange(count), stats.rankdata(merits_C)
    correlation = stats.spearmanr(place, ranks, alternative="greater")
    if count > MOST_ENUMERATED:
        return RankTrend(float(correlation.statistic), float(correlation.pvalue))
    as_good = np.array([*permutations(ranks)]) @ place >= ranks @ place - 1e-9
    return RankTrend(float(correlation.statistic), float(as_good.mean()))


def answer_instability_noise(merits_GC: Floats, units_G: Floats) -> float:
    """Return the standard deviation of a score with fixed items, by the instability of the answers.

    Of n items (or groups of them) i and K checkpoints c, with y the merit, u the units, and s_c = Σ y_ic / Σ u_i:
    r_ic = y_ic - mean_c y_ic - u_i (s_c - mean_c s_c), noise² = n / (n - 1) · Σ r² / (K - 1) / (Σ u)²: the variance
    of a mean of what neither items nor checkpoints explain (two-way analysis of variance).
    """
    count, checkpoints = merits_GC.shape
    if count < 2:
        return math.inf
    scores_C = merits_GC.sum(axis=0) / units_G.sum()
    rest = merits_GC - merits_GC.mean(axis=1, keepdims=True) - np.outer(units_G, scores_C - scores_C.mean())
    return math.sqrt(count / (count - 1) * float((rest**2).sum()) / (checkpoints - 1)) / float(units_G.sum())


def step_noise(steps_C: Floats, scores_C: Floats) -> float:
    """Return the standard deviation of a score between steps, by its distance from the line through its neighbors.

    ε_c = a s_(c-1) + b s_(c+1) - s_c with a, b those of the line at step c; noise² = mean of ε² / (a² + b² + 1):
    Gasser, Sroka and Jennen-Steinmetz, Biometrika 73 (1986). A curve that bends adds to it. Of three checkpoints there
    is one ε.
    """
    before, here, after = steps_C[:-2], steps_C[1:-1], steps_C[2:]
    a = (after - here) / (after - before)
    away = a * scores_C[:-2] + (1 - a) * scores_C[2:] - scores_C[1:-1]
    return math.sqrt(float((away**2 / (a**2 + (1 - a) ** 2 + 1)).mean()))


def measure_trend(steps: Sequence[int], merits_GC: Floats, units_G: Floats) -> dict[str, Any]:
    """Return signal, noise and growth of the score of one task over the checkpoints of a model.

    Signal is the largest less the smallest score; noise is the larger one of `answer_instability_noise` and
    `step_noise`. Heineman et al. also divide a range by a deviation, over models and over the last checkpoints, which
    are too few here. For pure noise the ratio is about 1 to 2.

    The one-sided p-value is that of a sign-flip test over groups of items: the growth of each is the sum of its merits
    weighted by the centered index of the checkpoint, and without an effect of training both signs are equally likely.

    Args:
        steps: of the checkpoints, growing.
        merits_GC: (groups of items, checkpoints); more are better.
        units_G: what a score is divided by, such as items or bytes.
    """
    count = len(steps)
    scores_C = merits_GC.sum(axis=0) / units_G.sum()
    of_items = answer_instability_noise(merits_GC, units_G)
    of_steps = step_noise(np.array(steps, dtype=np.float64), scores_C)
    noise, signal = max(of_items, of_steps), float(np.ptp(scores_C))
    trend, grown_G = rank_trend(scores_C), merits_GC @ (np.arange(count) - (count - 1) / 2)
    return {
        "signal": signal,
        "noise": noise if math.isfinite(noise) else None,
        "noise_of": "items" if of_items >= of_steps else "steps",
        "signal_to_noise": signal / noise if noise and math.isfinite(noise) else None,
        "rank_correlation": trend.correlation,
        "order_p_value": trend.p_value,
        "p_value": sign_flip_p_value(grown_G, np.zeros(len(grown_G))),
    }


def find_trends(checkpoints: Sequence[EvaluatedCheckpoint]) -> list[dict[str, Any]]:
    """Return a row for each task and metric that all checkpoints of a model answered, for models with three or more.

    Binary metrics, bits per byte and corpus-level metrics such as chrF have a row; others have no values of items. A
    score `grows` if its p-value over items says so, 5 % over all rows of the run (Holm), and if the order of its scores
    has a p-value of 5 %, or is perfect for three checkpoints. The second condition guards against noise that items
    share, such as that of the last batches; with three checkpoints it lets one of six through.
    """
    by_model: dict[str, list[EvaluatedCheckpoint]] = {}
    for checkpoint in sorted(checkpoints, key=lambda one: (one.model, one.step)):
        by_model.setdefault(checkpoint.model, []).append(checkpoint)
    rows = [
        row
        for model_checkpoints in by_model.values()
        if len(model_checkpoints) >= LEAST_CHECKPOINTS
        for row in _model_trends(model_checkpoints)
    ]
    for row, corrected in zip(rows, holm_correction([row["p_value"] for row in rows]), strict=True):
        is_ordered = row["order_p_value"] <= max(LEVEL, 1 / math.factorial(len(row["steps"])))
        row |= {"p_value_corrected": corrected, "grows": corrected < LEVEL and is_ordered}
    return rows


def _model_trends(checkpoints: Sequence[EvaluatedCheckpoint]) -> Iterator[dict[str, Any]]:
    for task, keys, answers in _common_answers([one.right for one in checkpoints]):
        merits_IC = np.array([[each[key] for each in answers] for key in keys], dtype=np.float64)
        yield _mean_score_row(checkpoints, task, keys, merits_IC, np.ones(len(keys)))
    for task, keys, answers in _common_answers([one.likely for one in checkpoints]):
        bits_IC = np.array([[each[key][0] for each in answers] for key in keys]) / math.log(2)
        yield _mean_score_row(
            checkpoints, task, keys, bits_IC, np.array([answers[0][key][1] for key in keys], dtype=np.float64)
        )
    for task, keys, answers in _common_answers([one.statistics for one in checkpoints]):
        kind, group_I = CORPUS_METRICS[answers[0][keys[0]].aggregation], _item_cluster_indices(checkpoints, keys)
        sum_CKS = [sum_clusters([each[key] for key in keys], group_I) for each in answers]
        sign = 1 if kind.higher_is_better else -1
        merits_KC = sign * np.stack([jackknife_pseudovalues(kind, sum_KS) for sum_KS in sum_CKS], axis=1)
        values = [float(kind.score(sum_KS.sum(axis=0))) for sum_KS in sum_CKS]
        yield _trend_row(checkpoints, task, values, len(keys), sign > 0, merits_KC, np.ones(len(merits_KC)))


def _common_answers(
    sides: Sequence[Mapping[str, Mapping[ItemKey, Any]]],
) -> Iterator[tuple[ScoreKey, list[ItemKey], list[Any]]]:
    """Yield each score that all checkpoints have, their common items, and the answers of each checkpoint."""
    for metric in sorted(set.intersection(*map(set, sides))):
        answers = [side[metric] for side in sides]
        common: set[ItemKey] = set.intersection(*map(set, answers))
        for suite, task in sorted({key[:2] for key in common}):
            yield (suite, task, metric), sorted(key for key in common if key[:2] == (suite, task)), answers


def _item_cluster_indices(checkpoints: Sequence[EvaluatedCheckpoint], keys: Sequence[ItemKey]) -> NDArray[np.int64]:
    return assign_cluster_indices(checkpoints[0].clusters.get(key, key) for key in keys)


def _mean_score_row(
    checkpoints: Sequence[EvaluatedCheckpoint], score: ScoreKey, keys: list[ItemKey], merits_IC: Floats, units_I: Floats
) -> dict[str, Any]:
    group_I = _item_cluster_indices(checkpoints, keys)
    count = int(group_I.max()) + 1
    merits_GC, units_G = np.zeros((count, len(checkpoints))), np.zeros(count)
    np.add.at(merits_GC, group_I, merits_IC)
    np.add.at(units_G, group_I, units_I)
    sign = -1 if score[2] in (BITS, ANSWER_BITS) else 1
    values = [sign * float(value) for value in merits_IC.sum(axis=0) / units_I.sum()]
    return _trend_row(checkpoints, score, values, len(keys), sign > 0, merits_GC, units_G)


def _trend_row(
    checkpoints: Sequence[EvaluatedCheckpoint],
    score: ScoreKey,
    values: list[float],
    items: int,
    higher: bool,
    *groups: Floats,
) -> dict[str, Any]:
    steps = [one.step for one in checkpoints]
    return {
        **{"model": checkpoints[0].model, "suite": score[0], "task": score[1], "metric": score[2], "steps": steps},
        **{"values": values, "items": items, "higher_is_better": higher},
        **measure_trend(steps, *groups),
    }
