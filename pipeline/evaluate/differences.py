"""The step `evaluate differences`: significant differences of checkpoints, and scores that grow during training.

The last checkpoints of any two models are compared on the items that both answered, and so are the last two checkpoints
of each model. An imported model is compared too, as step 0 of the training that began with it. A difference is
significant by McNemar's exact test, two-sided, 5 % over all comparisons of the run (Holm). Its interval is that of
Agresti and Min, Statistics in Medicine 24 (2005): Wald's, with half an item more in each of the four cells. Texts,
graded metrics such as SARI, and clusters of items have a permutation test by text, answer or cluster instead, and the
interval of a studentized bootstrap. So have corpus-level metrics such as chrF, recomputed for each resample.
`pipeline.evaluate.score_trends` finds growing scores.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, ndtri

from pipeline.core.confidence_intervals import (
    assign_cluster_indices,
    effective_sample_size,
    ratio_interval,
    simulated_coverage,
)
from pipeline.evaluate.checkpoint_and_baseline_answers import (
    EvaluatedCheckpoint,
    read_checkpoint_answers,
    read_imported_answers,
)
from pipeline.evaluate.item_results import BITS, ItemKey
from pipeline.evaluate.score_intervals import CORPUS_METRICS, corpus_difference_interval, sum_clusters
from pipeline.evaluate.score_trends import find_trends
from pipeline.evaluate.settings import DifferencesSettings
from pipeline.evaluate.trivial_baseline_tests import (
    LEVEL,
    holm_correction,
    paired_randomization_p_value,
    sign_flip_p_value,
)

POWER = 0.8
NORMAL_REACH = float(ndtri(1 - LEVEL / 2))  # of an interval, in standard errors
POWER_REACH = float(ndtri(POWER))  # standard errors from a just significant to a detectable difference
DETECTABLE_REACH = NORMAL_REACH + POWER_REACH


def pair_last_checkpoints(
    checkpoints: list[EvaluatedCheckpoint],
) -> Iterator[tuple[EvaluatedCheckpoint, EvaluatedCheckpoint]]:
    """Yield the pairs to compare: the last checkpoints of any two models, and the last two of each model.

    Step 0, which only an imported model has, is compared with the last checkpoint too.
    """
    by_model: dict[str, list[EvaluatedCheckpoint]] = {}
    for checkpoint in sorted(checkpoints, key=lambda one: (one.model, one.step)):
        by_model.setdefault(checkpoint.model, []).append(checkpoint)
    yield from combinations([model_checkpoints[-1] for model_checkpoints in by_model.values()], 2)
    for model_checkpoints in by_model.values():
        *earlier, last = model_checkpoints
        yield from ((last, before) for before in earlier if before.step == 0 or before is earlier[-1])


def paired_shares_interval(only_one: int, only_other: int, items: int) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two shares of the same items.

    Args:
        only_one: the number of items that only the first has right.
        only_other: the number of items that only the second has right.
        items: the number of all items.
    """
    cells, size = (only_one + 0.5, only_other + 0.5), items + 2.0
    difference = (cells[0] - cells[1]) / size
    deviation = math.sqrt(sum(cells) / size - difference**2) / math.sqrt(size)
    reach = NORMAL_REACH * deviation
    return max(-1.0, difference - reach), min(1.0, difference + reach)


def detectable_share_difference(only_one: int, only_other: int, items: int) -> float:
    """Return the smallest difference that a single comparison at 5 % detects with a power of 80 %.

    By the normal approximation, with half an item more in each cell, and with the observed share of differing items.
    """
    share = (only_one + only_other + 1.0) / (items + 2.0)
    return min(1.0, DETECTABLE_REACH * math.sqrt(share / items))


def _common_items(
    first: Mapping[ItemKey, Any], second: Mapping[ItemKey, Any]
) -> Iterator[tuple[tuple[str, str], list[ItemKey], int]]:
    """Yield each task with the items that both answered, and the number of items that only one answered."""
    for task in sorted({key[:2] for key in first.keys() & second.keys()}):
        asked = {key for key in first.keys() | second.keys() if key[:2] == task}
        keys = sorted(key for key in asked if key in first and key in second)
        yield task, keys, len(asked) - len(keys)


