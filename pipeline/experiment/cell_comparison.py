"""Compare the cells of an experiment with the cells of one combination, on the same items and seeds.

With one seed, two checkpoints are compared (`pipeline.evaluate.differences`), and the randomness of training is
unknown. With several seeds, a difference varies by seeds and by items, which are the same for all seeds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from pipeline.core.confidence_intervals import CONFIDENCE_LEVEL
from pipeline.evaluate import differences
from pipeline.evaluate.checkpoint_and_baseline_answers import EvaluatedCheckpoint
from pipeline.evaluate.item_results import BITS, ItemKey, ScoreKey
from pipeline.pretrain.monitors.held_out_document_losses import read_document_losses

Floats = NDArray[np.float64]
VALIDATION = "validation"
"""The task of held-out documents, in rows and in `compare.metrics`: validation/bits_per_byte."""


class SeedDifference(NamedTuple):
    """A mean difference over seeds and items, its standard error and the degrees of freedom of the latter."""

    value: float
    error: float
    freedom: float


def mean_difference(lead_SC: Floats, units_C: Floats) -> SeedDifference:
    """Return the mean lead of one side over seeds, Σ lead / Σ units, with its standard error.

    Seeds and clusters of items are crossed: V = V_seeds + V_items - V_both, the variances by seeds, by clusters, and of
    the residuals that both include (Cameron, Gelbach and Miller, J. Bus. Econ. Stat. 29, 2011, section 2.2); at least
    the larger one of the first two. V_seeds and V_items are the limits of bootstrap variances over seeds and over
    items, times n / (n - 1), which is 2 for two seeds. The degrees of freedom are Satterthwaite's (Biometrics Bulletin
    2, 1946).

    Args:
        lead_SC: (seeds, clusters), two or more of each, summed over the items of a cluster.
        units_C: the divisor of a score, such as items or bytes.
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
        return SeedDifference(value, 0.0, math.inf)
    freedom = variance**2 / (of_seeds**2 / (seeds - 1) + of_items**2 / (clusters - 1))
    return SeedDifference(value, math.sqrt(variance), freedom)


def collect_item_scores(checkpoint: EvaluatedCheckpoint) -> dict[ScoreKey, dict[ItemKey, tuple[float, float]]]:
    """Return the values and the units of each item for each score; units are items, or bytes for bits per byte."""
    scores: dict[ScoreKey, dict[ItemKey, tuple[float, float]]] = {}
    answered: dict[str, Mapping[ItemKey, float]] = {**checkpoint.right, **checkpoint.graded}
    for metric, values in answered.items():
        for key, value in values.items():
            scores.setdefault((key[0], key[1], metric), {})[key] = (float(value), 1.0)
    for key, (nats, size) in checkpoint.likely.get(BITS, {}).items():
        scores.setdefault((key[0], key[1], BITS), {})[key] = (-nats / math.log(2), float(size))
    return scores


def read_validation_answers(path: Path, model: str, step: int) -> EvaluatedCheckpoint:
    """Read the losses of a model's held-out documents, as log-probabilities of the texts of a task.

    Documents are equal for two models if their id and the size of their text are.

    Raises:
        InputError: the file is no table of losses.
    """
    rows = read_document_losses(path).select(["id_hash", "bytes", "nats"]).to_pylist()
    likely = {
        ("", VALIDATION, row["id_hash"], f"{row['bytes']} bytes"): (-row["nats"], row["bytes"])
        for row in rows
        if row["bytes"]
    }
    return EvaluatedCheckpoint(model, step, {}, {BITS: likely} if likely else {}, {})


def _sum_clusters(
    of_items: Mapping[ItemKey, tuple[float, float]], keys: Sequence[ItemKey], cluster_I: Sequence[int]
) -> tuple[Floats, Floats]:
    """Return the sums of values and of units of each cluster."""
    pairs_IP = np.array([of_items[key] for key in keys])
    values_C, units_C = (np.bincount(cluster_I, weights=each_I).astype(np.float64) for each_I in pairs_IP.T)
    return values_C, units_C


def compare_over_seeds(
    one: Sequence[EvaluatedCheckpoint], other: Sequence[EvaluatedCheckpoint]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each score of two sides with the same two or more seeds, in the same order.

    The items that all checkpoints answered are compared; a score with fewer than two clusters has no row. A difference
    without any variance has the p-value 1.
    """
    sides = [[collect_item_scores(checkpoint) for checkpoint in side] for side in (one, other)]
    every = [scores for side in sides for scores in side]
    for score in sorted(set.intersection(*(set(scores) for scores in every))):
        keys = sorted(set.intersection(*(set(scores[score]) for scores in every)))
        names: dict[ItemKey | str, int] = {}
        cluster_I = [names.setdefault(one[0].clusters.get(key, key), len(names)) for key in keys]
        if len(names) < 2:
            continue
        first_SC, second_SC = (
            np.stack([_sum_clusters(scores[score], keys, cluster_I)[0] for scores in side]) for side in sides
        )
        _, units_C = _sum_clusters(every[0][score], keys, cluster_I)
        difference = mean_difference(first_SC - second_SC, units_C)
        reach, probability = 0.0, 1.0
        if difference.error:
            reach = float(stdtrit(difference.freedom, (1 + CONFIDENCE_LEVEL) / 2)) * difference.error
            probability = 2 * float(stdtr(difference.freedom, -abs(difference.value) / difference.error))
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
            "difference": difference.value,
            "low": max(-most, difference.value - reach),
            "high": min(most, difference.value + reach),
            "p_value": probability,
            "detectable_difference": difference.error or None,
            "error": difference.error,
            "freedom": difference.freedom,
            "most": most,
        }


def compare_cells(
    one: Mapping[int, EvaluatedCheckpoint], other: Mapping[int, EvaluatedCheckpoint], metrics: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the rows of two combinations, over their common seeds; `a` is the first combination.

    Args:
        one: the last checkpoint by seed.
        other: the same for the combination to compare with.
        metrics: TASK/METRIC of the rows; empty for all.
    """
    seeds = sorted(one.keys() & other.keys())
    if len(seeds) > 1:
        rows = [*compare_over_seeds([one[seed] for seed in seeds], [other[seed] for seed in seeds])]
    else:
        rows = [
            {**row, "a": row["a"]["value"], "b": row["b"]["value"]}
            for seed in seeds
            for row in differences.compare_checkpoints(one[seed], other[seed])
        ]
    wanted = [row for row in rows if not metrics or f"{row['task']}/{row['metric']}" in metrics]
    return [{**row, "seeds": seeds} for row in wanted]


def add_corrected_cell_p_values(rows: list[dict[str, Any]], alpha: float) -> None:
    """Add the corrected p-value, the detectable difference and the better side to all comparisons of an experiment.

    The detectable difference has a power of 80 % at the strictest of Holm's levels.
    """
    differences.add_corrected_p_values(rows, alpha)
    for row in rows:
        if "freedom" in row and row["error"]:
            level = 1 - alpha / 2 / len(rows)
            reach = float(stdtrit(row["freedom"], level) + stdtrit(row["freedom"], differences.POWER))
            row["detectable_difference"] = min(row["most"], reach * row["error"])


def find_pareto_front(merits_RM: Sequence[Sequence[float]]) -> list[bool]:
    """Return whether each row is Pareto-optimal: no other one is as good in all merits and better in one."""
    table = np.array(merits_RM, dtype=np.float64)
    return [not bool(((table >= row).all(axis=1) & (table > row).any(axis=1)).any()) for row in table]
