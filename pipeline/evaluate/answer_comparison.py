"""Compare the answers of two runs, and the answers to contaminated items with those to clean ones.

For each model of both runs, the last checkpoint that both evaluated is compared item by item, with the tests of the
step `evaluate differences` over all models together.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import layout
from pipeline.core.confidence_intervals import proportion_interval
from pipeline.evaluate.checkpoint_and_baseline_answers import EvaluatedCheckpoint, read_checkpoint_answers
from pipeline.evaluate.differences import add_corrected_p_values, compare_checkpoints
from pipeline.evaluate.item_results import ItemAnswers, ItemKey
from pipeline.evaluate.trivial_baseline_tests import holm_correction


def _find_item_tables(run: Path) -> dict[str, dict[int, Path]]:
    """Find the item tables of a run, by model and step."""
    tables: dict[str, dict[int, Path]] = {}
    for path in layout.ANSWERS.glob(run):
        if path.parent.name.isdecimal():
            tables.setdefault(path.parent.parent.name, {})[int(path.parent.name)] = path
    return tables


def _comparable_items(one: EvaluatedCheckpoint) -> set[ItemKey]:
    """Return the items of a checkpoint that have any metric to compare."""
    return set(chain(*one.likely.values(), *one.right.values(), *one.graded.values(), *one.statistics.values()))


def _format_difference(row: dict[str, Any]) -> str:
    a, b = row["a"], row["b"]
    low, high = -row["high"], -row["low"]
    return (
        f"  {a['model']}, step {a['step']}: {row['suite']}/{row['task']} {row['metric']}: "
        f"{a['value']:.4f} → {b['value']:.4f}, difference {-row['difference']:+.4f} ({low:+.4f} to {high:+.4f}) on "
        f"{row['items']} items: the {'first' if row['better'] == 'a' else 'second'} run is better"
    )


def compare_run_answers(a: Path, b: Path) -> list[str]:
    """Compare the models of two runs; return lines with the number of significant differences, and each of them.

    Raises:
        InputError: a file is no item table.
    """
    answers_a, answers_b = _find_item_tables(a), _find_item_tables(b)
    if not answers_a and not answers_b:
        return []
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    models = sorted(answers_a.keys() & answers_b.keys())
    for model in models:
        steps = answers_a[model].keys() & answers_b[model].keys()
        if not steps:
            skipped.append(f"  {model}: not compared, as no checkpoint of it was evaluated in both runs")
            continue
        one, other = (read_checkpoint_answers(answers[model][max(steps)]) for answers in (answers_a, answers_b))
        rows += compare_checkpoints(one, other)
        alone_a, alone_b = (
            len(_comparable_items(one) - _comparable_items(other)),
            len(_comparable_items(other) - _comparable_items(one)),
        )
        if alone_a or alone_b:
            skipped.append(
                f"  {model}, step {max(steps)}: {alone_a} items were answered by the first run alone, {alone_b} by the "
                "second alone; they are not compared"
            )
    if not models:
        return ["answers: not compared, as no model was evaluated in both runs"]
    add_corrected_p_values(rows)
    real = [row for row in rows if row["better"]]
    return [
        f"answers: {len(real)} of {len(rows)} comparisons show a significant difference (on items that both runs "
        "answered, two-sided, 5 % over all of them after Holm; 95 % intervals)",
        *map(_format_difference, real),
        *skipped,
    ]


# Scores on items that were found in the corpus before decontamination, and on all other items.
#
# The documents are removed. If a model is still better on these items, paraphrases may have remained.


def compare_contaminated_with_clean(
    answers: ItemAnswers, contaminated_items: Mapping[str, set[int]]
) -> list[dict[str, Any]]:
    """Return a row for each task and binary metric with at least one item that was found in the corpus.

    Each row has the score of both kinds of items, with intervals, and Fisher's exact p-value, two-sided, corrected over
    the rows after Holm; clustered items have no p-value.

    Args:
        answers: those of a checkpoint.
        contaminated_items: their numbers, by task.
    """
    rows: list[dict[str, Any]] = []
    for metric, right in sorted(answers.right.items()):
        tasks: dict[tuple[str, str], dict[bool, list[ItemKey]]] = {}
        for key in sorted(right):
            tasks.setdefault(key[:2], {True: [], False: []})[key[2] in contaminated_items.get(key[1], ())].append(key)
        for (suite, task), kinds in tasks.items():
            if not kinds[True]:
                continue
            row = {
                "suite": suite,
                "task": task,
                "metric": metric,
                "p_value": _fisher_p_value(right, kinds, answers.clusters),
            }
            scores = {
                name: _score_items(right, kinds[is_contaminated], answers.clusters)
                for name, is_contaminated in (("contaminated", True), ("clean", False))
            }
            rows.append(row | scores)
    rows.sort(key=lambda row: (row["suite"], row["task"], row["metric"]))
    tested = [row for row in rows if row["p_value"] is not None]
    for row, corrected in zip(tested, holm_correction([row["p_value"] for row in tested]), strict=True):
        row["p_value"] = corrected
    return rows


def _score_items(right: dict[ItemKey, bool], keys: list[ItemKey], clusters: dict[ItemKey, str]) -> dict[str, Any]:
    if not keys:
        return {"examples": 0, "value": None, "low": None, "high": None}
    units: dict[ItemKey | str, list[bool]] = {}
    for key in keys:
        units.setdefault(clusters.get(key, key), []).append(right[key])
    score = proportion_interval(
        np.array([sum(unit) for unit in units.values()]), np.array([len(unit) for unit in units.values()])
    )
    return {"examples": len(keys), **score._asdict()}


def _fisher_p_value(
    right: dict[ItemKey, bool], kinds: dict[bool, list[ItemKey]], clusters: dict[ItemKey, str]
) -> float | None:
    if not kinds[False] or any(key in clusters for keys in kinds.values() for key in keys):
        return None
    table = [[sum(right[key] for key in keys), sum(not right[key] for key in keys)] for keys in kinds.values()]
    from scipy import stats  # here, for it loads for half a second

    return float(stats.fisher_exact(table).pvalue)
