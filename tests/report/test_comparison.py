"""Models stand side by side, and what stood in the corpus beside what did not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.evaluate.items import MeasuredTask, TaskItem, write_items
from tests.report.example import HOSTILE, Run, task
from tests.report.test_page import made, outline


def results(model: str, step: int, value: float, **more: object) -> dict[str, object]:
    scores = [task("completion", value, 0.01, 0.5, **more), task(f"only_{model}", 0.5, 0.1, 0.5)]
    return {"model": model, "step": step, "tasks": scores, "not_asked": []}


def compared(better: str | None, *steps: int) -> dict[str, object]:
    sides = ("base", "other", *steps) if steps else ("base", "other", 500, 500)
    named = {"suite": "dutch", "task": "completion", "metric": "acc", "items": 200, "items_of_one_alone": 0}
    return {
        "a": {"model": sides[0], "step": sides[2], "value": 0.6},
        "b": {"model": sides[1], "step": sides[3], "value": 0.8},
        **named,
        **{"higher_is_better": True, "difference": -0.2, "low": -0.3, "high": -0.1, "p_value": 0.001},
        **{"detectable_difference": 0.1, "p_value_corrected": 0.002, "better": better},
    }


CORPORA = {"base": "main"}
BASE, OTHER = ("0.6000 (0.5800 to 0.6200)", "0.8000 ✓ (0.7800 to 0.8200)")


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        (compared("b"), f"{BASE}chance 0.5000 {OTHER}chance 0.5000better than base"),
        (compared("a"), f"{BASE}chance 0.5000better than other {OTHER}chance 0.5000 "),
        (compared(None), f"{BASE}chance 0.5000 {OTHER}chance 0.5000 "),
        (compared("b", 500, 250), f"{BASE}chance 0.5000 {OTHER}chance 0.5000 "),
    ],
)
def test_a_difference_between_models_is_marked_only_where_it_is_real(
    run_folder: Run, comparison: dict[str, object], expected: str
) -> None:
    shared = {"baselines": {"chance": 0.5}, "hardest_baseline": "chance"}
    run_folder.write("evaluation/base/500/results.json", results("base", 500, 0.6, verdict=None, **shared))
    run_folder.write("evaluation/other/500/results.json", results("other", 500, 0.8, verdict="better", **shared))
    run_folder.write("evaluation/differences.json", {"comparisons": [comparison]})
    text = outline(made(run_folder)["page"]).text
    assert f"nl dutch completion acc ↑ {expected}" in text
    assert "nl dutch only_" not in text, "what one alone was asked stands in no common row"


def test_models_that_differ_in_their_seed_alone_are_no_better_ones(run_folder: Run) -> None:
    for model, value in (("base", 0.6), ("other", 0.8)):
        run_folder.write(f"evaluation/{model}/500/results.json", results(model, 500, value))
    rows = [compared("b") | {"differ_in_seed_alone": True}, compared(None)]
    run_folder.write("evaluation/differences.json", {"comparisons": rows})
    text = outline(made(run_folder)["page"]).text
    assert "other than base, by nothing but its seed" in text and "better than base" not in text
    assert "Comparisons: 1; real differences among them: 0." in text, "two seeds are no choice of anybody"
    assert "differ in nothing but their seed: 1; those whose items tell them apart: 1." in text
    assert text.count("told apart by nothing but their seed") == 1 and "B is better" not in text
    text = outline(made(run_folder, language="nl")["page"]).text
    assert "anders dan base, door niets dan het toevalsgetal (seed)" in text
    run_folder.write("evaluation/differences.json", {"comparisons": rows[1:]})
    assert "nothing but" not in (text := outline(made(run_folder)["page"]).text) and "but their seed" not in text


def test_one_model_stands_beside_none(run_folder: Run) -> None:
    assert "Models side by side" not in outline(made(run_folder)["page"]).text


def test_scores_on_items_that_stood_in_the_corpus_are_told(run_folder: Run) -> None:
    item = TaskItem(0, "x", ("a", "b"), (("", "a"), ("", "b")), frozenset({0}), (-1.0, -2.0), {"acc": True})
    items = [replace(item, number=n, prompt_sha256=str(n), correct={"acc": n != 3}) for n in range(8)]
    write_items(run_folder.root / "evaluation/base/500/items.parquet", [MeasuredTask("open", HOSTILE, [], items)])
    statistics = run_folder.read("corpus/main/statistics.json")
    counts = {"items": 8, "searched": 8, "not_searched": 0, "found": 2, "documents": 2, "sources": {"laws": 2}}
    counts |= {"phrases": 0, "by_chance": None}
    statistics["contamination"] = {HOSTILE: counts | {"found_items": ["1", "4"]}, "other": counts}
    run_folder.write("corpus/main/statistics.json", statistics)
    text = outline(made(run_folder, corpora=CORPORA)["page"]).text
    assert f"base, step 500 {HOSTILE} acc removed 2 0.5000 (0.0" in text and "6 1.0000 (0." in text
    statistics["contamination"]["other"] = statistics["contamination"].pop(HOSTILE)
    run_folder.write("corpus/main/statistics.json", statistics)
    later = {"corpus": "main", "contamination": {HOSTILE: counts | {"found_items": ["1", "4"]}}}
    run_folder.write("corpus/main/later_suites.json", later)
    text = outline(made(run_folder, corpora=CORPORA)["page"]).text
    assert f"base, step 500 {HOSTILE} acc read 2 0.5000 (0.0" in text, "nothing left the corpus for it"
    (run_folder.root / "corpus/main/later_suites.json").unlink()
    statistics["contamination"][HOSTILE] = statistics["contamination"].pop("other")
    run_folder.write("corpus/main/statistics.json", statistics)
    of_another = made(run_folder, corpora={"base": "another", "other": "main"})
    assert "Items that stood in the corpus" not in outline(of_another["page"]).text, "the model never saw that corpus"
    statistics["contamination"][HOSTILE]["found_items"] = []
    run_folder.write("corpus/main/statistics.json", statistics)
    assert "Items that stood in the corpus" not in outline(made(run_folder, corpora=CORPORA)["page"]).text


def test_the_last_checkpoint_is_that_of_the_greatest_step(run_folder: Run, tmp_path: Path) -> None:
    item = TaskItem(0, "x", ("a", "b"), (("", "a"), ("", "b")), frozenset({0}), (-1.0, -2.0), {"acc": True})
    for step in (90, 500):
        (run_folder.root / f"evaluation/base/{step}").mkdir(exist_ok=True)
        items = [replace(item, correct={"acc": step == 500})]
        write_items(run_folder.root / f"evaluation/base/{step}/items.parquet", [MeasuredTask("open", "t", [], items)])
    statistics = run_folder.read("corpus/main/statistics.json")
    counts = {"items": 8, "searched": 8, "not_searched": 0, "found": 1, "documents": 1, "sources": {"laws": 1}}
    counts |= {"phrases": 0, "by_chance": None}
    statistics["contamination"] = {"t": counts | {"found_items": ["1"]}}
    run_folder.write("corpus/main/statistics.json", statistics)
    assert "base, step 500 t acc removed 1 1.0000 0 – –" in outline(made(run_folder, corpora=CORPORA)["page"]).text


def test_what_an_evaluation_cost_is_told(run_folder: Run) -> None:
    assert "Electricity of this evaluation" not in outline(made(run_folder)["page"]).text, "no job of one is known"
    run_folder.record("evaluate.suites", {"model": "base", "step": "500"}, 9)
    text = outline(made(run_folder)["page"]).text
    # Three tasks of 200 examples; 10,000 J by the account of the example.
    assert text.count("Electricity of this evaluation: 2.78 Wh (") == 1, "of the step that is known"
    assert "For each of its 600 examples, on average: 16.7 J (13.3 to 20.0; " in text
