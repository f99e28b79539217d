"""A difference between two checkpoints is listed only if it is significant, on commonly answered items."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import special, stats

from pipeline.core.errors import InputError
from pipeline.evaluate import differences
from pipeline.evaluate.checkpoint_and_baseline_answers import EvaluatedCheckpoint, read_checkpoint_answers
from pipeline.evaluate.differences import (
    add_corrected_p_values,
    compare_binary_metrics,
    compare_bits_per_byte,
    compare_checkpoints,
    compare_graded_metrics,
    detectable_share_difference,
    mcnemar_p_value,
    pair_last_checkpoints,
    paired_shares_interval,
)
from pipeline.evaluate.item_results import SCHEMA, MeasuredTask, TaskItem, write_items
from pipeline.evaluate.settings import DifferencesSettings


def checkpoint(model: str, step: int, **right: list[bool]) -> EvaluatedCheckpoint:
    """Return a checkpoint of tasks with the given accuracy data."""
    keys = {("s", task, n, f"{task}{n}"): one for task, answers in right.items() for n, one in enumerate(answers)}
    return EvaluatedCheckpoint(model, step, {"acc": keys}, {}, {})


def write(folder: Path, evaluated_checkpoint: EvaluatedCheckpoint, **changes: Any) -> Path:
    rows = [
        {"suite": s, "task": task, "item": item, "prompt_sha256": prompt, "answer": 0, "acc": right, **changes}
        for (s, task, item, prompt), right in evaluated_checkpoint.right["acc"].items()
    ]
    path = folder / "evaluation" / evaluated_checkpoint.model / str(evaluated_checkpoint.step) / "items.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, pa.schema([*SCHEMA, ("acc", pa.bool_())])), path)
    return path


def test_table_equals_hand_computed_values(tmp_path: Path) -> None:
    # Of 20 items 9 are correct in `large` alone, none in `small` alone, 5 in both: p = 2 / 2**9, alone in its run.
    large, small = [True] * 14 + [False] * 6, [False] * 9 + [True] * 5 + [False] * 6
    paths = [write(tmp_path, checkpoint("large", 8, t=large)), write(tmp_path, checkpoint("small", 4, t=small))]
    counts = differences.run(DifferencesSettings(), answers=paths, imported=[], differences=tmp_path / "d.json")
    assert counts == {"comparisons": 1, "real_differences": 1, "growing_scores": 0}
    (row,) = json.loads((tmp_path / "d.json").read_text())["comparisons"]
    assert row["a"] == {"model": "large", "step": 8, "value": 0.7} and row["b"]["value"] == 0.25
    assert (row["right_in_a_alone"], row["right_in_b_alone"], row["items"]) == (9, 0, 20)
    assert row["difference"] == pytest.approx(0.45) and row["better"] == "a"
    assert row["p_value"] == row["p_value_corrected"] == pytest.approx(2 / 2**9)
    # Agresti and Min by hand: (9.5 - 0.5) / 22, and 1.96 * sqrt((10 - 81 / 22) / 22**2)
    reach = 1.959964 * math.sqrt((10 - 81 / 22) / 22**2)
    assert (row["low"], row["high"]) == (pytest.approx(9 / 22 - reach), pytest.approx(9 / 22 + reach))


def test_last_checkpoints_of_model_pairs_and_last_two_of_each_are_compared() -> None:
    given = [checkpoint(model, step) for model, step in (("b", 5), ("a", 20), ("a", 100), ("a", 3), ("c", 1))]
    results = [((one.model, one.step), (other.model, other.step)) for one, other in pair_last_checkpoints(given)]
    last = [("a", 100), ("b", 5), ("c", 1)]
    assert results == [(last[0], last[1]), (last[0], last[2]), (last[1], last[2]), (("a", 100), ("a", 20))]
    assert [*pair_last_checkpoints(given[:1])] == []
    for steps, pairs in (((0, 4), [(4, 0)]), ((0, 2, 3, 4), [(4, 0), (4, 3)])):
        given = [checkpoint("a", step) for step in steps]
        assert [(one.step, other.step) for one, other in pair_last_checkpoints(given)] == pairs, "imported is step 0"


def test_last_checkpoint_is_compared_with_the_model_that_training_began_with(tmp_path: Path) -> None:
    right = {4: [True] * 7 + [False] * 7, 8: [True] * 14}
    answers = [write(tmp_path, checkpoint("a-b", step, t=each)) for step, each in right.items()]
    other = write(tmp_path, checkpoint("other", 0, t=[False] * 9 + [True] * 5))
    imported = tmp_path / "baselines/adopted-a-b/items.parquet"
    imported.parent.mkdir(parents=True)
    other.rename(imported)
    differences.run(DifferencesSettings(), answers=answers, imported=[imported], differences=tmp_path / "d.json")
    content = json.loads((tmp_path / "d.json").read_text())
    row, between = content["comparisons"]
    assert (row["a"], row["b"]["model"], row["b"]["step"]) == ({"model": "a-b", "step": 8, "value": 1.0}, "a-b", 0)
    assert (row["better"], row["right_in_a_alone"], row["p_value_corrected"]) == ("a", 9, pytest.approx(4 / 2**9))
    assert between["b"]["step"] == 4 and content["checkpoints"] == 2 and content["trends"] == [], "of the run alone"


def test_items_with_changed_prompts_are_not_compared(tmp_path: Path) -> None:
    one, other = checkpoint("a", 1, t=[True, True, False]), checkpoint("b", 1, t=[False, True])
    (row,) = compare_binary_metrics(one, other)
    assert (row["items"], row["items_of_one_alone"], row["right_in_a_alone"]) == (2, 1, 1)
    asked, asked_otherwise = write(tmp_path, one), write(tmp_path, other, prompt_sha256="another")
    assert [*compare_binary_metrics(read_checkpoint_answers(asked), read_checkpoint_answers(asked_otherwise))] == []
    assert [*compare_binary_metrics(one, EvaluatedCheckpoint("b", 1, {"acc_norm": other.right["acc"]}, {}, {}))] == []


@pytest.mark.slow
def test_equal_models_differ_in_at_most_five_percent_of_runs() -> None:
    draw, wrong = np.random.default_rng(1), 0
    for _ in range(1000):
        rows = []
        for _ in range(4):  # tasks with easy and hard items
            easy = draw.beta(2, 2, 120)
            one, other = draw.random(120) < easy, draw.random(120) < easy
            rows += [*compare_binary_metrics(checkpoint("a", 1, t=one.tolist()), checkpoint("b", 1, t=other.tolist()))]
        add_corrected_p_values(rows)
        wrong += any(row["better"] for row in rows)
    assert wrong <= 50


def test_interval_covers_the_truth_and_detectable_differences_have_80_percent_power() -> None:
    draw = np.random.default_rng(2)
    for items, only_one, only_other in ((100, 0.1, 0.1), (300, 0.15, 0.05), (1000, 0.08, 0.07), (60, 0.3, 0.1)):
        rounds = draw.multinomial(items, [only_one, only_other, 1 - only_one - only_other], 4000)
        bounds = [paired_shares_interval(int(one), int(other), items) for one, other, _ in rounds]
        assert 0.94 <= np.mean([low <= only_one - only_other <= high for low, high in bounds]) <= 0.97
    items, share = 400, 0.25
    lead = detectable_share_difference(50, 50, items)
    result = draw.multinomial(items, [(share + lead) / 2, (share - lead) / 2, 1 - share], 2000)
    assert 0.76 <= np.mean([mcnemar_p_value(int(one), int(other)) < 0.05 for one, other, _ in result]) <= 0.84


def test_exact_mcnemar_test_equals_scipy() -> None:
    for one, other in ((0, 0), (3, 3), (9, 0), (1, 12), (40, 61)):
        lesser = stats.binom.cdf(min(one, other), one + other, 0.5) if one + other else 1.0
        assert mcnemar_p_value(one, other) == pytest.approx(min(1.0, 2 * lesser))


def test_damaged_answer_table_is_refused(tmp_path: Path) -> None:
    good = write(tmp_path, checkpoint("a", 1, t=[True, False]))
    twice = write(tmp_path, checkpoint("b", 1, t=[True, False]), item=0, prompt_sha256="x")
    with pytest.raises(InputError, match="item 0 of the task t occurs twice"):
        read_checkpoint_answers(twice)
    good.write_bytes(good.read_bytes()[:100])
    with pytest.raises(InputError, match=r"items\.parquet is no item table"):
        read_checkpoint_answers(good)


def reader(model: str, nats: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any]) -> EvaluatedCheckpoint:
    texts = {
        ("texts", "t", n, str(n)): (float(each), int(size))
        for n, (each, size) in enumerate(zip(nats, sizes, strict=True))
    }
    return EvaluatedCheckpoint(model, 1, {}, {"bits_per_byte": texts}, {})


def test_texts_are_compared_in_bits_per_byte_with_lower_being_better(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    sizes = draw.integers(20, 400, 50)
    nats = -sizes * draw.uniform(0.5, 0.9, 50)
    better = nats + sizes * draw.normal(0.05, 0.05, 50)
    (row,) = compare_bits_per_byte(reader("a", better, sizes), reader("b", nats, sizes))
    add_corrected_p_values([row])
    assert row["better"] == "a" and row["difference"] < 0 and row["low"] < row["difference"] < row["high"] < 0
    assert row["a"]["value"] == pytest.approx(-better.sum() / math.log(2) / sizes.sum())
    assert row["difference"] == pytest.approx(row["a"]["value"] - row["b"]["value"])
    (turned,) = compare_bits_per_byte(reader("b", nats, sizes), reader("a", better, sizes))
    add_corrected_p_values([turned])
    assert turned["better"] == "b" and turned["difference"] == pytest.approx(-row["difference"])
    assert [*compare_binary_metrics(reader("a", better, sizes), reader("b", nats, sizes))] == []


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [50, pytest.param(150, marks=pytest.mark.thorough)])
def test_equal_text_models_rarely_differ_and_detectable_differences_are_found(rounds: int) -> None:
    draw, wrong, covered, result = np.random.default_rng(4), 0, 0, 0
    for _ in range(rounds):
        sizes = draw.integers(50, 150, 60)
        nats = -sizes * draw.uniform(0.5, 0.9, 60)
        one, other = (nats + draw.normal(0, 4, 60) for _ in range(2))
        (row,) = compare_bits_per_byte(reader("a", one, sizes), reader("b", other, sizes))
        add_corrected_p_values([row])
        wrong += row["better"] is not None
        covered += row["low"] <= 0 <= row["high"]
        lead = row["detectable_difference"] * math.log(2) * sizes
        (ahead,) = compare_bits_per_byte(
            reader("a", nats + draw.normal(0, 4, 60) + lead, sizes), reader("b", other, sizes)
        )
        result += ahead["p_value"] < 0.05
    assert wrong <= 0.1 * rounds and 0.9 <= covered / rounds <= 0.99 and 0.68 <= result / rounds <= 0.92


def test_items_of_one_group_count_together(tmp_path: Path) -> None:
    """Ten groups of twenty items, eight answered by one model alone and two by the other: 8 of 10, not 160."""
    one = checkpoint("a", 1, t=[n < 160 for n in range(200)])
    other = checkpoint("b", 1, t=[n >= 160 for n in range(200)])
    groups = {key: str(key[2] // 20) for key in one.right["acc"]}
    (apart,) = compare_binary_metrics(one, other)
    (row,) = compare_binary_metrics(one._replace(clusters=groups), other._replace(clusters=groups))
    assert apart["p_value"] < 1e-9 and row["p_value"] == pytest.approx(2 * stats.binom.sf(7, 10, 0.5))
    assert row["difference"] == apart["difference"] == pytest.approx(0.6)
    assert row["high"] - row["low"] > 3 * (apart["high"] - apart["low"])
    path = write(tmp_path, one, cluster="one")
    assert set(read_checkpoint_answers(path).clusters.values()) == {"one"}


def writer(model: str, grades: np.ndarray[Any, Any], metric: str = "sari") -> EvaluatedCheckpoint:
    return EvaluatedCheckpoint(
        model, 1, {}, {}, {}, {metric: {("s", "t", n, str(n)): float(x) for n, x in enumerate(grades)}}
    )


def permuted(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any], seed: int, rounds: int) -> float:
    """Return the two-sided p-value of a permutation test by a different implementation."""
    draw, result = np.random.default_rng(seed), abs(first.mean() - second.mean())
    far = 0
    for _ in range(rounds):
        changed = draw.random(len(first)) < 0.5
        one, other = np.where(changed, second, first), np.where(changed, first, second)
        far += abs(one.mean() - other.mean()) >= result - 1e-12
    return far / rounds


def test_graded_items_use_a_permutation_test_with_higher_being_better() -> None:
    draw = np.random.default_rng(5)
    for lead, is_better in ((4.0, True), (1.5, None), (0.0, False)):
        second = draw.gamma(4, 10, 60)
        first = second + draw.normal(lead, 8, 60)
        (row,) = compare_graded_metrics(writer("a", first), writer("b", second))
        add_corrected_p_values([row])
        expected = permuted(first, second, 6, 4000)
        assert row["p_value"] == pytest.approx(expected, abs=3 * math.sqrt(0.25 / 4000))
        assert is_better is None or (row["better"] == "a") == is_better
        # The jackknife of a mean is the mean's own error, and neither side is shorter than Student's.
        even = stats.ttest_rel(first, second).confidence_interval(0.95)
        assert even.low - 0.1 * lead - 0.5 < row["low"] <= even.low + 1e-9
        assert even.high - 1e-9 <= row["high"] < even.high + 0.1 * lead + 0.5
        (turned,) = compare_graded_metrics(writer("b", second), writer("a", first))
        assert turned["difference"] == pytest.approx(-row["difference"])
        assert row["difference"] == pytest.approx(row["a"]["value"] - row["b"]["value"])


def test_graded_comparison_needs_equal_metrics_and_items_and_uses_clusters() -> None:
    one, other = writer("a", np.arange(8.0)), writer("b", np.arange(6.0) - 1)
    (row,) = compare_graded_metrics(one, other)
    assert (row["items"], row["items_of_one_alone"], row["difference"]) == (6, 2, 1.0)
    assert [*compare_graded_metrics(one, writer("b", np.ones(8), "rouge_l"))] == []
    groups = {key: str(key[2] // 2) for key in one.graded["sari"]}
    (grouped,) = compare_graded_metrics(one._replace(clusters=groups), other._replace(clusters=groups))
    assert row["p_value"] == pytest.approx(2 / 2**6) and grouped["p_value"] == pytest.approx(2 / 2**3)


def test_graded_metrics_join_the_correction_family_and_readability_does_not(tmp_path: Path) -> None:
    paths = []
    for model, lead in (("a", 5.0), ("b", 0.0)):
        items = [
            TaskItem(
                n,
                str(n),
                (),
                (),
                frozenset(),
                (),
                {"exact": n < 20},
                "text",
                graded={"sari": n + lead, "lix": n + lead},
            )
            for n in range(40)
        ]
        path = tmp_path / "evaluation" / model / "8" / "items.parquet"
        path.parent.mkdir(parents=True)
        write_items(path, [MeasuredTask("s", "t", [], items)])
        paths.append(path)
    differences_settings = DifferencesSettings(seeds=[["a", "b"]])
    counts = differences.run(differences_settings, answers=paths, imported=[], differences=tmp_path / "d.json")
    assert counts == {"comparisons": 2, "real_differences": 1, "growing_scores": 0}
    content = json.loads((tmp_path / "d.json").read_text())
    exact, sari = content["comparisons"]
    assert (exact["metric"], exact["better"], sari["metric"], sari["better"]) == ("exact", None, "sari", "a")
    assert sari["p_value_corrected"] == 2 * sari["p_value"], "Holm over both"
    assert content["seeds"] == [["a", "b"]] and exact["differ_in_seed_alone"] and sari["differ_in_seed_alone"]
    differences.run(
        DifferencesSettings(seeds=[["a", "c"]]), answers=paths, imported=[], differences=tmp_path / "d.json"
    )
    rows = json.loads((tmp_path / "d.json").read_text())["comparisons"]
    assert [row["differ_in_seed_alone"] for row in rows] == [False, False]


@pytest.mark.slow
def test_equal_writers_are_rarely_marked_as_different() -> None:
    draw, wrong, covered = np.random.default_rng(7), 0, 0
    for _ in range(60):  # pages of two tasks
        rows = []
        for _ in range(2):
            ease = draw.gamma(4, 10, 50)
            one, other = (np.clip(ease + draw.normal(0, 12, 50), 0, 100) for _ in range(2))
            rows += compare_graded_metrics(writer("a", one), writer("b", other))
        add_corrected_p_values(rows)
        wrong += any(row["better"] for row in rows)
        covered += sum(row["low"] <= 0 <= row["high"] for row in rows)
    assert wrong <= 7 and covered >= 107


def test_answer_bits_have_no_better_model() -> None:
    likely = {"answer_bits_per_byte": {("s", "t", n, "x"): (-1.0 - n, 10) for n in range(40)}}
    other = {
        "answer_bits_per_byte": {key: (2 * nats, size) for key, (nats, size) in likely["answer_bits_per_byte"].items()}
    }
    sides = [EvaluatedCheckpoint(name, 1, {}, of, {}) for name, of in (("a", likely), ("b", other))]
    assert list(compare_checkpoints(*sides)) == []


def test_many_comparisons_raise_the_detectable_difference() -> None:
    row = {"p_value": 0.5, "difference": 0.1, "higher_is_better": True, "detectable_difference": 0.1}
    alone, many = dict(row), [dict(row) for _ in range(180)]
    add_corrected_p_values([alone])
    add_corrected_p_values(many)
    assert alone["detectable_difference"] == pytest.approx(0.1)
    # z of 1 - 0.05 / 2 / 180, by the inverse of the error function, and z of 0.8
    z = math.sqrt(2) * float(special.erfinv(1 - 0.05 / 180))
    assert many[0]["detectable_difference"] == pytest.approx(0.1 * (z + 0.8416) / (1.96 + 0.8416), rel=1e-3)


def test_proportions_differ_by_at_most_one() -> None:
    row = {"p_value": 0.5, "difference": 0.1, "higher_is_better": True, "detectable_difference": 0.9}
    shares, bits = [{**row, "right_in_a_alone": 1} for _ in range(100)], [dict(row) for _ in range(100)]
    add_corrected_p_values(shares)
    add_corrected_p_values(bits)
    assert shares[0]["detectable_difference"] == 1.0 < bits[0]["detectable_difference"]


def test_equal_clustered_answers_have_no_detectable_difference() -> None:
    right = {("s", "t", n, "x"): n % 2 == 0 for n in range(40)}
    clusters = {key: str(key[2] // 2) for key in right}
    (row,) = compare_binary_metrics(*(EvaluatedCheckpoint(name, 1, {"acc": right}, {}, clusters) for name in "ab"))
    assert row["detectable_difference"] is None and row["p_value"] == 1.0
    add_corrected_p_values([row])
    assert row["better"] is None
