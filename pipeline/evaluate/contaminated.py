"""Scores on items that stood in the corpus before documents with items left it, beside those on the other items.

The documents are removed. Where a model is still better on these items, a part may have stayed in other words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from pipeline.core.statistics import share
from pipeline.evaluate.items import Answered, Key
from pipeline.evaluate.verdict import holm


def beside_clean(answers: Answered, found: Mapping[str, set[int]]) -> list[dict[str, Any]]:
    """Return a row for each task and metric of right and wrong of which at least one item was found in the corpus.

    Each row has the score of both kinds of items, with intervals, and Fisher's exact p-value, two-sided, corrected over
    the rows after Holm; none where items lie in groups that are answered alike.

    Args:
        answers: what a checkpoint answered.
        found: by task the numbers of the items that were found.
    """
    rows: list[dict[str, Any]] = []
    for metric, right in sorted(answers.right.items()):
        tasks: dict[tuple[str, str], dict[bool, list[Key]]] = {}
        for key in sorted(right):
            tasks.setdefault(key[:2], {True: [], False: []})[key[2] in found.get(key[1], ())].append(key)
        for (suite, task), kinds in tasks.items():
            if not kinds[True]:
                continue
            row = {"suite": suite, "task": task, "metric": metric, "p_value": _p_value(right, kinds, answers.clusters)}
            scores = {
                name: _score(right, kinds[is_found], answers.clusters)
                for name, is_found in (("contaminated", True), ("clean", False))
            }
            rows.append(row | scores)
    rows.sort(key=lambda row: (row["suite"], row["task"], row["metric"]))
    tested = [row for row in rows if row["p_value"] is not None]
    for row, corrected in zip(tested, holm([row["p_value"] for row in tested]), strict=True):
        row["p_value"] = corrected
    return rows


def _score(right: dict[Key, bool], keys: list[Key], clusters: dict[Key, str]) -> dict[str, Any]:
    if not keys:
        return {"examples": 0, "value": None, "low": None, "high": None}
    units: dict[Key | str, list[bool]] = {}
    for key in keys:
        units.setdefault(clusters.get(key, key), []).append(right[key])
    score = share(np.array([sum(unit) for unit in units.values()]), np.array([len(unit) for unit in units.values()]))
    return {"examples": len(keys), **score._asdict()}


def _p_value(right: dict[Key, bool], kinds: dict[bool, list[Key]], clusters: dict[Key, str]) -> float | None:
    if not kinds[False] or any(key in clusters for keys in kinds.values() for key in keys):
        return None
    table = [[sum(right[key] for key in keys), sum(not right[key] for key in keys)] for keys in kinds.values()]
    return float(stats.fisher_exact(table).pvalue)
