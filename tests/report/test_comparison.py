"""Aggregates by language, differences between checkpoints, and scores on contaminated items."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.evaluate.item_results import MeasuredTask, TaskItem, write_items
from pipeline.evaluate.language_scores import aggregate_by_language
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


@pytest.mark.parametrize(("better", "expected"), [("b", "B is better"), ("a", "A is better"), (None, "")])
def test_only_significant_differences_are_listed(run_folder: Run, better: str | None, expected: str) -> None:
    run_folder.write("evaluation/differences.json", {"comparisons": [compared(better)]})
    text = outline(made(run_folder)["page"]).text
    assert f"Comparisons: 1; real differences: {int(better is not None)}." in text
    row = f"completion acc base, step 500 other, step 500 {expected} −0.2000 (−0.3000 to −0.1000) 200 0.1000 0.0020"
    assert (row in text) is (better is not None)


def test_smallest_detectable_differences_are_in_points(run_folder: Run) -> None:
    rows = [compared(None) | {"right_in_a_alone": 1, "detectable_difference": size} for size in (0.09, 0.38, None)]
    run_folder.write("evaluation/differences.json", {"comparisons": rows})
    assert "only differences of 9 to 38 percentage points or more" in outline(made(run_folder)["page"]).text


def test_each_language_has_one_score_above_chance_with_its_interval(run_folder: Run) -> None:
    scores = [
        task("a", 0.75, 0.05, 0.5),  # 50 of 100 above chance, ± 20
        task("a", 0.1, 0.05, 0.5, metric="acc_norm"),
        task("b", 0.4, 0.05625, 0.25, verdict="not better"),  # 20, ± 15
        task("c", 0.5, 0.05, 0.5, language="en", examples_truncated=150),
        task("d", 44.0, 2.0, None, metric="lix"),
        task("e", 0.9, 0.05, 0.5, language="en", aim=0.5),
    ]
    (row,) = aggregate_by_language(scores)
    assert row.language == "nl" and row.value == pytest.approx(35)
    assert (row.low, row.high) == (pytest.approx(35 - 12.5), pytest.approx(35 + 12.5)), "hypot(20, 15) / 2"
    assert row.detectable == pytest.approx(2**0.5 * 12.5 * 2.8016 / 1.96, rel=1e-4)
    assert (row.tasks, row.tested, row.better) == (2, 2, 1)
    content = {"model": "base", "step": 500, "tasks": scores}
    run_folder.write("evaluation/base/500/results.json", content)
    text = outline(made(run_folder)["page"]).text.partition("1. Summary")[0]
    assert "base Dutch (nl) 35 (22 to 48) 1 of 2 tasks" in text


def test_models_that_differ_only_in_seed_are_not_ranked(run_folder: Run) -> None:
    for model, value in (("base", 0.6), ("other", 0.8)):
        run_folder.write(f"evaluation/{model}/500/results.json", results(model, 500, value))
    rows = [compared("b") | {"differ_in_seed_alone": True}, compared(None)]
    run_folder.write("evaluation/differences.json", {"comparisons": rows})
    text = outline(made(run_folder)["page"]).text
    assert "Comparisons: 1; real differences: 0." in text, "two seeds are not a choice"
    assert "Comparisons of models that differ in their seed alone: 1; real differences: 1." in text
    assert text.count("real, between two seeds") == 1 and "B is better" not in text
    text = outline(made(run_folder, language="nl")["page"]).text
    assert "echt, tussen twee seeds" in text
    run_folder.write("evaluation/differences.json", {"comparisons": rows[1:]})
    assert "their seed alone" not in outline(made(run_folder)["page"]).text


def test_seed_range_is_next_to_the_interval(run_folder: Run) -> None:
    for model, value in (("base", 0.6), ("other", 0.7), ("third", 0.8), ("wider", 0.9)):
        run_folder.write(f"evaluation/{model}/500/results.json", results(model, 500, value))
    run_folder.write("evaluation/base/250/results.json", results("base", 250, 0.1))
    seeds = [["base", "other", "third", "of an experiment"]]
    run_folder.write("evaluation/differences.json", {"comparisons": [], "seeds": seeds})
    text = outline(made(run_folder)["page"]).text
    scatter = "SD 0.1000 (3 seeds)"
    assert text.count(scatter) == 1 and "nl base 0.6000 (0.5800 to 0.6200) no " + scatter in text
    assert " other 0.7000 (0.6800 to 0.7200) ✓ yes 0.0404 third 0.8000" in text, "their cell of seeds, items, baseline"
    assert " wider 0.9000 (0.8800 to 0.9200) ✓ yes – 0.0404" in text, "no other model differs only in its seed"
    assert "only_base right answers (acc ↑), nl base 0.5000 (0.3000 to 0.7000) no – " in text, "one seed answered it"
    first = text.partition("1. Summary")[0]
    assert "base Dutch (nl) 10 (−10 to 30) 10 to 30 (3) 0 of 2 tasks" in first, "half of 20, 40 and 60 by chance"
    assert "wider Dutch (nl) 40 (20 to 60) – 1 of 2 tasks 41" in first
    assert "Over seeds: the lowest and highest" in first
    run_folder.write("evaluation/differences.json", {"comparisons": [], "seeds": [["base"], ["gone", "wider"]]})
    assert "Over seeds" not in outline(made(run_folder)["page"]).text


def test_scores_on_contaminated_items_are_listed(run_folder: Run) -> None:
    item = TaskItem(0, "x", ("a", "b"), (("", "a"), ("", "b")), frozenset({0}), (-1.0, -2.0), {"acc": True})
    items = [replace(item, number=n, prompt_sha256=str(n), correct={"acc": n != 3}) for n in range(8)]
    write_items(run_folder.root / "evaluation/base/500/items.parquet", [MeasuredTask("open", HOSTILE, [], items)])
    statistics = run_folder.read("corpus/main/statistics.json")
    counts = {"items": 8, "searched": 8, "not_searched": 0, "found": 2, "documents": 2, "sources": {"laws": 2}}
    counts |= {"items_with_common_n_grams": 0, "by_chance": None}
    statistics["contamination"] = {HOSTILE: counts | {"found_items": ["1", "4"]}, "other": counts}
    run_folder.write("corpus/main/statistics.json", statistics)
    text = outline(made(run_folder, corpora=CORPORA)["page"]).text
    assert f"base, step 500 {HOSTILE} acc removed 2 0.5000 (0.0" in text and "6 1.0000 (0." in text
    statistics["contamination"]["other"] = statistics["contamination"].pop(HOSTILE)
    run_folder.write("corpus/main/statistics.json", statistics)
    later = {"corpus": "main", "contamination": {HOSTILE: counts | {"found_items": ["1", "4"]}}}
    run_folder.write("corpus/main/later_suites.json", later)
    text = outline(made(run_folder, corpora=CORPORA)["page"]).text
    assert f"base, step 500 {HOSTILE} acc read 2 0.5000 (0.0" in text, "nothing was removed from the corpus for it"
    (run_folder.root / "corpus/main/later_suites.json").unlink()
    statistics["contamination"][HOSTILE] = statistics["contamination"].pop("other")
    run_folder.write("corpus/main/statistics.json", statistics)
    of_another = made(run_folder, corpora={"base": "another", "other": "main"})
    assert "Items found in the corpus" not in outline(of_another["page"]).text, "the model never saw that corpus"
    statistics["contamination"][HOSTILE]["found_items"] = []
    run_folder.write("corpus/main/statistics.json", statistics)
    assert "Items found in the corpus" not in outline(made(run_folder, corpora=CORPORA)["page"]).text


def test_last_checkpoint_has_the_greatest_step(run_folder: Run, tmp_path: Path) -> None:
    item = TaskItem(0, "x", ("a", "b"), (("", "a"), ("", "b")), frozenset({0}), (-1.0, -2.0), {"acc": True})
    for step in (90, 500):
        (run_folder.root / f"evaluation/base/{step}").mkdir(exist_ok=True)
        items = [replace(item, correct={"acc": step == 500})]
        write_items(run_folder.root / f"evaluation/base/{step}/items.parquet", [MeasuredTask("open", "t", [], items)])
    statistics = run_folder.read("corpus/main/statistics.json")
    counts = {"items": 8, "searched": 8, "not_searched": 0, "found": 1, "documents": 1, "sources": {"laws": 1}}
    counts |= {"items_with_common_n_grams": 0, "by_chance": None}
    statistics["contamination"] = {"t": counts | {"found_items": ["1"]}}
    run_folder.write("corpus/main/statistics.json", statistics)
    assert "base, step 500 t acc removed 1 1.0000 0 – –" in outline(made(run_folder, corpora=CORPORA)["page"]).text


def test_evaluation_cost_is_shown(run_folder: Run) -> None:
    assert "base 500 0.4.9 – – – results.json" in outline(made(run_folder)["page"]).text, "no evaluation job is known"
    # 10,000 J and 1,230 s by the example's accounting; of the two segments 2,000,000 J and 2,460 s.
    run_folder.record("evaluate.suites", {"model": "base", "step": "500"}, 9)
    text = outline(made(run_folder)["page"]).text
    assert text.count("base 500 0.4.9 2.78 Wh (") == 1 and ") 50.0 % 0.5 % results.json" in text
    run_folder.record("evaluate.suites", {"model": "base", "step": "250"}, 9)
    text = outline(made(run_folder)["page"]).text
    assert ") 100.0 % 1.0 % results.json" in text, "of all checkpoints"
    first, last = (run_folder.read(f"provenance/records/pretrain.segment.base.{step}.json") for step in (250, 500))
    run_folder.write("provenance/records/pretrain.segment.base.500.json", last | {"attempt": first["attempt"]})
    text = outline(made(run_folder)["page"]).text
    assert ") 100.0 % 2.0 % results.json" in text, "once per attempt"
