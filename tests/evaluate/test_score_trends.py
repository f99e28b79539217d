"""Which tasks are informative at this size: clear growth is found, and noise is rarely called growth."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pipeline.evaluate import differences, trivial_baseline_tests
from pipeline.evaluate.checkpoint_and_baseline_answers import EvaluatedCheckpoint
from pipeline.evaluate.item_results import ANSWER_BITS
from pipeline.evaluate.score_trends import answer_instability_noise, find_trends, rank_trend, step_noise
from pipeline.evaluate.settings import DifferencesSettings
from tests.evaluate.test_differences import checkpoint, write

Matrix = np.ndarray[Any, Any]


@pytest.fixture
def few_flips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over hundreds of pages each p-value may be less precise than for one."""
    monkeypatch.setattr(trivial_baseline_tests, "PERMUTATIONS", 1000)


def answered(of_tasks: dict[str, Matrix], texts: Matrix | None = None, model: str = "m") -> list[EvaluatedCheckpoint]:
    """Return the checkpoints of a model at steps 100, 200, …, from correct answers and nats (items, checkpoints)."""
    (count,) = {each.shape[1] for each in of_tasks.values()}
    results = []
    for c in range(count):
        one = checkpoint(model, 100 * (c + 1), **{name: each[:, c].tolist() for name, each in of_tasks.items()})
        nats = {} if texts is None else {("t", "tales", n, str(n)): (float(x), 100) for n, x in enumerate(texts[:, c])}
        results.append(one._replace(likely={"bits_per_byte": nats}))
    return results


def drawn(draw: np.random.Generator, rates_C: list[float], items: int, spread: float = 0.0) -> Matrix:
    """Return which items, easy and hard ones, are correct at each checkpoint."""
    easy = draw.normal(0, spread, (items, 1))
    logits = np.log(np.array(rates_C) / (1 - np.array(rates_C)))
    return draw.random((items, len(rates_C))) < 1 / (1 + np.exp(-logits - easy))


@pytest.mark.slow
@pytest.mark.usefixtures("few_flips")
@pytest.mark.parametrize("count", [3, 4, 5])
@pytest.mark.parametrize("pages", [120, pytest.param(400, marks=pytest.mark.thorough)])
def test_at_most_5_percent_of_pure_noise_pages_show_growth(count: int, pages: int) -> None:
    draw, named, ratios = np.random.default_rng(count), 0, []
    for _ in range(pages):
        tasks = {f"t{n}": drawn(draw, [rate] * count, 100, 1.0) for n, rate in enumerate((0.25, 0.5, 0.5, 0.7))}
        rows = find_trends(answered(tasks, draw.normal(-80, 8, (40, 1)) + draw.normal(0, 2, (40, count))))
        assert len(rows) == 5
        named += any(row["grows"] for row in rows)
        ratios += [row["signal_to_noise"] for row in rows]
    assert named / pages <= 0.05
    assert 1.0 < np.mean(ratios) < 2.1, "as the docstring says"


@pytest.mark.slow
@pytest.mark.usefixtures("few_flips")
@pytest.mark.parametrize("count", [3, 4, 5])
@pytest.mark.parametrize("pages", [40, pytest.param(100, marks=pytest.mark.thorough)])
def test_clear_growth_is_usually_found_and_decline_is_not(count: int, pages: int) -> None:
    draw, result, shrunk = np.random.default_rng(10 + count), {"task": 0, "tales": 0}, 0
    rates = np.linspace(0.25, 0.6, count).tolist()
    nats = -200 + 60 * (1 - np.exp(-np.arange(count) * 1.5))  # falls fast, then less
    for _ in range(pages):
        tasks = {
            "task": drawn(draw, rates, 200, 1.0),
            "worse": drawn(draw, rates[::-1], 200, 1.0),
            "noise": drawn(draw, [0.5] * count, 200),
        }
        texts = draw.normal(0, 20, (40, 1)) + nats + draw.normal(0, 3, (40, count))
        by_task = {row["task"]: row for row in find_trends(answered(tasks, texts))}
        for name in result:
            result[name] += by_task[name]["grows"]
        shrunk += by_task["worse"]["grows"]
    assert min(result.values()) >= 0.85 * pages and shrunk == 0


@pytest.mark.slow
@pytest.mark.usefixtures("few_flips")
def test_shared_checkpoint_noise_is_called_growth_at_the_stated_rate() -> None:
    """Every checkpoint is randomly better or worse as a whole; items alone would call every second one growing."""
    draw, named = np.random.default_rng(7), {3: 0, 5: 0}
    for count in named:
        for _ in range(300):
            shared = draw.normal(0, 20, count)
            texts = draw.normal(-200, 20, (40, 1)) + shared + draw.normal(0, 2, (40, count))
            (row,) = find_trends(answered({"t": np.zeros((1, count), dtype=bool)}, texts))[1:]
            named[count] += row["grows"]
    assert named[3] / 300 < 1 / 6 + 0.05 and named[5] / 300 < 0.07


