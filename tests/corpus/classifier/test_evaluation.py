"""The figures of a classifier are those that are counted by hand, and their intervals hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus.classifier.classifier_training import area_under_curve, classification_figures


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_the_area_is_the_share_of_the_pairs_in_order(rows: list[tuple[int, bool]]) -> None:
    scores, good = np.array([score / 4 for score, _ in rows]), np.array([label for _, label in rows])
    if good.all() or not good.any():
        return
    pairs = [(a > b) + (a == b) / 2 for a in scores[good] for b in scores[~good]]
    found = area_under_curve(scores, good)
    assert found.value == pytest.approx(sum(pairs) / len(pairs))
    assert found.low is not None and found.high is not None
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.high - found.low > 0.02


def test_the_interval_of_the_area_holds_the_true_one_about_95_times_in_100() -> None:
    generator = np.random.default_rng(4)
    good, inside = np.arange(60) < 40, 0
    for _ in range(400):
        found = area_under_curve(generator.normal(np.where(good, 1.5, 0), 1), good)
        inside += found.low <= 0.8556 <= found.high  # Φ(1.5 / √2)
    assert 0.92 * 400 <= inside <= 0.99 * 400


def test_precision_recall_and_f1_are_counted_from_the_threshold_on() -> None:
    scores = np.array([0.9, 0.5, 0.4, 0.8, 0.1])
    found = classification_figures(scores, np.array([True, True, True, False, False]))
    assert found["precision"]["value"] == found["recall"]["value"] == pytest.approx(2 / 3)
    assert found["f1"]["value"] == pytest.approx(2 / 3) and found["auc"]["value"] == pytest.approx(4 / 6)
    for figure in found.values():
        assert figure["low"] < figure["value"] < figure["high"]


def test_what_calls_nothing_good_has_no_precision() -> None:
    found = classification_figures(np.zeros(4), np.array([True, True, False, False]))
    assert found["precision"] is None and found["recall"]["value"] == found["f1"]["value"] == 0
    assert found["auc"]["value"] == 0.5
