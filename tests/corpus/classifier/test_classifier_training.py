"""Training minimizes the loss, and calibration gives probabilities."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from pipeline.corpus.classifier import classifier_training
from pipeline.corpus.classifier.classifier_training import (
    area_under_curve,
    balanced_sample_weights,
    calibrate,
    classification_metrics,
    score_texts_by_ngrams,
    text_ngram_shares,
    train,
)
from pipeline.corpus.classifier.linear_classifier import (
    LinearClassifier,
    load_classifiers,
    ngram_buckets,
    save_classifiers,
)
from tests.corpus.classifier.conftest import menus, sentences


def test_ngram_shares_are_those_of_each_text() -> None:
    result = text_ngram_shares(["ja ja ja nee", "", "nee"])
    assert result.bounds.tolist() == [0, 4, 4, 5]
    by_bucket = dict(zip(result.buckets_M[:4].tolist(), result.shares_M[:4].tolist(), strict=True))
    assert by_bucket[ngram_buckets("ja")[0]] == pytest.approx(3 / 7)
    assert by_bucket[ngram_buckets("ja ja")[2]] == pytest.approx(2 / 7)
    some = result.select_texts(np.array([2, 0]))
    assert some.bounds.tolist() == [0, 1, 5] and some.buckets_M[0] == ngram_buckets("nee")[0]
    assert some.buckets_M[1:].tolist() == result.buckets_M[:4].tolist()


def test_trained_weights_minimize_the_loss() -> None:
    texts = [*sentences(30, 1), *menus(12, 2)]
    good = np.arange(len(texts)) < 30
    result = text_ngram_shares(texts)
    weights, gap = train(result, good)
    assert gap < classifier_training.MAXIMUM_GAP
    used, columns = np.unique(result.buckets_M, return_inverse=True)
    dense = np.zeros((len(texts), len(used)))
    dense[np.repeat(np.arange(len(texts)), np.diff(result.bounds)), columns] = result.shares_M
    signs, of_text = np.where(good, 1, -1), np.where(good, 0.5 / 30, 0.5 / 12)

    def loss(model: np.ndarray) -> float:
        return float((of_text * np.logaddexp(0, -signs * (dense @ model))).sum()) + 5e-6 * float(model @ model)

    def slope(model: np.ndarray) -> np.ndarray:
        return dense.T @ (-of_text * signs / (1 + np.exp(signs * (dense @ model)))) + 1e-5 * model

    least = minimize(loss, np.zeros(len(used)), jac=slope, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-14})
    assert least.fun <= loss(weights[used]) <= least.fun + gap + 1e-6
    assert np.count_nonzero(weights) <= len(used)
    assert score_texts_by_ngrams(*result, weights) == pytest.approx(dense @ weights[used], rel=1e-4)


def test_both_classes_have_equal_weight() -> None:
    assert balanced_sample_weights(np.array([True, False, False, False, False])).tolist() == [0.5, *[0.125] * 4]


def test_calibrated_score_is_the_probability_for_balanced_classes() -> None:
    generator = np.random.default_rng(3)
    values = np.concatenate([generator.normal(1, 1, 40_000), generator.normal(-1, 1, 10_000)])
    slope, constant = calibrate(values, np.arange(50_000) < 40_000)
    # For two normal distributions with variance 1 the log odds are the distance of the means times x.
    assert slope == pytest.approx(2, abs=0.05) and constant == pytest.approx(0, abs=0.05)


def test_separable_classes_get_a_finite_slope() -> None:
    slope, constant = calibrate(np.array([-3.0, -2, -2, 5, 6, 7]), np.array([False] * 3 + [True] * 3))
    scores = 1 / (1 + np.exp(-(slope * np.array([-3.0, 7]) + constant)))
    assert 0.1 < scores[0] < 0.5 < scores[1] < 0.9


def test_umask_sets_the_permissions_of_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "classifier.safetensors"
    before = os.umask(0o027)
    try:
        save_classifiers({"nl": LinearClassifier(np.ones(8, dtype=np.float32), 1.0, 0.5)}, path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and load_classifiers(path)["nl"].constant == 0.5


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_auc_is_the_share_of_correctly_ordered_pairs(rows: list[tuple[int, bool]]) -> None:
    scores, good = np.array([score / 4 for score, _ in rows]), np.array([label for _, label in rows])
    if good.all() or not good.any():
        return
    pairs = [(a > b) + (a == b) / 2 for a in scores[good] for b in scores[~good]]
    result = area_under_curve(scores, good)
    assert result.value == pytest.approx(sum(pairs) / len(pairs))
    assert result.low is not None and result.high is not None
    assert 0 <= result.low <= result.value <= result.high <= 1
    assert result.high - result.low > 0.02


def test_auc_interval_covers_the_truth_in_95_percent() -> None:
    generator = np.random.default_rng(4)
    good, inside = np.arange(60) < 40, 0
    for _ in range(400):
        result = area_under_curve(generator.normal(np.where(good, 1.5, 0), 1), good)
        inside += result.low <= 0.8556 <= result.high  # Φ(1.5 / √2)
    assert 0.92 * 400 <= inside <= 0.99 * 400


def test_precision_recall_and_f1_include_the_threshold() -> None:
    scores = np.array([0.9, 0.5, 0.4, 0.8, 0.1])
    result = classification_metrics(scores, np.array([True, True, True, False, False]))
    assert result["precision"]["value"] == result["recall"]["value"] == pytest.approx(2 / 3)
    assert result["f1"]["value"] == pytest.approx(2 / 3) and result["auc"]["value"] == pytest.approx(4 / 6)
    for figure in result.values():
        assert figure["low"] < figure["value"] < figure["high"]


def test_classifier_without_positives_has_no_precision() -> None:
    result = classification_metrics(np.zeros(4), np.array([True, True, False, False]))
    assert result["precision"] is None and result["recall"]["value"] == result["f1"]["value"] == 0
    assert result["auc"]["value"] == 0.5
