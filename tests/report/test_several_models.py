"""The evaluation of several models is one table of scores; shared facts are shown once."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from pipeline.evaluate.item_results import MeasuredTask, TaskItem, write_items
from pipeline.report.evaluation_section import SHOWN_DIFFERENCES, tabulate_continuations, tabulate_scores
from tests.report.example import HOSTILE, Run, metrics, task
from tests.report.test_comparison import CORPORA, compared
from tests.report.test_page import made, outline
from tests.report.test_samples import row, written

MODELS = ("again", "base", "third", "wider")
TASKS = ("grammar", "knowledge", "reading", "sentences")
STEPS = (200, 400, 600)
PROTOCOL = {"version": 1.0, "num_fewshot": 5, "configuration": None, "split": "test", "output_type": "multiple_choice"}
PROTOCOL |= {"examples_available": 200}


def section(run_folder: Run, **changes: Any) -> str:
    """Return the words of the section, including those of figures and folded parts."""
    html = made(run_folder, **changes)["page"].read_text(encoding="utf-8")
    text = html.split('<section id="evaluation"')[1].split("</section>")[0]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", "<" + text))


def sample(prompt: str, text: str) -> dict[str, Any]:
    return {"prompt": prompt, "language": "nl", "continuation": text, "copied_characters": 0, "parts": []}


def four_models(run_folder: Run) -> None:
    """Write three checkpoints of four models with four tasks, three metrics each, with distinct scores."""
    number = count(1)
    shutil.rmtree(run_folder.root / "evaluation")
    for model in MODELS:
        run_folder.write(f"models/{model}/metrics.jsonl", metrics(STEPS[-1]))
        for step in STEPS:
            tasks = [
                task(name, 0.3 + next(number) / 10_000, 5, chance, metric=metric, language=("en", "nl")[n % 2])
                | {"protocol": PROTOCOL | {"sha256": name * 8, "data_set": f"a/{name}"}}
                for n, name in enumerate(TASKS)
                for metric, chance in (("acc", 0.25), ("acc_norm", 0.25), ("answer_bits_per_byte", None))
            ]
            content = {"model": model, "step": step, "tasks": tasks, "lm_eval_version": "0.4.9"}
            run_folder.write(f"evaluation/{model}/{step}/results.json", content)
            record = run_folder.read("provenance/records/pretrain.segment.base.250.json")
            instance = {"model": model, "step": f"{step}"}
            run_folder.record("pretrain.segment", instance, 7, counts=record["counts"], settings=record["settings"])
            run_folder.record("evaluate.suites", instance, 9)
        texts = [
            sample(f"{n} words that a model goes on with", f"{model} wrote {n} " + "more words " * 9) for n in "abc"
        ]
        run_folder.write(f"evaluation/{model}/samples.json", written([]) | {"model": model, "samples": texts})
    pairs = [("again", "third"), ("base", "wider"), ("third", "wider"), ("base", "third"), ("again", "wider")]
    rows = [
        compared("b") | {"a": {"model": a, "step": 600}, "b": {"model": b, "step": 600}, "task": name}
        for a, b in pairs
        for name in TASKS
    ]
    content = {"comparisons": rows, "seeds": [[*MODELS[:3]]]}
    run_folder.write("evaluation/differences.json", content)


@pytest.mark.parametrize("language", ["en", "nl"])
def test_four_models_take_at_most_2000_words_and_each_score_is_shown_once(run_folder: Run, language: str) -> None:
    four_models(run_folder)
    text = section(run_folder, language=language)
    assert len(text.split()) <= 2000
    mark = "." if language == "en" else ","
    scores = [f"0{mark}3{number:03}" for number in range(1, 4 * 3 * 4 * 3 + 1)]
    assert {text.count(f" {score} ") for score in scores} == {1}


def test_facts_shared_by_models_are_shown_once(run_folder: Run) -> None:
    four_models(run_folder)
    text = section(run_folder)
    assert len(re.findall(r"right answers \(acc ↑\) , en", text)) == 2, "of two tasks of a language, not of each model"
    assert text.count("grammar 1.0 5 a/grammar") == 1 and "(again" not in text, "all have one protocol"
    results = run_folder.read("evaluation/base/600/results.json")
    for one in results["tasks"]:
        one["protocol"]["sha256"] = one["protocol"]["sha256"].upper()
    results["not_asked"] = [{"task": "long", "tokens_needed": 310, "sequence_length": 128}]
    run_folder.write("evaluation/base/600/results.json", results)
    text = section(run_folder)
    assert "grammar (again, third, wider) 1.0 5" in text and "grammar (base) 1.0 5" in text
    assert "base: Task long was not run: each example needs 310 tokens" in text


def test_models_with_other_steps_have_separate_tables(run_folder: Run) -> None:
    four_models(run_folder)
    shutil.rmtree(run_folder.root / "evaluation/wider/200")
    text = section(run_folder)
    assert (
        "Task Model Step 200 Step 400 Step 600" in text and "Models with other checkpoints Task Model Step 400" in text
    )


def test_largest_significant_differences_relative_to_their_items_are_shown(run_folder: Run) -> None:
    four_models(run_folder)
    differences = run_folder.read("evaluation/differences.json")
    for number, one in enumerate(differences["comparisons"]):
        one |= {"task": f"t{number}", "detectable_difference": 0.2 - number / 1000}
    differences["comparisons"][0]["detectable_difference"] = None
    run_folder.write("evaluation/differences.json", differences)
    text = section(run_folder)
    assert f"The {SHOWN_DIFFERENCES} of 20 that are largest relative to it" in text
    assert re.findall(r"\bt\d+\b", text) == [f"t{number}" for number in range(19, 13, -1)]


def test_contaminated_items_are_shown_for_the_main_score_of_a_task(run_folder: Run) -> None:
    item = TaskItem(0, "x", ("a", "b"), (("", "a"), ("", "b")), frozenset({0}), (-1.0, -2.0), {})
    items = [replace(item, number=n, prompt_sha256=f"{n}", correct={"acc": n > 3, "acc_norm": n > 2}) for n in range(8)]
    write_items(
        run_folder.root / "evaluation/base/500/items.parquet",
        [MeasuredTask("dutch", name, [], items) for name in ("completion", HOSTILE)],
    )
    statistics = run_folder.read("corpus/main/statistics.json")
    counts = {"items": 8, "searched": 8, "not_searched": 0, "found": 1, "documents": 1, "sources": {"laws": 1}}
    counts |= {"items_with_common_n_grams": 0, "by_chance": None, "found_items": ["1"]}
    statistics["contamination"] = {"completion": counts, HOSTILE: counts}
    run_folder.write("corpus/main/statistics.json", statistics)
    text = outline(made(run_folder, corpora=CORPORA)["page"]).text
    assert "completion acc removed 1" in text and "completion acc_norm removed" not in text
    assert f"{HOSTILE} acc removed 1" in text and f"{HOSTILE} acc_norm removed 1" in text, "it has no own score"


def test_equal_counts_and_texts_are_shown_once_with_their_models(run_folder: Run) -> None:
    for model in ("one", "other"):
        content = written([]) | {"model": model}
        content["samples"] = [sample("Het", "water"), sample("De", f"{model} zin")]
        content["memorization"]["kinds"]["neutral"] = row(7 if model == "one" else 8)
        run_folder.write(f"evaluation/{model}/samples.json", content)
    text = section(run_folder)
    assert "training documents themselves one, other 44 0" in text
    assert "the model, after neutral prompts one 7 0 – – – 0 other 8 0" in text
    assert "Het one, other water" in text and "De one one zin" in text and "other other zin" in text


def test_more_models_show_fewer_texts_each() -> None:
    def shown(models: int) -> int:
        rows = [sample(f"{n}", "a") for n in range(9)]
        return len(tabulate_continuations([{"model": f"{m}", "rows": rows} for m in range(models)]))

    assert [shown(models) for models in (1, 2, 3, 4, 9)] == [3, 3, 2, 1, 1]


def test_parts_of_a_task_have_a_column_for_each_model() -> None:
    part = {"part": "verbs", "value": 0.5, "low": 0.4, "high": 0.6, "examples": 20}
    checkpoints = {
        model: [{"step": 1, "tasks": [task("a", 0.5, 0.1, 0.5, parts=parts)], "protocols": {}, "not_asked": []}]
        for model, parts in {"one": [part], "other": []}.items()
    }
    tables = tabulate_scores(checkpoints, {})
    assert tables["more"] == [], "the main score of one checkpoint is in the table above alone"
    assert tables["parts"] == [{"task": "a", "part": "verbs", "cells": [part, None]}]
