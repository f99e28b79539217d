"""The page shows the informative tasks if there are enough checkpoints, and folds the rest."""

from __future__ import annotations

import re

import numpy as np
import pytest
from markupsafe import escape

from pipeline.evaluate.checkpoint_and_baseline_answers import EvaluatedCheckpoint
from pipeline.evaluate.score_trends import find_trends
from tests.report.example import HOSTILE, Run, metrics, task
from tests.report.test_page import made, outline

pytestmark = pytest.mark.slow


def grown(run_folder: Run, steps: tuple[int, ...]) -> None:
    """Write the checkpoints of a model that learns two tasks, beats the baselines of one, and knows nothing of `luck`.

    Another model has one checkpoint.
    """
    draw, result = np.random.default_rng(2), []
    for place, step in enumerate(steps):
        rates = {"completion": 0.3 + 0.15 * place, HOSTILE: 0.2 + 0.15 * place, "luck": 0.5}
        right = {
            ("dutch", name, n, str(n)): bool(hit)
            for name, rate in rates.items()
            for n, hit in enumerate(draw.random(200) < rate)
        }
        result.append(EvaluatedCheckpoint("base", step, {"acc": right}, {}, {}))
        scores = [
            task(name, float(np.mean([hit for key, hit in right.items() if key[1] == name])), 0.03, 0.25)
            for name in rates
        ]
        for row in scores:
            row["verdict"] = "better" if row["task"] == "completion" else "not better"
        run_folder.write(f"evaluation/base/{step}/results.json", {"model": "base", "step": step, "tasks": scores})
    run_folder.write("models/base/metrics.jsonl", metrics(steps[-1]))
    run_folder.write("evaluation/other/10/results.json", {"model": "other", "step": 10, "tasks": []})
    run_folder.write("evaluation/differences.json", {"comparisons": [], "trends": find_trends(result)})


@pytest.mark.parametrize(
    ("language", "sentence", "folded", "trend"),
    [
        (
            "en",
            "Shown are tasks that grow by more than noise",
            "Tasks without a signal: 1",
            "order, signal: base 1.0, ",
        ),
        ("nl", "Getoond worden opgaven die", "Opgaven zonder signaal: 1", "volgorde, signaal: base 1,0, "),
    ],
)
def test_tasks_with_a_signal_are_shown_and_others_folded(
    run_folder: Run, language: str, sentence: str, folded: str, trend: str
) -> None:
    grown(run_folder, (250, 500, 750, 1000))
    page = made(run_folder, language=language)["page"]
    result = page.read_text(encoding="utf-8").split('<section id="evaluation"')[1].split("</section>")[0]
    shown, _, rest = result.partition(f'<details class="screen"><summary>{folded}</summary>')
    assert sentence in shown and shown.count(trend) == 2
    charts = [re.findall(r'aria-label="([^"]*)\. base: ', part) for part in (shown, rest.partition("</details>")[0])]
    assert [[label.rpartition(":")[0] for label in part[-2:]] for part in charts] == [
        [str(escape(HOSTILE)), "completion"],
        ["luck"],
    ]


def test_page_reports_that_no_task_has_a_signal(run_folder: Run) -> None:
    grown(run_folder, (250, 500, 750, 1000))
    differences = run_folder.read("evaluation/differences.json")
    for changes in ({"grows": False}, {"signal_to_noise": 1.9}, {"signal_to_noise": None}):
        trends = [row | changes for row in differences["trends"]]
        run_folder.write("evaluation/differences.json", differences | {"trends": trends})
        text = outline(made(run_folder)["page"]).text
        assert "No task does so" in text and "Tasks without a signal: 3" in text


def test_chart_of_a_task_shows_its_first_metric_with_a_signal(run_folder: Run) -> None:
    """Such as bits of the correct answers, which improve before the answers do."""
    grown(run_folder, (250, 500, 750, 1000))
    differences = run_folder.read("evaluation/differences.json")
    luck = next(row for row in differences["trends"] if row["task"] == "luck")
    early = luck | {"metric": "answer_bits_per_byte", "grows": True, "signal_to_noise": 8.25}
    run_folder.write("evaluation/differences.json", differences | {"trends": [*differences["trends"], early]})
    for step, bits in ((250, 4.0), (500, 3.5), (750, 3.2), (1000, 3.0)):
        path = f"evaluation/base/{step}/results.json"
        results = run_folder.read(path)
        sign = task("luck", bits, 0.1, None, metric="answer_bits_per_byte", higher_is_better=False)
        run_folder.write(path, results | {"tasks": [sign, *results["tasks"]]})
    page = outline(made(run_folder)["page"])
    assert "Tasks without a signal" not in page.text and "No task does so" not in page.text
    labels = " ".join(str(image["aria-label"]) for image in page.all("svg"))
    assert "luck: bits to encode a byte of the right answer. base: first 4.000, last 3.000" in labels
    assert "order, signal: base " in page.text and ", 8.2" in page.text
    assert "luck: right answers. base" not in labels


def test_two_checkpoints_show_all_tasks_without_a_trend(run_folder: Run) -> None:
    grown(run_folder, (250, 500))
    page = outline(made(run_folder)["page"])
    text, labels = page.text, " ".join(str(image["aria-label"]) for image in page.all("svg"))
    assert "luck: right answers. base: first" in labels
    assert "without a signal" not in text and "more than noise" not in text