def compare_binary_metrics(one: EvaluatedCheckpoint, other: EvaluatedCheckpoint) -> Iterator[dict[str, Any]]:
    """Yield a row for each task and binary metric with common items."""
    for metric in sorted(one.right.keys() & other.right.keys()):
        first_of, second_of = one.right[metric], other.right[metric]
        for task, keys, of_one_alone in _common_items(first_of, second_of):
            first, second = (np.array([side[key] for key in keys]) for side in (first_of, second_of))
            only_one, only_other = int((first & ~second).sum()), int((second & ~first).sum())
            if any(key in one.clusters for key in keys):
                tested = _test_clusters(first, second, np.ones(len(keys)), [one.clusters.get(key, key) for key in keys])
            else:
                low, high = paired_shares_interval(only_one, only_other, len(keys))
                tested = {
                    "low": low,
                    "high": high,
                    "simulated_coverage": simulated_coverage("difference of shares", len(keys)),
                    "detectable_difference": detectable_share_difference(only_one, only_other, len(keys)),
                    "p_value": mcnemar_p_value(only_one, only_other),
                }
            yield {
                **_side_values(one, other, float(first.mean()), float(second.mean())),
                **_row_keys(task, metric, len(keys), of_one_alone),
                "higher_is_better": True,
                "right_in_a_alone": only_one,
                "right_in_b_alone": only_other,
                "difference": float(first.mean() - second.mean()),
                **tested,
            }


def compare_bits_per_byte(one: EvaluatedCheckpoint, other: EvaluatedCheckpoint) -> Iterator[dict[str, Any]]:
    """Yield a row of bits per byte for each task with common texts; fewer are better.

    Bits per byte of right answers are not compared: wrong answers may become likelier as well.
    """
    first_of, second_of = one.likely.get(BITS, {}), other.likely.get(BITS, {})
    for task, keys, of_one_alone in _common_items(first_of, second_of):
        first, second = (np.array([side[key][0] for key in keys]) for side in (first_of, second_of))
        bytes_I = np.array([first_of[key][1] for key in keys], dtype=np.float64)
        first_bits, second_bits = -first / math.log(2), -second / math.log(2)
        yield {
            **_side_values(
                one, other, float(first_bits.sum() / bytes_I.sum()), float(second_bits.sum() / bytes_I.sum())
            ),
            **_row_keys(task, BITS, len(keys), of_one_alone),
            "higher_is_better": False,
            "difference": float((first_bits - second_bits).sum() / bytes_I.sum()),
            **_test_clusters(first_bits, second_bits, bytes_I, [one.clusters.get(key, key) for key in keys]),
        }


def compare_graded_metrics(one: EvaluatedCheckpoint, other: EvaluatedCheckpoint) -> Iterator[dict[str, Any]]:
    """Yield a row of the mean of each task and graded metric with common items; higher is better."""
    for metric in sorted(one.graded.keys() & other.graded.keys()):
        first_of, second_of = one.graded[metric], other.graded[metric]
        for task, keys, of_one_alone in _common_items(first_of, second_of):
            first, second = (np.array([side[key] for key in keys]) for side in (first_of, second_of))
            yield {
                **_side_values(one, other, float(first.mean()), float(second.mean())),
                **_row_keys(task, metric, len(keys), of_one_alone),
                "higher_is_better": True,
                "difference": float((first - second).mean()),
                **_test_clusters(first, second, np.ones(len(keys)), [one.clusters.get(key, key) for key in keys]),
            }


def compare_corpus_metrics(one: EvaluatedCheckpoint, other: EvaluatedCheckpoint) -> Iterator[dict[str, Any]]:
    """Yield a row for each task and corpus-level metric, such as chrF, with common items."""
    for metric in sorted(one.statistics.keys() & other.statistics.keys()):
        first_of, second_of = one.statistics[metric], other.statistics[metric]
        for task, keys, of_one_alone in _common_items(first_of, second_of):
            kind = CORPUS_METRICS[first_of[keys[0]].aggregation]
            if {side[key].aggregation for side in (first_of, second_of) for key in keys} != {
                first_of[keys[0]].aggregation
            }:
                continue  # the metric of the task is another function now
            cluster_I = assign_cluster_indices(one.clusters.get(key, key) for key in keys)
            first_KS, second_KS = (
                sum_clusters([side[key] for key in keys], cluster_I) for side in (first_of, second_of)
            )
            first, second = (float(kind.score(each_KS.sum(axis=0))) for each_KS in (first_KS, second_KS))
            is_drawn = len(first_KS) > 1
            low, high = corpus_difference_interval(kind, first_KS, second_KS) if is_drawn else (first - second,) * 2
            yield {
                **_side_values(one, other, first, second),
                **_row_keys(task, metric, len(keys), of_one_alone),
                "higher_is_better": kind.higher_is_better,
                "difference": first - second,
                "low": low,
                "high": high,
                "simulated_coverage": simulated_coverage("corpus-level", effective_sample_size(first_KS[:, kind.size])),
                "detectable_difference": detectable_from_interval(low, high),
                "p_value": paired_randomization_p_value(first_KS, second_KS, kind, two_sided=True),
            }


