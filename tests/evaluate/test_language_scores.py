"""The mean score of a language: the counted scores, its interval, and the detectable difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.evaluate.language_scores import (
    SeedScatter,
    aggregate_by_language,
    detectable_difference_between_models,
    is_counted,
    measure_seed_scatter,
)
from pipeline.evaluate.settings import Suite
from tests.evaluate.coverage import KINDS, coverage
from tests.evaluate.test_suites import CONFIG, evaluate

SHARE = {
    **{"suite": "s", "task": "a", "language": "nl", "value": 0.75, "low": 0.65, "high": 0.85, "chance_level": 0.5},
    **{"higher_is_better": True, "aim": None, "verdict": "better", "examples": 40, "examples_without_value": 0},
}


@pytest.fixture(scope="module")
def evaluated(milestone: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The embedded Dutch and English suites, answered by a model that knows nothing."""
    results = tmp_path_factory.mktemp("language") / "results.json"
    suites = [
        Suite(name=name, language=language, folder=str(CONFIG / name))
        for name, language in (("dutch", "nl"), ("english", "en"))
    ]
    return evaluate(milestone, results, *suites), results.with_suffix(".parquet")


@pytest.mark.slow
def test_mean_and_interval_equal_those_of_the_items(evaluated: tuple[dict[str, Any], Path]) -> None:
    """Recompute both from the item answers: by numpy, and by a bootstrap with fixed tasks."""
    results, answers = evaluated
    items = pq.read_table(answers).to_pylist()
    result = {row.language: row for row in aggregate_by_language(results["tasks"])}
    assert result.keys() == {"nl", "en"}
    random = np.random.default_rng(1)
    for language, suite in (("nl", "dutch"), ("en", "english")):
        drawn, means = np.zeros(20_000), []
        tasks = sorted({item["task"] for item in items if item["suite"] == suite})
        for task in tasks:
            of_task = [item for item in items if item["task"] == task]
            guess = np.mean([len(item["right_answers"]) / len(item["log_probabilities"]) for item in of_task])
            right = np.array([item["acc"] for item in of_task], dtype=float)
            means.append(100 * (right.mean() - guess) / (1 - guess))
            share = random.binomial(len(right), right.mean(), len(drawn)) / len(right)
            drawn += 100 * (share - guess) / (1 - guess) / len(tasks)
        row = result[language]
        assert row.tasks == row.tested == len(tasks) == 2
        assert row.value == pytest.approx(np.mean(means), abs=1e-9)
        assert row.low is not None and row.high is not None
        assert (row.low, row.high) == pytest.approx(np.quantile(drawn, (0.025, 0.975)), abs=2.5)
        assert row.detectable == pytest.approx(2.8016 * np.sqrt(2) * drawn.std(), rel=0.12)
        assert row.detectable > 15, "80 items cannot distinguish models a few points apart"


@pytest.mark.parametrize(
    "changes",
    [
        {"aim": 0.5},
        {"chance_level": None},
        {"chance_level": 1.0},
        {"higher_is_better": False},
        {"higher_is_better": None},
        {"value": None},
        {"examples_truncated": 21},
    ],
)
def test_scores_that_are_not_accuracies_on_complete_prompts_are_excluded(changes: dict[str, Any]) -> None:
    other = SHARE | {"task": "b"} | changes
    assert is_counted(SHARE) and not is_counted(other)
    (row,) = aggregate_by_language([SHARE, other])
    assert (row.value, row.tasks) == (pytest.approx(50), 1)
    assert is_counted(SHARE | {"examples_truncated": 20}), "half are complete"


def test_each_task_counts_once_in_the_mean_and_interval() -> None:
    steep = SHARE | {"task": "b", "value": 0.4, "low": 0.34, "high": 0.49, "chance_level": 0.25, "verdict": None}
    (row,) = aggregate_by_language([SHARE, SHARE | {"metric": "acc_norm", "value": 0.9}, steep])
    assert row.value == pytest.approx((50 + 20) / 2)
    assert row.low is not None and row.high is not None
    assert row.value - row.low == pytest.approx(np.hypot(20, 8) / 2)
    assert row.high - row.value == pytest.approx(np.hypot(20, 12) / 2)
    assert (row.tasks, row.tested, row.better) == (2, 1, 1)
    (row,) = aggregate_by_language([SHARE, steep | {"low": None, "high": None, "verdict": "not better"}])
    assert (row.low, row.high, row.detectable) == (None, None, None) and (row.tested, row.better) == (2, 1)
    assert [row.language for row in aggregate_by_language([SHARE, SHARE | {"language": "en"}])] == ["en", "nl"]


def test_detectable_difference_has_80_percent_power() -> None:
    """Two models with independently correct items, by the normal test of two proportions."""
    items, share = 400, 0.5
    reach = 1.96 * np.sqrt(share * (1 - share) / items)
    least = detectable_difference_between_models(share - reach, share + reach)
    assert least is not None
    random = np.random.default_rng(3)
    one, other = (random.binomial(items, share + sign * least / 2, 20_000) / items for sign in (1, -1))
    error = np.sqrt((one * (1 - one) + other * (1 - other)) / items)
    assert (np.abs(one - other) > 1.96 * error).mean() == pytest.approx(0.8, abs=0.015)
    assert (
        detectable_difference_between_models(None, None) is None
        and detectable_difference_between_models(0.5, 0.5) is None
    )


def test_seed_range_is_minimum_to_maximum() -> None:
    scatter = measure_seed_scatter([0.2512, None, 0.2677, 0.26])
    assert scatter == SeedScatter(0.2512, 0.2677, pytest.approx(np.std([0.2512, 0.2677, 0.26], ddof=1)), 3)  # type: ignore[arg-type]
    assert measure_seed_scatter([0.25, None]) is None and measure_seed_scatter([]) is None


def test_language_score_intervals_cover_the_truth() -> None:
    for name, least in (("2 tasks, guessing", 0.94), ("2 tasks, 98 and 99 %", 0.89)):
        assert least <= coverage(KINDS["language"][name], 40, 1000) <= 0.98, name
    same = coverage(KINDS["language, same questions"]["2 tasks, guessing"], 40, 1000)
    assert 0.8 < same < 0.9, "results do not state that two tasks share questions: the interval is too narrow"


@pytest.mark.parametrize("name", KINDS["language, two forms of one data set"])
def test_intervals_of_tasks_that_share_a_data_set_cover_the_truth(name: str) -> None:
    for items in (40, 300):
        assert coverage(KINDS["language, two forms of one data set"][name], items, 1000) >= 0.93, items


def test_interval_widths_of_tasks_with_one_data_set_are_added() -> None:
    source = {"data_set": "o/a", "configuration": None, "split": "test"}
    tasks = [SHARE | {"task": name, "protocol": source} for name in ("a_cloze", "a_mc")]
    (same,) = aggregate_by_language(tasks)
    assert (same.low, same.high) == pytest.approx((30, 70)), "as if correct on the same items"
    for changed in ({"data_set": "o/b"}, {"configuration": "other"}, {"split": "dev"}, {"data_set": None}):
        (apart,) = aggregate_by_language([tasks[0], tasks[1] | {"protocol": source | changed}])
        assert apart.low == pytest.approx(50 - np.hypot(20, 20) / 2), changed
