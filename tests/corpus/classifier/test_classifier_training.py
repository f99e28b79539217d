"""The training finds the least loss, and the calibration probabilities."""

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
    mean_ngram_weights,
    ngram_frequencies,
    train,
)
from pipeline.corpus.classifier.linear_classifier import (
    LinearClassifier,
    load_classifiers,
    ngram_buckets,
    save_classifiers,
)
from tests.corpus.classifier.conftest import menus, sentences


def test_shares_are_those_of_the_ngrams_of_each_text() -> None:
    found = ngram_frequencies(["ja ja ja nee", "", "nee"])
    assert found.bounds.tolist() == [0, 4, 4, 5]
    by_bucket = dict(zip(found.buckets_M[:4].tolist(), found.shares_M[:4].tolist(), strict=True))
    assert by_bucket[ngram_buckets("ja")[0]] == pytest.approx(3 / 7)
    assert by_bucket[ngram_buckets("ja ja")[2]] == pytest.approx(2 / 7)
    some = found.select_texts(np.array([2, 0]))
    assert some.bounds.tolist() == [0, 1, 5] and some.buckets_M[0] == ngram_buckets("nee")[0]
    assert some.buckets_M[1:].tolist() == found.buckets_M[:4].tolist()


def test_the_weights_have_the_least_loss_that_another_method_finds() -> None:
    texts = [*sentences(30, 1), *menus(12, 2)]
    good = np.arange(len(texts)) < 30
    found = ngram_frequencies(texts)
    weights, gap = train(found, good)
    assert gap < classifier_training.MAXIMUM_GAP
    used, columns = np.unique(found.buckets_M, return_inverse=True)
    dense = np.zeros((len(texts), len(used)))
    dense[np.repeat(np.arange(len(texts)), np.diff(found.bounds)), columns] = found.shares_M
    signs, of_text = np.where(good, 1, -1), np.where(good, 0.5 / 30, 0.5 / 12)

    def loss(model: np.ndarray) -> float:
        return float((of_text * np.logaddexp(0, -signs * (dense @ model))).sum()) + 5e-6 * float(model @ model)

    def slope(model: np.ndarray) -> np.ndarray:
        return dense.T @ (-of_text * signs / (1 + np.exp(signs * (dense @ model)))) + 1e-5 * model

    least = minimize(loss, np.zeros(len(used)), jac=slope, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-14})
    assert least.fun <= loss(weights[used]) <= least.fun + gap + 1e-6
    assert np.count_nonzero(weights) <= len(used)
    assert mean_ngram_weights(*found, weights) == pytest.approx(dense @ weights[used], rel=1e-4)


def test_both_classes_weigh_half() -> None:
    assert balanced_sample_weights(np.array([True, False, False, False, False])).tolist() == [0.5, *[0.125] * 4]


def test_a_calibrated_value_is_the_probability_where_both_classes_are_equally_frequent() -> None:
    generator = np.random.default_rng(3)
    values = np.concatenate([generator.normal(1, 1, 40_000), generator.normal(-1, 1, 10_000)])
    slope, constant = calibrate(values, np.arange(50_000) < 40_000)
    # Of two normal distributions with the variance 1 the logarithm of the odds is the distance of the means times x.
    assert slope == pytest.approx(2, abs=0.05) and constant == pytest.approx(0, abs=0.05)


def test_classes_that_are_parted_get_a_finite_slope() -> None:
    slope, constant = calibrate(np.array([-3.0, -2, -2, 5, 6, 7]), np.array([False] * 3 + [True] * 3))
    scores = 1 / (1 + np.exp(-(slope * np.array([-3.0, 7]) + constant)))
    assert 0.1 < scores[0] < 0.5 < scores[1] < 0.9


def test_the_umask_decides_who_may_read_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "classifier.safetensors"
    before = os.umask(0o027)
    try:
        save_classifiers({"nl": LinearClassifier(np.ones(8, dtype=np.float32), 1.0, 0.5)}, path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and load_classifiers(path)["nl"].constant == 0.5


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
    found = classification_metrics(scores, np.array([True, True, True, False, False]))
    assert found["precision"]["value"] == found["recall"]["value"] == pytest.approx(2 / 3)
    assert found["f1"]["value"] == pytest.approx(2 / 3) and found["auc"]["value"] == pytest.approx(4 / 6)
    for figure in found.values():
        assert figure["low"] < figure["value"] < figure["high"]


def test_what_calls_nothing_good_has_no_precision() -> None:
    found = classification_metrics(np.zeros(4), np.array([True, True, False, False]))
    assert found["precision"] is None and found["recall"]["value"] == found["f1"]["value"] == 0
    assert found["auc"]["value"] == 0.5