def test_table_equals_hand_computed_values() -> None:
    # Four items over three checkpoints: 1, 2 and 4 of them correct.
    right = np.array([[0, 0, 1], [0, 1, 1], [0, 0, 1], [1, 1, 1]], dtype=bool)
    (row,) = find_trends(answered({"t": right}))
    assert row["values"] == [0.25, 0.5, 1.0] and row["steps"] == [100, 200, 300] and row["items"] == 4
    assert (row["rank_correlation"], row["order_p_value"]) == (1.0, pytest.approx(1 / 6))
    # The middle is 0.125 below the line between its neighbors; items vary less than that.
    assert step_noise(np.array([100.0, 200, 300]), np.array([0.25, 0.5, 1])) == pytest.approx(0.125 / math.sqrt(1.5))
    means_I, scores = right.mean(axis=1, keepdims=True), right.mean(axis=0)
    rest = right - means_I - (scores - scores.mean())
    assert answer_instability_noise(right * 1.0, np.ones(4)) == pytest.approx(math.sqrt((rest**2).sum() / 2 / 3 / 4))
    assert (row["signal"], row["noise_of"]) == (0.75, "items")
    assert row["signal_to_noise"] == pytest.approx(0.75 / row["noise"])
    # Three items are correct at the last and not at the first, none the other way round: p of three.
    assert row["p_value"] == pytest.approx(1 / 8) and not row["grows"]


def test_answer_noise_is_the_scatter_of_scores() -> None:
    draw = np.random.default_rng(3)
    result, moved = [], []
    for _ in range(300):
        right = drawn(draw, [0.4] * 4, 80, 2.0) * 1.0
        result.append(answer_instability_noise(right, np.ones(80)) ** 2)
        moved.append(right.mean(axis=0).var(ddof=1))
    assert np.mean(result) == pytest.approx(np.mean(moved), rel=0.1)
    assert np.mean(result) < 0.8 * 0.24 / 80, "less than for newly drawn items"


def test_irregular_steps_have_no_noise_estimate() -> None:
    assert step_noise(np.array([0.0, 1, 10]), np.array([3.0, 4, 13])) == pytest.approx(0)


def test_rank_permutations_are_exact_and_ties_have_no_trend() -> None:
    assert rank_trend(np.array([1.0, 2, 3, 4, 5])).p_value == pytest.approx(1 / 120)
    assert rank_trend(np.array([1.0, 2, 3, 5, 4])).p_value == pytest.approx(5 / 120)
    assert rank_trend(np.array([2.0, 1.0, 1.0])).correlation == pytest.approx(-math.sqrt(3) / 2)
    assert rank_trend(np.ones(4)) == (None, 1.0)
    many = np.array([1.0, 3, 2, 4, 5, 7, 6, 8, 10, 9])
    assert rank_trend(many).p_value == stats.spearmanr(range(10), many, alternative="greater").pvalue


def test_two_checkpoints_have_no_trend_and_models_are_separate(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    two = answered({"t": drawn(draw, [0.1, 0.9], 50)}, model="two")
    three = answered({"t": drawn(draw, [0.1, 0.5, 0.9], 50), "empty": np.zeros((50, 3), dtype=bool)}, model="three")
    paths = [write(tmp_path, one) for one in [*reversed(three), *two]]
    counts = differences.run(DifferencesSettings(), answers=paths, imported=[], differences=tmp_path / "d.json")
    assert counts["growing_scores"] == 1
    empty, grown = json.loads((tmp_path / "d.json").read_text())["trends"]
    assert (grown["model"], grown["task"], grown["grows"]) == ("three", "t", True)
    assert empty["signal_to_noise"] is None and not empty["grows"]


def test_items_of_one_group_grow_together() -> None:
    """Two groups of forty items that become correct, half of them early: two clusters, not eighty items."""
    result = answered({"t": np.tile([[False, True, True], [False, False, True]], (40, 1))})
    clusters = {key: str(key[2] // 40) for key in result[0].right["acc"]}
    (apart,), (together,) = find_trends(result), find_trends([one._replace(clusters=clusters) for one in result])
    assert apart["grows"] and together["p_value"] == 0.25 and not together["grows"]


def test_only_items_common_to_all_checkpoints_count() -> None:
    result = answered({"t": np.array([[True] * 3, [False] * 3, [True] * 3])})
    del result[1].right["acc"]["s", "t", 2, "t2"]
    (row,) = find_trends(result)
    assert row["items"] == 2 and row["values"] == [0.5] * 3


def test_answer_bits_grow_when_they_decrease() -> None:
    draw = np.random.default_rng(5)
    nats = [-20.0 + 2 * step + draw.normal(0, 0.3, 60) for step in range(4)]
    results = [
        EvaluatedCheckpoint(
            "m", step, {}, {ANSWER_BITS: {("s", "t", n, "x"): (float(one), 10) for n, one in enumerate(of)}}, {}
        )
        for step, of in enumerate(nats)
    ]
    (row,) = find_trends(results)
    assert row["grows"] and not row["higher_is_better"] and row["values"] == sorted(row["values"], reverse=True)
    assert row["values"][0] == pytest.approx(-nats[0].sum() / math.log(2) / 600)


def test_score_missing_from_one_checkpoint_has_no_row() -> None:
    right = {("s", "t", number, "x"): number % 2 == 0 for number in range(8)}
    results = [EvaluatedCheckpoint("m", step, {"acc": right, f"other_{step}": right}, {}, {}) for step in range(4)]
    assert [row["metric"] for row in find_trends(results)] == ["acc"]