def compare_checkpoints(one: EvaluatedCheckpoint, other: EvaluatedCheckpoint) -> Iterator[dict[str, Any]]:
    """Yield a row for each task and metric in which two checkpoints are comparable item by item."""
    yield from compare_binary_metrics(one, other)
    yield from compare_graded_metrics(one, other)
    yield from compare_corpus_metrics(one, other)
    yield from compare_bits_per_byte(one, other)


def _test_clusters(
    first_I: NDArray[Any], second_I: NDArray[Any], units_I: NDArray[Any], groups: Sequence[ItemKey | str]
) -> dict[str, Any]:
    """Return interval and p-value of a row over clusters of items, or over single items.

    The p-value is that of a permutation test that swaps both sides by cluster, the interval is `ratio_interval`'s.
    """
    group_I = assign_cluster_indices(groups)

    def summed(each_I: NDArray[Any]) -> NDArray[np.float64]:
        return np.bincount(group_I, weights=each_I.astype(np.float64)).astype(np.float64)

    first, second, units = summed(first_I), summed(second_I), summed(units_I)
    interval = ratio_interval(first - second, units)
    low, high = (interval.value if end is None else end for end in (interval.low, interval.high))
    return {
        "low": low,
        "high": high,
        "simulated_coverage": simulated_coverage("mean", effective_sample_size(units)),
        "detectable_difference": detectable_from_interval(low, high),
        "p_value": min(1.0, 2 * min(sign_flip_p_value(first, second), sign_flip_p_value(second, first))),
    }


def detectable_from_interval(low: float, high: float) -> float | None:
    """Return the smallest detectable difference from the width of an interval; None if it has none."""
    return DETECTABLE_REACH / NORMAL_REACH * (high - low) / 2 if high > low else None


def _side_values(one: EvaluatedCheckpoint, other: EvaluatedCheckpoint, *values: float) -> dict[str, Any]:
    sides = zip("ab", (one, other), values, strict=True)
    return {name: {"model": side.model, "step": side.step, "value": value} for name, side, value in sides}


def _row_keys(task: tuple[str, str], metric: str, items: int, of_one_alone: int) -> dict[str, Any]:
    return {"suite": task[0], "task": task[1], "metric": metric, "items": items, "items_of_one_alone": of_one_alone}


def mcnemar_p_value(only_one: int, only_other: int) -> float:
    """Return McNemar's exact two-sided p-value."""
    differing = only_one + only_other
    return min(1.0, 2 * float(bdtr(min(only_one, only_other), differing, 0.5))) if differing else 1.0


def add_corrected_p_values(rows: list[dict[str, Any]], level: float = LEVEL) -> None:
    """Add the corrected p-value and the better side, `a`, `b` or None, to comparisons that are reported together.

    The detectable difference is by the strictest of Holm's levels, which is the level over the number of comparisons.
    """
    strict = (ndtri(1 - level / 2 / max(len(rows), 1)) + POWER_REACH) / DETECTABLE_REACH
    for row, corrected in zip(rows, holm_correction([row["p_value"] for row in rows]), strict=True):
        if row["detectable_difference"] is not None:
            row["detectable_difference"] *= float(strict)
            if "right_in_a_alone" in row:
                row["detectable_difference"] = min(1.0, row["detectable_difference"])
        row["p_value_corrected"] = corrected
        ahead = "a" if (row["difference"] > 0) == row["higher_is_better"] else "b"
        row["better"] = ahead if corrected < level else None


def run(
    settings: DifferencesSettings, *, answers: list[Path], imported: list[Path], differences: Path
) -> dict[str, Any]:
    """Write the comparisons of a run's checkpoints and the trends of their scores; return the significant numbers.

    Args:
        settings: the models that differ in their seed alone.
        answers: those of the checkpoints, `…/MODEL/STEP/items.parquet`.
        imported: the answers of the models that training began with, `…/adopted-MODEL/items.parquet`.
        differences: the file of the comparisons.

    Raises:
        InputError: a file is no item table.
    """
    checkpoints = [read_checkpoint_answers(path) for path in answers]
    began_with = [read_imported_answers(path) for path in imported]
    rows = [row for pair in pair_last_checkpoints([*began_with, *checkpoints]) for row in compare_checkpoints(*pair)]
    add_corrected_p_values(rows)
    for row in rows:
        sides = {row["a"]["model"], row["b"]["model"]}
        row["differ_in_seed_alone"] = len(sides) > 1 and any(sides <= {*group} for group in settings.seeds)
    grown = find_trends(checkpoints)
    content = {
        "checkpoints": len(answers),
        "level": LEVEL,
        "seeds": settings.seeds,
        "comparisons": rows,
        "trends": grown,
    }
    differences.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {
        "comparisons": len(rows),
        "real_differences": sum(row["better"] is not None for row in rows),
        "growing_scores": sum(row["grows"] for row in grown),
    }
