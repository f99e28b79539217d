"""The demo with shorter trainings, of one process each: every filter removes something, and the report shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pipeline.provenance.verify_run import verify_run
from tests.conftest import Project, new_project

# The planted problems of config/corpus/README.md, by the expected removal reason.
REASONS = {
    "broken_json",
    "invalid_utf8",
    "missing_text",
    "not_an_object",
    "language",
    "duplicate_lines",
    "top_3_gram",
    "top_4_gram",
    "bullet_lines",
    "ellipsis_lines",
    "hash_signs",
    "exact_duplicate",
    "near_duplicate",
    "contaminated",
}


TRAINING = (
    "{training: {steps: 16, batch_size: 8, micro_batch_size: 8, learning_rate: 0.004, milestone_every: 16, "
    "warmup_steps: 2, validation_every: 16}}"
)
SHORTER = [
    "--config",
    f"models={{base: {TRAINING}, base_zero2: {TRAINING}}}",
    "evaluation={memorization: {prompts: 2, prompt_tokens: 20, continuation_tokens: 20}, samples: {tokens: 20}}",
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = new_project(tmp_path_factory.mktemp("demo") / "polder")
    project.train_alone()
    project.run(*SHORTER, configuration="config/config.yaml")
    return project


@pytest.mark.slow
def test_demo_exercises_every_filter(demo: Project) -> None:
    results = demo.folder / "results" / "demo"
    statistics = json.loads((results / "corpus" / "main" / "statistics.json").read_text())
    totals = statistics["totals"]
    page = (results / "report" / "index.html").read_text()
    removed = [(reason, count) for stage in totals["stages"] for reason, count in stage["removed"].items()]
    assert {reason for reason, _ in removed} == REASONS
    assert all(reason in page for reason in REASONS)
    assert totals["documents_in"] == totals["documents_out"] + sum(count for _, count in removed)
    assert set(statistics["personal_data"]) == {"bsn", "email", "iban", "ip"}
    assert all(count > 0 for count in statistics["personal_data"].values())


@pytest.mark.slow
def test_demo_produces_two_models_a_report_and_a_valid_crate(demo: Project) -> None:
    results = demo.folder / "results" / "demo"
    assert verify_run(results).problems == []
    page = (results / "report" / "index.html").read_text()
    assert len(re.sub(r"(?s)<(script|style)\b.*?</\1>|<[^>]+>", " ", page).split()) <= 12_000, "folded words included"
    for model in ("base", "base_zero2"):
        lines = [json.loads(line) for line in (results / "models" / model / "metrics.jsonl").read_text().splitlines()]
        losses = [line["loss"] for line in lines if "loss" in line]
        assert losses[-1] < losses[0] - 1
        assert model in page
    assert Path(results / "report" / "papers" / "training-content-summary.nl.html").is_file()
    assert "Nothing to be done" in demo.run(*SHORTER, configuration="config/config.yaml")
