"""Corpus-level metrics: sums of statistics give sacreBLEU's values, and clusters are resampled and permuted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
from lm_eval.api import metrics
from sacrebleu.significance import PairedTest
from scipy import stats

from pipeline.core.confidence_intervals import assign_cluster_indices
from pipeline.evaluate import score_intervals
from pipeline.evaluate.checkpoint_and_baseline_answers import EvaluatedCheckpoint, read_checkpoint_answers
from pipeline.evaluate.differences import add_corrected_p_values, compare_checkpoints
from pipeline.evaluate.item_results import MeasuredTask, TaskItem, write_items
from pipeline.evaluate.score_intervals import (
    CORPUS_METRICS,
    corpus_difference_interval,
    corpus_metric_interval,
    corpus_metric_statistics_by_item,
    score_interval,
    sum_clusters,
)
from pipeline.evaluate.score_trends import find_trends
from pipeline.evaluate.trivial_baseline_tests import compare_corpus_metric_with_baselines, paired_randomization_p_value

pytestmark = pytest.mark.slow

OF_TEXTS: dict[str, Any] = {
    "bleu": sacrebleu.BLEU(),
    "chrf": sacrebleu.CHRF(),
    "chrfpp": sacrebleu.CHRF(word_order=2),
    "ter": sacrebleu.TER(),
}
TEXT = "de kat zit op het dak en kijkt naar een vogel die over de stad vliegt"
WORDS = TEXT.split()


def references(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 14))) + "." for _ in range(count)]


def translated(texts: list[str], quality: list[float], seed: int = 1) -> list[str]:
    """Return texts with words that are correct with the quality of their item."""
    draw = random.Random(seed)
    return [
        " ".join(word if draw.random() < good else draw.choice(WORDS) for word in text.split())
        for text, good in zip(texts, quality, strict=True)
    ]


def written(count: int, quality: float = 0.6, seed: int = 1, spread: float = 0.3) -> list[tuple[str, str]]:
    texts, draw = references(count), random.Random(seed)
    levels = [min(1.0, max(0.0, draw.gauss(quality, spread))) for _ in texts]
    return [*zip(texts, translated(texts, levels, seed), strict=True)]


def sums_of(kind: str, pairs: list[tuple[str, str]], clusters: list[Any] | None = None) -> Any:
    result = corpus_metric_statistics_by_item(getattr(metrics, kind), pairs)
    assert result is not None
    return sum_clusters(result, assign_cluster_indices(clusters or range(len(pairs))))


@pytest.mark.parametrize("kind", OF_TEXTS)
@pytest.mark.parametrize("quality", [0.0, 0.3, 1.0])
def test_sufficient_statistics_give_the_sacrebleu_metric(kind: str, quality: float) -> None:
    """For all items, single items, and resamples, in which n-grams of some order may be absent."""
    pairs = [*written(12, quality), ("een zin", ""), ("", "een zin"), ("a", "b")]
    sum_IS, metric = sums_of(kind, pairs), OF_TEXTS[kind]
    texts, wanted = [pair[1] for pair in pairs], [[pair[0] for pair in pairs]]
    assert CORPUS_METRICS[kind].score(sum_IS.sum(axis=0)) == pytest.approx(metric.corpus_score(texts, wanted).score)
    draws = np.random.default_rng(1).integers(0, 2, (200, len(pairs))) @ sum_IS
    for rows in (draws, sum_IS):
        expected = [metric._compute_score_from_stats(row).score for row in rows.tolist()]
        assert CORPUS_METRICS[kind].score(rows) == pytest.approx(np.array(expected))


def test_multiple_references_and_classes_give_the_lm_eval_metric() -> None:
    texts = [[a, b] for a, b in zip(references(9), references(9, 5), strict=True)]
    for kind in OF_TEXTS:
        pairs = [(of_item, text) for of_item, (_, text) in zip(texts, written(9), strict=True)]
        assert CORPUS_METRICS[kind].score(sums_of(kind, pairs).sum(axis=0)) == pytest.approx(
            getattr(metrics, kind)(pairs)
        )
    classes = [*map(tuple, np.random.default_rng(2).integers(0, 2, (40, 2)).tolist())]
    for kind in ("f1_score", "matthews_corrcoef"):
        assert CORPUS_METRICS[kind].score(sums_of(kind, classes).sum(axis=0)) == pytest.approx(
            getattr(metrics, kind)(classes)
        )
    assert corpus_metric_statistics_by_item(metrics.matthews_corrcoef, [(0, 2), (1, 1), (2, 0)]) is None, (
        "three classes"
    )
    assert (
        corpus_metric_statistics_by_item(metrics.mean, [0.5])
        is corpus_metric_statistics_by_item(lambda each: 0.0, [("a", "b")])
        is None
    )


@pytest.mark.parametrize("kind", ["bleu", "chrf"])
def test_single_item_interval_agrees_with_scipy(kind: str) -> None:
    """The percentiles of scipy, expanded to Student's t; the studentised side may extend slightly further."""
    pairs = written(40)
    rows, metric, value = sums_of(kind, pairs), OF_TEXTS[kind], getattr(metrics, kind)(pairs)

    def score(places: Any) -> float:
        return float(metric._compute_score_from_stats(rows[places.astype(int)].sum(axis=0).tolist()).score)

    tail = float(stats.norm.cdf(-stats.t.ppf(0.975, 38) * np.sqrt(40 / 39)))
    expected = stats.bootstrap(
        (np.arange(40),),
        score,
        method="percentile",
        vectorized=False,
        n_resamples=1000,
        confidence_level=1 - 2 * tail,
        rng=np.random.default_rng(3),
    ).confidence_interval
    low, high = corpus_metric_interval(CORPUS_METRICS[kind], rows)
    width = expected.high - expected.low
    assert expected.low - 0.3 * width < low < expected.low + 0.1 * width
    assert expected.high - 0.1 * width < high < expected.high + 0.3 * width
    interval = score_interval(pairs, range(40), getattr(metrics, kind), value)
    assert interval[:3] == (pytest.approx(value), pytest.approx(low), pytest.approx(high))


