"""Scores over the training: curves with bands, and a table of the cost of each checkpoint."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pytest

from pipeline.core.job_records import Record
from pipeline.report.score_charts import main_scores
from pipeline.report.training_section import find_parent_checkpoint
from tests.record_content import record_content
from tests.report.example import HOSTILE, Run, task
from tests.report.test_page import made, outline


def results(run_folder: Run, step: int, *tasks: dict[str, Any]) -> None:
    run_folder.write(f"evaluation/base/{step}/results.json", {"model": "base", "step": step, "tasks": [*tasks]})


def scored(run_folder: Run) -> None:
    for step, value in ((250, 0.4), (500, 0.6)):
        both = [task(HOSTILE, value, 0.05, 0.5), task(HOSTILE, value, 0.05, 0.5, metric="acc_norm")]
        text = task("tales", 3 - value, None, None, metric="bits_per_byte", higher_is_better=False)
        results(run_folder, step, *both, text, *[task("late", 0.5, 0.1, 0.5)] * (step == 500))
    plan = run_folder.read("plan/plan.json")
    plan["models"]["base"] |= {"model_flops": 2.048e15, "tokens": 2_048_000}
    plan["formulas"]["model_flops"] = "tokens x <so many>"
    run_folder.write("plan/plan.json", plan)


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ("base 250 1,024,000 1.02e+15 ", " 500 2,048,000 2.05e+15 ", "0.5000 to 0.7000")),
        ("nl", ("base 250 1.024.000 1,02e+15 ", " 500 2.048.000 2,05e+15 ", "0,5000 tot 0,7000")),
    ],
)
def test_each_task_has_a_curve_with_a_band_and_each_checkpoint_its_cost(
    run_folder: Run, language: str, sentences: tuple[str, ...]
) -> None:
    scored(run_folder)
    page = made(run_folder, language=language)["page"]
    result = page.read_text(encoding="utf-8").split('<section id="evaluation"')[1].split("</section>")[0]
    charts = re.findall(r"<svg.*?</svg>", result)
    assert len(charts) == 3, "one for the language and each task, none for tasks of a single checkpoint"
    assert [chart.count('class="band') for chart in charts] == [1, 1, 0]
    assert "<script>" not in result
    text = outline(page).text
    assert all(sentence in text for sentence in sentences)
    assert re.search(r"late [^)]*\), nl 0[.,]5000 \(0[.,]3000", text) and "tokens x <so many>" in text


def test_checkpoint_energy_sums_all_segments_up_to_it(run_folder: Run) -> None:
    scored(run_folder)
    text = outline(made(run_folder)["page"]).text
    assert "1,000,000 (950,000 to 1,050,000) 90 % measured, 10 % estimated 500 2,048,000" in text
    assert "2,000,000 (1,900,000 to 2,100,000)" in text
    record = run_folder.read("provenance/records/pretrain.segment.base.250.json")
    run_folder.write("provenance/records/pretrain.segment.base.250.json", record | {"attempt": "unknown.json"})
    assert "1.02e+15 – not measured 500 2,048,000 2.05e+15 –" in outline(made(run_folder)["page"]).text


def test_single_checkpoint_has_no_curve(run_folder: Run) -> None:
    scored(run_folder)
    (run_folder.root / "evaluation/base/250/results.json").unlink()
    assert "over the training" not in made(run_folder)["page"].read_text(encoding="utf-8")


def test_models_share_the_chart_of_a_task(run_folder: Run) -> None:
    scored(run_folder)
    (run_folder.root / "models/other").mkdir()
    shutil.copy(run_folder.root / "models/base/metrics.jsonl", run_folder.root / "models/other")
    for step, value in ((250, 0.3), (500, 0.35)):
        asked = [
            task(HOSTILE, value, 0.05, 0.5),
            *[task("tales", 2.5, None, None, metric="bits_per_byte")] * (step == 500),
        ]
        run_folder.write(f"evaluation/other/{step}/results.json", {"model": "other", "step": step, "tasks": asked})
    text = made(run_folder)["page"].read_text(encoding="utf-8")
    together = text.split("Scores over the training</h3>")[1].split("</div>\n")[0]
    language, chart, _ = re.findall(r"<svg.*?</svg>", together)
    assert "base: first -20.00, last 20.00; other: first -40.00, last -30.00" in language
    assert language.count('class="band') == 2, "the tasks answered by every checkpoint"
    assert chart.count('class="band') == 2 and "<script>" not in chart
    alone = {"model": "third", "step": 500, "tasks": [task("late", 0.5, 0.1, 0.5)]}
    run_folder.write("evaluation/third/500/results.json", alone)
    shutil.copytree(run_folder.root / "models/base", run_folder.root / "models/third")
    assert "Mean score: Dutch (nl). base: first" in made(run_folder)["page"].read_text(encoding="utf-8"), (
        "it has no line"
    )
    assert "base: first 0.4000, last 0.6000; other: first 0.3000, last 0.3500" in chart


def test_main_score_of_a_task_is_the_one_in_the_mean() -> None:
    rows = [task("a", 0.5, None, None, metric="a_rate"), task("a", 3.0, None, None, metric="answer_bits_per_byte")]
    assert [row["metric"] for row in main_scores(rows[::-1]).values()] == ["a_rate"]
    assert [row["metric"] for row in main_scores([*rows, task("a", 0.5, 0.1, 0.25)]).values()] == ["acc"]
    squad = [task("a", 0.5, None, None, metric=metric) for metric in ("squad_f1", "squad_em")]
    assert [row["metric"] for row in main_scores(squad).values()] == ["squad_f1"], "the first of metric_list"
    counted = [task("a", 0.5, 0.1, 0.25, metric=metric) for metric in ("acc_norm", "acc")]
    assert [row["metric"] for row in main_scores(counted).values()] == ["acc"], "as in the mean, by name"


def branch(run_folder: Run) -> None:
    """Let a model continue step 250 of base: its segments end at 300 and 500, and used as much as base's two."""
    before = [{"name": "previous", "path": "models/base/milestones/250/state.json", "sha256": "a" * 64, "bytes": 1}]
    own = [{**before[0], "path": "models/cooled/milestones/300/state.json"}]
    for step, of, inputs in (("300", "250", before), ("500", "500", own)):
        record = run_folder.read(f"provenance/records/pretrain.segment.base.{of}.json")
        record |= {"instance": {"model": "cooled", "step": step}, "inputs": inputs}
        run_folder.write(f"provenance/records/pretrain.segment.cooled.{step}.json", record)
    (run_folder.root / "models/cooled").mkdir()
    lines = (run_folder.root / "models/base/metrics.jsonl").read_text().splitlines(keepends=True)
    later = [line for line in lines if json.loads(line)["step"] > 250]
    (run_folder.root / "models/cooled/metrics.jsonl").write_text("".join(later))
    for step, value in ((300, 0.3), (500, 0.35)):
        content = {"model": "cooled", "step": step, "tasks": [task("tales", value, 0.05, 0.5)]}
        run_folder.write(f"evaluation/cooled/{step}/results.json", content)


