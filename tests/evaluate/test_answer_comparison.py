"""Two runs are compared by their models' answers: significant differences are listed, others only counted."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from scipy.stats import binomtest, hypergeom

from pipeline.cli.application import main
from pipeline.core.errors import InputError
from pipeline.evaluate.answer_comparison import compare_contaminated_with_clean, compare_run_answers
from pipeline.evaluate.item_results import ItemAnswers, ItemKey, MeasuredTask, TaskItem, read_item_answers, write_items
from tests.conftest import Project


def item(number: int, right: bool, sari: float | None = None, asked: str = "") -> TaskItem:
    choices, texts = ("a", "b"), (("", "a"), ("", "b"))
    correct = {"acc": right, "acc_norm": number % 2 == 0}
    graded = {} if sari is None else {"sari": sari, "lix": sari}
    return TaskItem(number, f"{asked}{number}", choices, texts, frozenset({0}), (-1.0, -2.0), correct, graded=graded)


def answered(run: Path, items: Sequence[TaskItem], model: str = "base", step: int = 8, task: str = "t") -> Path:
    path = run / "evaluation" / model / str(step) / "items.parquet"
    path.parent.mkdir(parents=True)
    write_items(path, [MeasuredTask("s", task, [], list(items))])
    return path


def first_right(count: int, of: int = 200) -> list[TaskItem]:
    return [item(n, n < count) for n in range(of)]


def test_run_compared_with_itself_shows_no_difference(tmp_path: Path) -> None:
    answered(tmp_path, first_right(120))
    (line,) = compare_run_answers(tmp_path, tmp_path)
    assert line.startswith("answers: 0 of 2 comparisons show a significant difference (")


def test_thirty_more_correct_of_two_hundred_items_are_significant(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    answered(a, first_right(100))
    answered(b, first_right(130))
    head, line = compare_run_answers(a, b)
    assert head.startswith("answers: 1 of 2 comparisons show a significant difference (on items that both runs ")
    # Agresti and Min by hand: 30.5 and 0.5 of 202 items, so 0.1485 ± 1.96 * sqrt(31 / 202 - 0.1485**2) / sqrt(202).
    between = "difference +0.1500 (+0.0985 to +0.1985)"
    assert line == f"  base, step 8: s/t acc: 0.5000 → 0.6500, {between} on 200 items: the second run is better"
    assert (
        "0.6500 → 0.5000, difference -0.1500 (-0.1985 to -0.0985) on 200 items: the first run"
        in compare_run_answers(b, a)[1]
    )


def test_non_numeric_item_metric_is_null_and_ignored(tmp_path: Path) -> None:
    path = answered(tmp_path, [item(0, True, math.nan), item(1, True, 0.5)])
    assert pq.read_table(path).column("sari").to_pylist() == [None, 0.5]
    assert [*read_item_answers(path).graded["sari"].values()] == [0.5]


def test_corrected_level_holds_over_all_compared_models(tmp_path: Path) -> None:
    """7 items correct in one alone: p = 2 / 2**7, significant among two comparisons and not among ten."""
    a, b = tmp_path / "a", tmp_path / "b"
    for run, right in ((a, 10), (b, 17)):
        answered(run, [item(n, n < right) for n in range(40)])
    assert compare_run_answers(a, b)[0].startswith("answers: 1 of 2 ")
    for number in range(4):
        for run in (a, b):
            answered(run, first_right(20, 40), f"other{number}")
    assert compare_run_answers(a, b)[0].startswith("answers: 0 of 10 ")


def test_last_checkpoint_evaluated_in_both_runs_is_compared(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    answered(a, first_right(100), step=9)
    answered(a, first_right(100), step=10)
    answered(a, first_right(0), step=20)
    answered(b, first_right(100), step=9)
    answered(b, first_right(150), step=10)
    answered(a, first_right(1), "elsewhere", 1)
    answered(b, first_right(1), "elsewhere", 2)
    answered(b, first_right(1), "alone")
    head, line, missing = compare_run_answers(a, b)
    assert head.startswith("answers: 1 of 2 ") and line.startswith("  base, step 10: ")
    assert missing == "  elsewhere: not compared, as no checkpoint of it was evaluated in both runs"
    shutil.rmtree(a / "evaluation/base")
    shutil.rmtree(a / "evaluation/elsewhere")
    answered(a, first_right(1), "mine")
    assert compare_run_answers(a, b) == ["answers: not compared, as no model was evaluated in both runs"]
    shutil.rmtree(a)
    shutil.rmtree(b)
    assert compare_run_answers(a, b) == []


def test_only_items_answered_in_both_runs_are_compared(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    answered(a, [*first_right(150, 150), *(item(n, True, asked="x") for n in range(150, 170))])
    answered(b, first_right(110))
    head, line, alone = compare_run_answers(a, b)
    assert head.startswith("answers: 1 of 2 ") and "on 150 items: the first run is better" in line
    assert "1.0000 → 0.7333" in line
    assert alone.startswith("  base, step 8: 20 items were answered by the first run alone, 50 by the second alone")


def test_graded_metrics_are_compared_and_readability_is_not(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    answered(a, [item(n, True, float(n % 7)) for n in range(50)])
    answered(b, [item(n, True, float(n % 7) + 1 + n % 3) for n in range(50)])
    head, line = compare_run_answers(a, b)
    assert head.startswith("answers: 1 of 3 ") and "s/t sari: 2.9" in line and line.endswith("the second run is better")


def test_invalid_answer_table_is_named(tmp_path: Path) -> None:
    answered(tmp_path, first_right(3)).write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"items\.parquet is no item table"):
        compare_run_answers(tmp_path, tmp_path)


@pytest.mark.slow
def test_finished_run_differs_from_another_run_but_not_from_itself(
    finished: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(finished.results)
    assert main(["compare", run, run]) == 0
    same, output, *others = capsys.readouterr().out.splitlines()
    assert same.startswith("Settings, code, ") and others == []
    assert output.startswith("answers: 0 of ") and int(output.split()[3]) > 2
    other = tmp_path / "other"
    shutil.copytree(finished.results, other, symlinks=True)
    (path,) = other.glob("evaluation/base/*/items.parquet")
    table = pq.read_table(path)
    for place, field in enumerate(table.schema):
        if field.type == pa.bool_():
            all_right = pc.if_else(pc.is_null(table[place]), table[place], True)
            table = table.set_column(place, field, all_right)
    path.unlink()
    pq.write_table(table, path)
    assert main(["compare", run, str(other)]) == 0, "the records agree: verify reports that a file does not match them"
    head, *lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == int(head.split()[1]) > 0 and all(line.endswith("the second run is better") for line in lines)
    assert all(" → 1.0000, difference +" in line for line in lines)


def contaminated_answers(
    right: Iterable[tuple[str, int, bool]], clusters: dict[ItemKey, str] | None = None
) -> ItemAnswers:
    hits: dict[ItemKey, bool] = {("s", task, item, "hash"): hit for task, item, hit in right}
    return ItemAnswers(right={"acc": hits}, log_probabilities={}, likely={}, clusters=clusters or {}, graded={})


def test_contaminated_items_are_scored_separately() -> None:
    right = [("leaked", item, item < 10 or item % 2 == 0) for item in range(40)]
    (row,) = compare_contaminated_with_clean(
        contaminated_answers([*right, ("clean", 0, True)]), {"leaked": set(range(10)), "clean": {7}}
    )
    assert (row["suite"], row["task"], row["metric"]) == ("s", "leaked", "acc")
    assert (row["contaminated"]["examples"], row["contaminated"]["value"]) == (10, 1.0)
    assert (row["clean"]["examples"], row["clean"]["value"]) == (30, 0.5)
    interval = binomtest(15, 30).proportion_ci(method="wilson")
    assert row["clean"]["low"] < interval.low < interval.high < row["clean"]["high"], "Student's t is a little wider"
    # All ten contaminated items are correct, of 40 items of which 25 are: both tails by hand.
    counts = [hypergeom.pmf(number, 40, 25, 10) for number in range(11)]
    assert row["p_value"] == pytest.approx(sum(one for one in counts if one <= counts[10] * (1 + 1e-9)))


def test_p_values_are_corrected_over_all_rows() -> None:
    right = [(task, item, item < 10 or item % 2 == 0) for task in ("a", "b") for item in range(40)]
    one = compare_contaminated_with_clean(contaminated_answers(right), {"a": set(range(10))})
    two = compare_contaminated_with_clean(contaminated_answers(right), {"a": set(range(10)), "b": set(range(10))})
    assert [row["p_value"] for row in two] == pytest.approx([2 * one[0]["p_value"]] * 2)


def test_grouped_items_and_tasks_without_clean_items_are_not_tested() -> None:
    right = [("reading", item, True) for item in range(20)]
    clusters = {("s", "reading", item, "hash"): str(item // 5) for item in range(20)}
    (row,) = compare_contaminated_with_clean(contaminated_answers(right, clusters), {"reading": {0, 1, 2, 3, 4}})
    assert row["p_value"] is None and row["contaminated"]["low"] is None, "one group is not informative"
    assert row["clean"]["low"] is not None
    (row,) = compare_contaminated_with_clean(contaminated_answers(right), {"reading": set(range(20))})
    assert row["p_value"] is None and row["clean"] == {"examples": 0, "value": None, "low": None, "high": None}
