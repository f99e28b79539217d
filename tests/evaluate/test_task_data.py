"""The project's own items: balanced, so that no heuristic answers them, and unique."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from pipeline.core.errors import InputError
from pipeline.evaluate.checkpoint_and_baseline_answers import read_checkpoint_answers
from pipeline.evaluate.item_results import ANSWER_BITS, TaskItem
from pipeline.evaluate.settings import KNOWN_SUITES, Suite, SuiteSettings
from pipeline.evaluate.simplification_metrics import lix
from pipeline.evaluate.task_file_reader import (
    list_suite_files,
    read_data_rows,
    read_fewshot_file_name,
    read_task_config,
)
from pipeline.evaluate.task_loader import check_items, find_task_sources
from pipeline.evaluate.text_metrics import normalize_answer, rouge_l
from pipeline.evaluate.trivial_baseline_tests import baseline_credits
from tests.evaluate.test_suites import evaluate

TASKS = Path(__file__).parents[2] / "config" / "tasks"
NOT_THERE = {"polder_nl_antwoorden": "dat staat er niet", "polder_en_answers": "that is not in the text"}
READING = ("polder_nl_lezen", "polder_en_reading", *NOT_THERE)
CLOZE = ("polder_nl_invullen", "polder_en_cloze")
PAIRS = ("polder_nl_vooroordelen", "polder_en_bias")


def rows_of(task: str) -> list[dict[str, Any]]:
    return read_data_rows(TASKS / ("safety" if task in PAIRS else "use_cases") / f"{task}.jsonl")


def parts(pair: dict[str, Any]) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return the words around the difference of a pair, and the difference, of the stereotype and the other."""
    one, other = pair["stereotype"].split(), pair["other"].split()
    start = next(n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    end = next(n for n, (a, b) in enumerate(zip(one[::-1], other[::-1], strict=False)) if a != b)
    return one[:start], one[len(one) - end :], one[start : len(one) - end], other[start : len(other) - end]


@pytest.mark.parametrize("task", [*READING, *CLOZE, *PAIRS])
def test_items_are_unique(task: str) -> None:
    rows = rows_of(task)
    assert len(rows) == (60 if task in PAIRS else 40)
    asked = [
        row["stereotype"] if task in PAIRS else (row["passage"], row.get("question", row.get("start"))) for row in rows
    ]
    assert len(set(asked)) == len(rows)


@pytest.mark.parametrize("task", [*READING, *CLOZE])
def test_no_heuristic_answers_the_passage_questions(task: str) -> None:
    rows = rows_of(task)
    assert Counter(row["answer"] for row in rows) == dict.fromkeys(range(4), 10)
    items = [
        TaskItem(n, "", tuple(row["choices"]), (), frozenset({row["answer"]}), (), {}) for n, row in enumerate(rows)
    ]
    reached = {name: float(np.mean(credits)) for name, credits in baseline_credits(items, "acc", {}, {}).items()}
    assert reached.keys() == {"chance", "majority answer", "longest answer", "shortest answer"}
    if task in CLOZE:  # a property of one passage sentence is false of the other
        assert reached.pop("majority answer") == 0
    assert all(0.2 <= value <= 0.29 for value in reached.values()), reached


@pytest.mark.parametrize("task", READING)
def test_all_choices_except_not_stated_occur_in_the_passage(task: str) -> None:
    for row in rows_of(task):
        passage, not_there = row["passage"].casefold(), NOT_THERE.get(task)
        assert len(set(row["choices"])) == 4 and row["question"].endswith("?")
        assert all(choice.casefold() in passage for choice in row["choices"] if choice != not_there)
        assert row["choices"].count(not_there) == (task in NOT_THERE)


@pytest.mark.parametrize("task", CLOZE)
def test_cloze_choices_occur_in_the_passage_and_overlap_does_not_reveal_the_answer(task: str) -> None:
    by_overlap = 0.0
    for row in rows_of(task):
        sentences = re.split(r"(?<=[.;]) ", row["passage"].casefold())
        assert len(set(row["choices"])) == 4 and row["rest"].endswith(".") and not row["start"].endswith(" ")
        assert all(
            re.search(rf"\b{re.escape(choice.casefold())}\b", row["passage"].casefold()) for choice in row["choices"]
        )
        asked = {*re.findall(r"\w{4,}", f"{row['start']} {row['rest']}".casefold())}
        overlaps = [
            max(len(asked & {*re.findall(r"\w{4,}", one)}) for one in sentences if choice.casefold() in one)
            for choice in row["choices"]
        ]
        best = [number for number, shared in enumerate(overlaps) if shared == max(overlaps)]
        by_overlap += (row["answer"] in best) / len(best)
    assert by_overlap / 40 < 0.4, "searching the sentence with the same words is useless"
    passages = Counter(row["passage"] for row in rows_of(task))
    assert len(passages) == 20 and {*passages.values()} == {2}
    assert len({(row["text"], row["passage"]) for row in rows_of(task)}) == 20


@pytest.mark.parametrize("task", [*READING, *CLOZE])
def test_first_or_last_mentioned_choice_is_not_correct_more_often(task: str) -> None:
    places = Counter[int]()
    for row in rows_of(task):
        passage, right = row["passage"].casefold(), row["choices"][row["answer"]].casefold()
        named = sorted((passage.find(choice.casefold()), choice.casefold()) for choice in row["choices"])
        order = [choice for place, choice in named if place >= 0]
        if right in order:
            places[order.index(right)] += 1
    assert set(places.values()) == {10}


@pytest.mark.parametrize(("task", "text"), NOT_THERE.items())
def test_a_quarter_of_the_answers_is_not_in_the_text(task: str, text: str) -> None:
    rows = rows_of(task)
    assert sum(row["choices"][row["answer"]] == text for row in rows) == len(rows) / 4


def test_dutch_and_english_have_equal_answer_positions() -> None:
    for dutch, english in (READING[:2], READING[2:]):
        places = [[row["answer"] for row in rows_of(task)] for task in (dutch, english)]
        assert places[0] == places[1]


@pytest.mark.parametrize("task", PAIRS)
def test_pairs_differ_only_in_the_group_and_groups_are_balanced(task: str) -> None:
    rows, grounds, directions = rows_of(task), Counter[str](), Counter[tuple[str, str]]()
    for row in rows:
        before, after, one, other = parts(row)
        assert before and after and max(len(one), len(other)) <= 5, row
        grounds[row["ground"]] += 1
        directions[" ".join(one), " ".join(other)] += 1
    assert len(grounds) == 6 and set(grounds.values()) == {10}
    assert all(count == directions[other, one] for (one, other), count in directions.items())


SIMPLE = ("polder_nl_eenvoudig", "polder_en_simple")
SUMMARIES = ("polder_nl_samenvatting", "polder_en_summary")
SOURCES = ("polder_nl_bronnen", "polder_en_sources")


@pytest.mark.parametrize("task", SIMPLE)
def test_references_are_easier_than_official_sentences(task: str) -> None:
    rows = rows_of(task)
    assert len(rows) == 30 == len({row["source"] for row in rows})
    for row in rows:
        first, second = row["references"]
        assert first != second and row["source"] not in row["references"]
        assert lix(row["source"]) > max(lix(first), lix(second)), row


@pytest.mark.parametrize("task", SUMMARIES)
def test_summaries_are_short_and_not_copied_sentences(task: str) -> None:
    rows = rows_of(task)
    assert len(rows) == 20 == len({row["text"] for row in rows})
    for row in rows:
        (summary,) = row["references"]
        assert 80 <= len(row["text"].split()) <= 150
        assert len(summary.split()) < len(row["text"].split()) / 2 and summary.count(". ") <= 1
        sentences = f"{row['text']} ".split(". ")
        assert len(sentences) >= 5 and max(rouge_l(one, [summary]) for one in sentences) < 0.75, summary


@pytest.mark.parametrize("task", SOURCES)
def test_answers_occur_in_the_named_passage_and_a_third_in_none(task: str) -> None:
    rows = rows_of(task)
    assert len(rows) == 30 == len({row["question"] for row in rows})
    places = Counter(row["passage"] for row in rows)
    assert places[0] == 10 and max(places[1], places[2], places[3]) <= 8
    assert len({row["kind"] for row in rows}) == 2
    for row in rows:
        naming = [
            number
            for number, passage in enumerate(row["passages"], start=1)
            if any(f" {normalize_answer(one)} " in f" {normalize_answer(passage)} " for one in row["answers"])
        ]
        assert naming == ([row["passage"]] if row["passage"] else []), row
        assert bool(row["answers"]) == bool(row["passage"])


def test_dutch_and_english_sources_are_equal() -> None:
    places = [[(row["passage"], len(row["passages"])) for row in rows_of(task)] for task in SOURCES]
    assert places[0] == places[1]


@pytest.mark.parametrize("task", [*SIMPLE, *SUMMARIES, *SOURCES])
def test_examples_have_the_format_of_items_and_are_not_items(task: str) -> None:
    content = read_task_config(TASKS / "use_cases" / f"{task}.yaml")
    shots = read_data_rows(TASKS / "use_cases" / str(read_fewshot_file_name(TASKS, content)))
    rows = rows_of(task)
    assert shots[0].keys() == rows[0].keys() and len(shots) == content["num_fewshot"]
    texts = {text for row in rows for value in row.values() for text in (value if isinstance(value, list) else [value])}
    assert not any(
        one in texts for shot in shots for one in (shot.get("source"), shot.get("text"), shot.get("question")) if one
    )


def test_passage_questions_are_scored(milestone: Path, tmp_path: Path) -> None:
    suite = KNOWN_SUITES["use_cases"].model_copy(update={"limit": 12})
    rows = evaluate(milestone, tmp_path / "results.json", suite)["tasks"]
    assert {(row["task"], row["language"]) for row in rows} == set(
        zip((*READING, *CLOZE), ("nl", "en") * 3, strict=True)
    )
    assert all(row["baselines"] and row["aim"] is None for row in rows)
    assert all((row["verdict"] is None) == (row["metric"] == ANSWER_BITS) for row in rows)


def test_bias_is_shown_with_its_target_and_is_never_better(milestone: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "base" / "7").mkdir(parents=True)
    rows = evaluate(milestone, folder / "results.json", KNOWN_SUITES["safety"])["tasks"]
    assert [(row["task"], row["language"]) for row in rows] == [
        ("polder_en_bias", "en"),
        ("polder_nl_vooroordelen", "nl"),
    ]
    for row in rows:
        assert row["verdict"] is row["baselines"] is row["higher_is_better"] is None
        assert row["aim"] == 0.5 and row["low"] < row["value"] < row["high"]
        interval = binomtest(round(60 * row["value"]), 60).proportion_ci(method="wilson")
        assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high), abs=0.01)
        assert {(part["part"], part["examples"]) for part in row["parts"]} >= {
            ("gender" if row["language"] == "en" else "geslacht", 10)
        }
    assert read_checkpoint_answers(folder / "results.parquet").right == {}, "no checkpoint is better in it than another"


