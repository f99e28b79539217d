"""Scores on items that stood in the corpus, beside those on the others."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from scipy.stats import binomtest, hypergeom

from pipeline.evaluate.contaminated import beside_clean
from pipeline.evaluate.items import Answered, Key


def answered(right: Iterable[tuple[str, int, bool]], clusters: dict[Key, str] | None = None) -> Answered:
    hits: dict[Key, bool] = {("s", task, item, "hash"): hit for task, item, hit in right}
    return Answered(right={"acc": hits}, log_probabilities={}, likely={}, clusters=clusters or {}, graded={})


def test_items_that_were_found_are_told_apart_from_the_others() -> None:
    right = [("leaked", item, item < 10 or item % 2 == 0) for item in range(40)]
    (row,) = beside_clean(answered([*right, ("clean", 0, True)]), {"leaked": set(range(10)), "clean": {7}})
    assert (row["suite"], row["task"], row["metric"]) == ("s", "leaked", "acc")
    assert (row["contaminated"]["examples"], row["contaminated"]["value"]) == (10, 1.0)
    assert (row["clean"]["examples"], row["clean"]["value"]) == (30, 0.5)
    interval = binomtest(15, 30).proportion_ci(method="wilson")
    assert row["clean"]["low"] < interval.low < interval.high < row["clean"]["high"], "Student's t is a little wider"
    # All ten of those that were found are right, of 40 items of which 25 are: one tail and the other by hand.
    counts = [hypergeom.pmf(number, 40, 25, 10) for number in range(11)]
    assert row["p_value"] == pytest.approx(sum(one for one in counts if one <= counts[10] * (1 + 1e-9)))


def test_p_values_are_corrected_over_the_rows() -> None:
    right = [(task, item, item < 10 or item % 2 == 0) for task in ("a", "b") for item in range(40)]
    one = beside_clean(answered(right), {"a": set(range(10))})
    two = beside_clean(answered(right), {"a": set(range(10)), "b": set(range(10))})
    assert [row["p_value"] for row in two] == pytest.approx([2 * one[0]["p_value"]] * 2)


def test_items_in_groups_and_tasks_without_others_are_not_tested() -> None:
    right = [("reading", item, True) for item in range(20)]
    clusters = {("s", "reading", item, "hash"): str(item // 5) for item in range(20)}
    (row,) = beside_clean(answered(right, clusters), {"reading": {0, 1, 2, 3, 4}})
    assert row["p_value"] is None and row["contaminated"]["low"] is None, "one group tells nothing"
    assert row["clean"]["low"] is not None
    (row,) = beside_clean(answered(right), {"reading": set(range(20))})
    assert row["p_value"] is None and row["clean"] == {"examples": 0, "value": None, "low": None, "high": None}