def test_branch_includes_the_tokens_and_joules_of_its_parent(run_folder: Run) -> None:
    scored(run_folder)
    branch(run_folder)
    text = outline(made(run_folder)["page"]).text
    assert text.count("This training continues step 250 of model base") == 1
    of_branch = text.split("cooled 300 1,228,800")[1]
    assert " 2,000,000 (1,900,000 to 2,100,000)" in of_branch
    assert " 500 2,048,000" in of_branch and " 3,000,000 (2,850,000 to 3,150,000)" in of_branch
    assert "training of cooled 1,024,000 token seen 1.95 J" in text, "its joules by its own tokens"
    assert "training of cooled 250 training step 8.00 kJ" in text
    paper = (run_folder.root / "report/papers/model-documentation-form.en.md").read_text()
    assert paper.count("from step 250 of base on, which lists the earlier training") >= 2, "its time and its energy"
    assert "it continues step 250 of base" in (run_folder.root / "report/papers/spdx.json").read_text()
    card = (run_folder.root / "report/model-card.md").read_text()
    assert "cooled continues step 250 of base" in card and "base continues" not in card


def test_training_is_not_a_branch_of_itself() -> None:
    """For a model without its first record, the first remaining one begins at its own milestone."""
    inputs = [{"name": "index", "path": "tokens/main/index.json"}]
    inputs += [{"name": "previous", "path": f"models/base/milestones/250/{name}"} for name in ("a", "b/c")]
    first, without, last = (
        Record.parse(json.dumps(record_content("pretrain.segment", inputs=some))) for some in (inputs, inputs[:1], [])
    )
    assert find_parent_checkpoint("base", [first]) is None
    assert find_parent_checkpoint("cooled", [first, last]) == ("base", 250)
    assert find_parent_checkpoint("cooled", [without]) is None and find_parent_checkpoint("cooled", []) is None


def test_branch_without_steps_has_no_own_cost(run_folder: Run) -> None:
    """Such as a cell that ran out of memory immediately."""
    scored(run_folder)
    branch(run_folder)
    (run_folder.root / "models/cooled/metrics.jsonl").write_text("")
    assert "training of cooled" not in outline(made(run_folder)["page"]).text
