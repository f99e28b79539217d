"""The page tells which tasks say something at this size, where there are checkpoints enough, and folds it away."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pipeline.evaluate.baseline_answers import EvaluatedCheckpoint
from pipeline.evaluate.score_trends import find_trends
from tests.report.example import HOSTILE, Run, task
from tests.report.test_page import made, outline

pytestmark = pytest.mark.slow


def grown(run_folder: Run, steps: tuple[int, ...]) -> None:
    """Write the checkpoints of a model that learns two tasks, beats the baselines of one, and knows nothing of `luck`.

    Another model has one checkpoint.
    """
    draw, found = np.random.default_rng(2), []
    for place, step in enumerate(steps):
        rates = {"completion": 0.3 + 0.15 * place, HOSTILE: 0.2 + 0.15 * place, "luck": 0.5}
        right = {
            ("dutch", name, n, str(n)): bool(hit)
            for name, rate in rates.items()
            for n, hit in enumerate(draw.random(200) < rate)
        }
        found.append(EvaluatedCheckpoint("base", step, {"acc": right}, {}, {}))
        scores = [
            task(name, float(np.mean([hit for key, hit in right.items() if key[1] == name])), 0.03, 0.25)
            for name in rates
        ]
        for row in scores:
            row["verdict"] = "better" if row["task"] == "completion" else "not better"
        run_folder.write(f"evaluation/base/{step}/results.json", {"model": "base", "step": step, "tasks": scores})
    run_folder.write("evaluation/other/10/results.json", {"model": "other", "step": 10, "tasks": []})
    run_folder.write("evaluation/differences.json", {"comparisons": [], "trends": find_trends(found)})


@pytest.mark.parametrize(
    ("language", "told", "verdicts"),
    [
        (
            "en",
            ("Scores: 3; informative: 1.", "Too few checkpoints: other."),
            ("informative", "grows, not better than every baseline", "no growth found"),
        ),
        (
            "nl",
            ("Scores: 3; informatief: 1.", "Te weinig checkpoints: other."),
            ("informatief", "groeit, niet beter dan elke baseline", "geen groei gevonden"),
        ),
    ],
)
def test_what_says_something_stands_first_and_is_not_printed(
    run_folder: Run, language: str, told: tuple[str, ...], verdicts: tuple[str, ...]
) -> None:
    grown(run_folder, (250, 500, 750, 1000))
    page = made(run_folder, language=language)["page"]
    text = outline(page).text
    assert all(sentence in text for sentence in told)
    places = [text.index(f"base (4) {verdict} 200 ") for verdict in verdicts]
    assert places == sorted(places)
    names = "|".join(re.escape(name) for name in ("completion", HOSTILE, "luck"))
    rows = re.findall(
        rf"({names}) acc ↑ base \(4\) [^\d]+ 200 [\d.]+ (?:to|tot) [\d.]+ (-?[\d.]+) ", text.replace(",", ".")
    )
    assert [name for name, _ in rows] == ["completion", HOSTILE, "luck"] and rows[0][1] == rows[1][1] == "1.0000"
    title = {"en": "Which tasks are", "nl": "Welke opgaven zijn"}[language]
    assert f'<details class="screen"><summary>{title}' in page.read_text(encoding="utf-8")


def test_of_two_checkpoints_nothing_is_told(run_folder: Run) -> None:
    grown(run_folder, (250, 500))
    assert "Which tasks are informative" not in made(run_folder)["page"].read_text(encoding="utf-8")
