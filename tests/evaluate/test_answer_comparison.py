"""Two runs are compared by what their models answered: real differences are told, all others only counted."""

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


def test_a_run_compared_with_itself_says_no_difference(tmp_path: Path) -> None:
    answered(tmp_path, first_right(120))
    (line,) = compare_run_answers(tmp_path, tmp_path)
    assert line.startswith("answers: 0 of 2 comparisons show a significant difference (")


def test_thirty_more_right_items_of_two_hundred_are_found_and_what_is_no_difference_is_counted(tmp_path: Path) -> None:
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


def test_a_metric_that_is_not_a_number_of_an_item_is_null_and_counts_for_nothing(tmp_path: Path) -> None:
    path = answered(tmp_path, [item(0, True, math.nan), item(1, True, 0.5)])
    assert pq.read_table(path).column("sari").to_pylist() == [None, 0.5]
    assert [*read_item_answers(path).graded["sari"].values()] == [0.5]


def test_the_corrected_level_holds_over_all_models_of_the_command(tmp_path: Path) -> None:
    """7 items that one alone has right: p = 2 / 2**7, which is real among two comparisons and not among ten."""
    a, b = tmp_path / "a", tmp_path / "b"
    for run, right in ((a, 10), (b, 17)):
        answered(run, [item(n, n < right) for n in range(40)])
    assert compare_run_answers(a, b)[0].startswith("answers: 1 of 2 ")
    for number in range(4):
        for run in (a, b):
            answered(run, first_right(20, 40), f"other{number}")
    assert compare_run_answers(a, b)[0].startswith("answers: 0 of 10 ")


def test_of_each_model_of_both_runs_the_last_checkpoint_that_both_evaluated_is_compared(tmp_path: Path) -> None:
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


def test_only_what_both_answered_is_compared_and_the_rest_is_counted(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    answered(a, [*first_right(150, 150), *(item(n, True, asked="x") for n in range(150, 170))])
    answered(b, first_right(110))
    head, line, alone = compare_run_answers(a, b)
    assert head.startswith("answers: 1 of 2 ") and "on 150 items: the first run is better" in line
    assert "1.0000 → 0.7333" in line
    assert alone.startswith("  base, step 8: 20 items were answered by the first run alone, 50 by the second alone")


def test_grades_are_compared_and_readability_is_not(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    answered(a, [item(n, True, float(n % 7)) for n in range(50)])
    answered(b, [item(n, True, float(n % 7) + 1 + n % 3) for n in range(50)])
    head, line = compare_run_answers(a, b)
    assert head.startswith("answers: 1 of 3 ") and "s/t sari: 2.9" in line and line.endswith("the second run is better")


def test_a_broken_table_is_named(tmp_path: Path) -> None:
    answered(tmp_path, first_right(3)).write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"items\.parquet is no item table"):
        compare_run_answers(tmp_path, tmp_path)


@pytest.mark.slow
def test_a_finished_run_has_no_real_difference_from_itself_and_one_from_another_that_answers_otherwise(
    finished: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(finished.results)
    assert main(["compare", run, run]) == 0
    same, said, *others = capsys.readouterr().out.splitlines()
    assert same.startswith("Settings, code, ") and others == []
    assert said.startswith("answers: 0 of ") and int(said.split()[3]) > 2
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
    assert main(["compare", run, str(other)]) == 0, (
        "what the records say is alike: verify is who tells that a file is not theirs"
    )
    head, *lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == int(head.split()[1]) > 0 and all(line.endswith("the second run is better") for line in lines)
    assert all(" → 1.0000, difference +" in line for line in lines)


def contaminated_answers(
    right: Iterable[tuple[str, int, bool]], clusters: dict[ItemKey, str] | None = None
) -> ItemAnswers:
    hits: dict[ItemKey, bool] = {("s", task, item, "hash"): hit for task, item, hit in right}
    return ItemAnswers(right={"acc": hits}, log_probabilities={}, likely={}, clusters=clusters or {}, graded={})


def test_items_that_were_found_are_told_apart_from_the_others() -> None:
    right = [("leaked", item, item < 10 or item % 2 == 0) for item in range(40)]
    (row,) = compare_contaminated_with_clean(
        contaminated_answers([*right, ("clean", 0, True)]), {"leaked": set(range(10)), "clean": {7}}
    )
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
    one = compare_contaminated_with_clean(contaminated_answers(right), {"a": set(range(10))})
    two = compare_contaminated_with_clean(contaminated_answers(right), {"a": set(range(10)), "b": set(range(10))})
    assert [row["p_value"] for row in two] == pytest.approx([2 * one[0]["p_value"]] * 2)


def test_items_in_groups_and_tasks_without_others_are_not_tested() -> None:
    right = [("reading", item, True) for item in range(20)]
    clusters = {("s", "reading", item, "hash"): str(item // 5) for item in range(20)}
    (row,) = compare_contaminated_with_clean(contaminated_answers(right, clusters), {"reading": {0, 1, 2, 3, 4}})
    assert row["p_value"] is None and row["contaminated"]["low"] is None, "one group tells nothing"
    assert row["clean"]["low"] is not None
    (row,) = compare_contaminated_with_clean(contaminated_answers(right), {"reading": set(range(20))})
    assert row["p_value"] is None and row["clean"] == {"examples": 0, "value": None, "low": None, "high": None}