def test_target_is_between_zero_and_one(milestone: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(TASKS / "safety", tmp_path / "safety")
    file = folder / "polder_en_bias.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("aim: 0.5", "aim: 50"), encoding="utf-8")
    suite = Suite(name="safety", language="nl", folder=str(folder))
    (left_out,) = evaluate(milestone, tmp_path / "x.json", suite)["not_asked"]
    assert "task polder_en_bias: metadata: {aim: 50} is no share" in left_out["reason"]
    file.write_text(file.read_text(encoding="utf-8").replace("aim: 50", "cluster: nobody"), encoding="utf-8")
    (left_out,) = evaluate(milestone, tmp_path / "x.json", suite)["not_asked"]
    assert "metadata.cluster names the field 'nobody', which its data lack" in left_out["reason"]


@pytest.mark.parametrize(("kind", "key"), [("cluster", "aim"), ("parts", "parts")])
def test_missing_metadata_field_is_found_before_the_model_is_asked(kind: str, key: str, tmp_path: Path) -> None:
    file = shutil.copytree(TASKS / "safety", tmp_path / "safety") / "polder_en_bias.yaml"
    text = re.sub(rf"\b{key}: [\w.]+", f"{kind}: nobody", file.read_text(encoding="utf-8"))
    file.write_text(text, encoding="utf-8")
    suite = Suite(name="safety", language="nl", folder=str(file.parent))
    sources = find_task_sources(SuiteSettings.model_validate(suite), list_suite_files(suite), tmp_path)
    (task,) = next(source for source in sources if source.name == "polder_en_bias").load().values()
    with pytest.raises(InputError, match=f"metadata.{kind} names the field 'nobody'"):
        check_items(task, [0])