@pytest.mark.slow
def test_sentences_of_one_document_are_resampled_together() -> None:
    """Ten documents of twelve sentences with equal translation quality within a document."""
    texts, draw = references(120), random.Random(4)
    levels = [level for level in (draw.uniform(0.2, 0.9) for _ in range(10)) for _ in range(12)]
    pairs = [*zip(texts, translated(texts, levels), strict=True)]
    documents = [number // 12 for number in range(120)]
    together, apart = (score_interval(pairs, each, metrics.chrf, 0.0) for each in (documents, range(120)))
    assert together.value == apart.value and together.high - together.low > 2 * (apart.high - apart.low)  # type: ignore[operator]
    # Independent check: documents resampled by a loop over the texts themselves.
    scores = []
    for _ in range(150):
        rows = [12 * number + place for number in draw.choices(range(10), k=10) for place in range(12)]
        scores.append(sacrebleu.corpus_chrf([pairs[row][1] for row in rows], [[pairs[row][0] for row in rows]]).score)
    reach = 2.262 * np.sqrt(10 / 9) * np.std(scores)
    assert 0.95 * reach < (together.high - together.low) / 2 < 1.5 * reach  # type: ignore[operator]
    assert score_interval(pairs, ["one"] * 120, metrics.chrf, 0.0).low is None


def test_differences_are_resampled_with_the_same_items_on_both_sides() -> None:
    """Two translations of items that are hard for both: the difference is known better than either score."""
    one, other = sums_of("chrf", written(60, 0.65)), sums_of("chrf", written(60, 0.6))
    low, high = corpus_difference_interval(CORPUS_METRICS["chrf"], one, other)
    single = corpus_metric_interval(CORPUS_METRICS["chrf"], one)
    assert low < CORPUS_METRICS["chrf"].score(one.sum(axis=0)) - CORPUS_METRICS["chrf"].score(other.sum(axis=0)) < high
    assert high - low < single[1] - single[0]
    assert corpus_difference_interval(CORPUS_METRICS["chrf"], other, one) == (pytest.approx(-high), pytest.approx(-low))
    assert corpus_difference_interval(CORPUS_METRICS["chrf"], one, one) == (0.0, 0.0)


@pytest.mark.parametrize("kind", OF_TEXTS)
def test_single_item_p_value_equals_sacrebleus_paired_test(kind: str) -> None:
    pairs, others = written(30, 0.62, 1, 0.1), written(30, 0.55, 2, 0.1)
    wanted = [[pair[0] for pair in pairs]]
    systems = [("other", [pair[1] for pair in others]), ("own", [pair[1] for pair in pairs])]
    _, result = PairedTest(systems, {kind: OF_TEXTS[kind]}, wanted, test_type="ar", n_samples=4000)()
    expected = next(each[1].p_value for name, each in result.items() if name != "System")
    own_KS, other_KS = sums_of(kind, pairs), sums_of(kind, others)
    two_sided = paired_randomization_p_value(own_KS, other_KS, CORPUS_METRICS[kind], two_sided=True)
    assert 0.001 < expected < 0.5 and two_sided == pytest.approx(expected, abs=0.025)
    one_sided, reverse = (
        paired_randomization_p_value(*pair, CORPUS_METRICS[kind]) for pair in ((own_KS, other_KS), (other_KS, own_KS))
    )
    assert two_sided == pytest.approx(2 * min(one_sided, reverse), abs=0.02) and one_sided < 0.5 < reverse
    assert paired_randomization_p_value(own_KS, own_KS, CORPUS_METRICS[kind]) == 1.0


def test_clusters_are_permuted_together() -> None:
    """Eight documents, all of them better by one model: one of 256 permutations, for any number of sentences."""
    pairs, others = written(160, 0.8, 1, 0.0), written(160, 0.5, 2, 0.0)
    documents = [number // 20 for number in range(160)]
    own, other = (sums_of("chrf", each, documents) for each in (pairs, others))
    assert (CORPUS_METRICS["chrf"].score(own) > CORPUS_METRICS["chrf"].score(other)).all()
    assert paired_randomization_p_value(own, other, CORPUS_METRICS["chrf"]) == pytest.approx(1 / 256, rel=0.2)
    apart = [sums_of("chrf", each) for each in (pairs, others)]
    assert paired_randomization_p_value(*apart, CORPUS_METRICS["chrf"]) < 0.001


@pytest.mark.slow
def test_equal_models_rarely_differ_and_intervals_cover_zero() -> None:
    wrong = missed = 0
    for seed in range(100):
        draw = np.random.default_rng(seed)
        one, other = (sums_of("chrf", written(24, 0.5, 2 * seed + side)) for side in (0, 1))
        swapped = draw.random(24) < 0.5
        first, second = np.where(swapped[:, None], one, other), np.where(swapped[:, None], other, one)
        wrong += paired_randomization_p_value(first, second, CORPUS_METRICS["chrf"], two_sided=True) < 0.05
        low, high = corpus_difference_interval(CORPUS_METRICS["chrf"], first, second)
        missed += not low <= 0 <= high
    assert wrong <= 11 and missed <= 11


def items(pairs: list[tuple[str, str]], kinds: tuple[str, ...], documents: int | None = None) -> list[TaskItem]:
    results = {kind: corpus_metric_statistics_by_item(getattr(metrics, kind), pairs) or [] for kind in kinds}
    return [
        TaskItem(
            number,
            str(number),
            (),
            (),
            frozenset(),
            (),
            {},
            text,
            cluster=None if documents is None else str(number // documents),
            statistics={kind: results[kind][number] for kind in kinds},
        )
        for number, (_, text) in enumerate(pairs)
    ]


def checkpoint(folder: Path, model: str, step: int, given: list[TaskItem]) -> EvaluatedCheckpoint:
    path = folder / model / str(step) / "items.parquet"
    path.parent.mkdir(parents=True)
    write_items(path, [MeasuredTask("translation", "t", [], given)])
    return read_checkpoint_answers(path)


def test_better_verdict_requires_beating_a_copy_of_the_source(tmp_path: Path) -> None:
    good, bad = items(written(40, 0.9), ("chrf", "ter"), 4), items(written(40, 0.2, 7), ("chrf", "ter"), 4)
    for metric in ("chrf", "ter"):
        better = compare_corpus_metric_with_baselines(good, metric, {"copy": [one.statistics[metric] for one in bad]})
        worse = compare_corpus_metric_with_baselines(
            bad, metric, {"copy": [one.statistics[metric] for one in good], "none": [None] * 40}
        )
        assert better["p_value"] < 0.01 and worse["p_value"] > 0.9
        assert better["hardest_baseline"] == "copy" and [*worse["baselines"]] == ["copy"]
    some = [one.statistics["chrf"] if one.number < 12 else None for one in bad]
    corpus_metric = compare_corpus_metric_with_baselines(good, "chrf", {"other": some})
    assert corpus_metric["baselines"]["other"] == pytest.approx(metrics.chrf(written(40, 0.2, 7)[:12]))
    assert compare_corpus_metric_with_baselines(good, "chrf", {}) == {}


def test_translations_of_two_checkpoints_are_compared_from_their_tables(tmp_path: Path) -> None:
    kinds = ("bleu", "chrf", "ter")
    one = checkpoint(tmp_path, "large", 8, items(written(60, 0.8), kinds, 3))
    other = checkpoint(tmp_path, "small", 8, items(written(60, 0.5, 7), kinds, 3))
    rows = [*compare_checkpoints(one, other)]
    add_corrected_p_values(rows)
    assert [row["metric"] for row in rows] == [*kinds] and all(row["better"] == "a" for row in rows)
    for row in rows:
        assert row["a"]["value"] == pytest.approx(getattr(metrics, row["metric"])(written(60, 0.8)))
        assert row["low"] < row["difference"] < row["high"] and row["items"] == 60
        assert row["higher_is_better"] == (row["metric"] != "ter") and row["detectable_difference"] > 0
    (turned,) = (row for row in compare_checkpoints(other, one) if row["metric"] == "chrf")
    assert (turned["low"], turned["high"]) == (pytest.approx(-rows[1]["high"]), pytest.approx(-rows[1]["low"]))
    changed = {key: value._replace(aggregation="chrfpp") for key, value in other.statistics["chrf"].items()}
    assert [*compare_checkpoints(one, other._replace(statistics={"chrf": changed}))] == [], (
        "another metric of that name"
    )


def test_translation_metric_grows_over_checkpoints(tmp_path: Path) -> None:
    results = [
        checkpoint(tmp_path, "m", step, items(written(60, quality, step), ("chrf", "ter"), 3))
        for step, quality in ((1, 0.3), (2, 0.5), (3, 0.7), (4, 0.9))
    ]
    chrf, ter = find_trends(results)
    assert chrf["grows"] and ter["grows"] and chrf["higher_is_better"] and not ter["higher_is_better"]
    assert chrf["values"][0] == pytest.approx(metrics.chrf(written(60, 0.3, 1))) and ter["values"] == sorted(
        ter["values"], reverse=True
    )
    assert chrf["signal"] == pytest.approx(chrf["values"][3] - chrf["values"][0])
    backwards = [one._replace(step=5 - one.step) for one in results]
    assert not any(row["grows"] for row in find_trends(backwards))


def test_cluster_contributions_have_the_mean_and_error_of_the_metric() -> None:
    """The mean of the contributions is the metric; their scatter is that of the metric over samples."""
    rows = sums_of("chrf", written(200, 0.5))
    merits = score_intervals.jackknife_pseudovalues(CORPUS_METRICS["chrf"], rows)
    assert merits.mean() == pytest.approx(CORPUS_METRICS["chrf"].score(rows.sum(axis=0)))
    draw = np.random.default_rng(1)
    scores = [CORPUS_METRICS["chrf"].score(rows[draw.integers(200, size=200)].sum(axis=0)) for _ in range(800)]
    assert merits.std(ddof=1) / np.sqrt(200) == pytest.approx(np.std(scores), rel=0.1)
    few = score_intervals.jackknife_pseudovalues(CORPUS_METRICS["chrf"], rows[:4])
    without = [CORPUS_METRICS["chrf"].score(np.delete(rows[:4], one, axis=0).sum(axis=0)) for one in range(4)]
    assert few.std(ddof=1) / 2 == pytest.approx(np.sqrt(3 / 4 * np.var(without) * 4)), "the jackknife's standard error"
