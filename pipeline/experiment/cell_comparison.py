"""Compare the cells of an experiment with the cells of one combination, on the same items and seeds.

Of one seed a difference is that of two checkpoints (`pipeline.evaluate.differences`): what chance in training adds to
it, nothing tells. Of several, two things move it: the seeds and the items, which are the same for all seeds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from pipeline.core.confidence_intervals import CONFIDENCE_LEVEL
from pipeline.evaluate import differences
from pipeline.evaluate.baseline_answers import EvaluatedCheckpoint
from pipeline.evaluate.items import BITS, ItemKey, ScoreKey

Floats = NDArray[np.float64]


class CellDifference(NamedTuple):
    """A mean difference over seeds and items, its standard error and the degrees of freedom that this has."""

    value: float
    error: float
    freedom: float


def difference(lead_SC: Floats, units_C: Floats) -> CellDifference:
    """Return the mean over seeds of what one side leads by, Σ lead / Σ units, and how far chance moves it.

    Seeds and clusters of items both vary, crossed: V = V_seeds + V_items - V_both, the variance of the mean by seeds,
    of the mean by clusters, and of what neither explains, which both count (Cameron, Gelbach and Miller, J. Bus. Econ.
    Stat. 29, 2011, section 2.2); never less than the larger of the two. V_seeds and V_items are the variances of a
    bootstrap over seeds and of one over items in the limit of many draws, times n / (n - 1), which is 2 of two seeds
    and which a bootstrap lacks. The degrees of freedom are Satterthwaite's (Biometrics Bulletin 2, 1946).

    Args:
        lead_SC: (seeds, clusters), of two of each or more, summed over the items of a cluster.
        units_C: what a score is divided by, such as items or bytes.
    """
    seeds, clusters = lead_SC.shape
    whole = float(units_C.sum())
    by_seed_S = lead_SC.sum(axis=1) / whole
    value = float(by_seed_S.mean())
    rest_C = lead_SC.mean(axis=0) - value * units_C
    neither_SC = lead_SC - np.outer(by_seed_S, units_C) - rest_C
    again = clusters / (clusters - 1) / whole**2
    of_seeds = float(by_seed_S.var(ddof=1)) / seeds
    of_items = again * float((rest_C**2).sum())
    of_both = again * float((neither_SC**2).sum()) / (seeds * (seeds - 1))
    variance = max(of_seeds + of_items - of_both, of_seeds, of_items)
    if not variance:
        return CellDifference(value, 0.0, math.inf)
    freedom = variance**2 / (of_seeds**2 / (seeds - 1) + of_items**2 / (clusters - 1))
    return CellDifference(value, math.sqrt(variance), freedom)


def merits(checkpoint: EvaluatedCheckpoint) -> dict[ScoreKey, dict[ItemKey, tuple[float, float]]]:
    """Return of each score what each item adds to it, and in how many units: items, or bytes of bits per byte."""
    found: dict[ScoreKey, dict[ItemKey, tuple[float, float]]] = {}
    answered: dict[str, Mapping[ItemKey, float]] = {**checkpoint.right, **checkpoint.graded}
    for metric, values in answered.items():
        for key, value in values.items():
            found.setdefault((key[0], key[1], metric), {})[key] = (float(value), 1.0)
    for key, (nats, size) in checkpoint.likely.get(BITS, {}).items():
        found.setdefault((key[0], key[1], BITS), {})[key] = (-nats / math.log(2), float(size))
    return found


def _summed(
    of_items: Mapping[ItemKey, tuple[float, float]], keys: Sequence[ItemKey], cluster_I: Sequence[int]
) -> tuple[Floats, Floats]:
    """Return what the items of each cluster add to a score, and in how many units."""
    pairs_IP = np.array([of_items[key] for key in keys])
    values_C, units_C = (np.bincount(cluster_I, weights=each_I).astype(np.float64) for each_I in pairs_IP.T)
    return values_C, units_C


def over_seeds(one: Sequence[EvaluatedCheckpoint], other: Sequence[EvaluatedCheckpoint]) -> Iterator[dict[str, Any]]:
    """Yield a row for each score of two sides that have the same seeds, in one order, two of them or more.

    Compared are the items that all of them answered; a score that is answered in fewer than two clusters has no row.
    Where nothing varies, nothing says how much a difference means: it has no p-value below 1.
    """
    sides = [[merits(checkpoint) for checkpoint in side] for side in (one, other)]
    every = [found for side in sides for found in side]
    for score in sorted(set.intersection(*(set(found) for found in every))):
        keys = sorted(set.intersection(*(set(found[score]) for found in every)))
        names: dict[ItemKey | str, int] = {}
        cluster_I = [names.setdefault(one[0].clusters.get(key, key), len(names)) for key in keys]
        if len(names) < 2:
            continue
        first_SC, second_SC = (
            np.stack([_summed(found[score], keys, cluster_I)[0] for found in side]) for side in sides
        )
        _, units_C = _summed(every[0][score], keys, cluster_I)
        found = difference(first_SC - second_SC, units_C)
        reach, probability = 0.0, 1.0
        if found.error:
            reach = float(stdtrit(found.freedom, (1 + CONFIDENCE_LEVEL) / 2)) * found.error
            probability = 2 * float(stdtr(found.freedom, -abs(found.value) / found.error))
        most = 1.0 if score[2] in one[0].right else math.inf
        values = [float(side_SC.sum(axis=1).mean() / units_C.sum()) for side_SC in (first_SC, second_SC)]
        yield {
            "suite": score[0],
            "task": score[1],
            "metric": score[2],
            "items": len(keys),
            "higher_is_better": score[2] != BITS,
            "a": values[0],
            "b": values[1],
            "difference": found.value,
            "low": max(-most, found.value - reach),
            "high": min(most, found.value + reach),
            "p_value": probability,
            "detectable_difference": found.error or None,
            "error": found.error,
            "freedom": found.freedom,
            "most": most,
        }


def compare_cells(
    one: Mapping[int, EvaluatedCheckpoint], other: Mapping[int, EvaluatedCheckpoint], metrics: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the rows of two combinations, by the seeds that both have; a is the first of them.

    Args:
        one: the last checkpoint by seed.
        other: the same of the combination that it is compared with.
        metrics: TASK/METRIC that are wanted; none: all.
    """
    seeds = sorted(one.keys() & other.keys())
    if len(seeds) > 1:
        rows = [*over_seeds([one[seed] for seed in seeds], [other[seed] for seed in seeds])]
    else:
        rows = [
            {**row, "a": row["a"]["value"], "b": row["b"]["value"]}
            for seed in seeds
            for row in differences.compare_checkpoints(one[seed], other[seed])
        ]
    wanted = [row for row in rows if not metrics or f"{row['task']}/{row['metric']}" in metrics]
    return [{**row, "seeds": seeds} for row in wanted]


def judge(rows: list[dict[str, Any]], alpha: float) -> None:
    """Add to all comparisons of an experiment the corrected p-value, what is detectable, and which side is better.

    The smallest difference that is detected in 80 of 100 experiments is so by the strictest of Holm's levels.
    """
    differences.correct_comparisons(rows, alpha)
    for row in rows:
        if "freedom" in row and row["error"]:
            level = 1 - alpha / 2 / len(rows)
            reach = float(stdtrit(row["freedom"], level) + stdtrit(row["freedom"], differences.POWER))
            row["detectable_difference"] = min(row["most"], reach * row["error"])


def pareto_front(merits_RM: Sequence[Sequence[float]]) -> list[bool]:
    """Return of each row whether no other one is as good in all merits and better in one (Pareto); more are better."""
    table = np.array(merits_RM, dtype=np.float64)
    return [not bool(((table >= row).all(axis=1) & (table > row).any(axis=1)).any()) for row in table]
