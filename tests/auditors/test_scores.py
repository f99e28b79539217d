"""Exported scores are read by the tools of their formats, with the values of the run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.entry_point import main
from pipeline.evaluate.entity_scores import tags_from_json_answer
from pipeline.evaluate.settings import KnownSuite
from tests.conftest import ROOT, Project, is_lacking
from tests.evaluate.test_public_suites import tasks_of, write_euroeval_mirror

READER = Path(__file__).parent / "read_scores.py"
Read = Callable[..., Any]


@pytest.fixture(scope="module")
def read() -> Iterator[Read]:
    """Reads a file with a tool of `.venv-auditors`: `read(tool, file)`."""
    packages = next(ROOT.glob(".venv-auditors/lib/python*/site-packages"), ROOT)
    if not (packages / "every_eval_ever").is_dir() or not (packages / "euroeval").is_dir():
        is_lacking("the readers of scores are not installed: see tests/auditors/readers.lock")

    # One process, because importing EuroEval takes seconds.
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, READER, packages], text=True, cwd="/", **pipes) as process:
        assert process.stdin and process.stdout
        questions, answers = process.stdin, process.stdout

        def run(tool: str, file: Path) -> Any:
            print(json.dumps([tool, str(file)]), file=questions, flush=True)
            answer = json.loads(answers.readline())
            assert "error" not in answer, answer["error"]
            return answer["result"]

        yield run


def export(finished: Project, tool: str, file: Path) -> Path:
    assert main(["scores", str(finished.results), "base", "8", "--format", tool, "--output", str(file)]) == 0
    return file


def scores_of(finished: Project) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((finished.results / "evaluation/base/8/results.json").read_text())["tasks"]
    assert rows
    return rows


@pytest.mark.slow
def test_every_eval_ever_validates_the_scores(finished: Project, tmp_path: Path, read: Read) -> None:
    file = export(finished, "every-eval-ever", tmp_path / "scores.json")
    assert read("every-eval-ever", file) == []
    content = json.loads(file.read_text())
    content["evaluation_results"][0]["score_details"]["score"] = 1.5
    file.write_text(json.dumps(content))
    assert "outside" in str(read("every-eval-ever", file))
    del content["model_info"]["id"]
    file.write_text(json.dumps(content))
    assert "model_info" in str(read("every-eval-ever", file))


@pytest.mark.slow
def test_every_eval_ever_reads_the_lm_eval_file(finished: Project, tmp_path: Path, read: Read) -> None:
    logs = read("lm-eval", export(finished, "lm-eval", tmp_path / "results_2026.json"))
    results = {
        (result["evaluation_name"], result["metric_config"]["metric_name"].removeprefix("polder_")): result
        for log in logs
        for result in log["evaluation_results"]
    }
    for row in scores_of(finished):
        details = results.pop((row["task"], row["metric"]))["score_details"]
        assert details["score"] == row["value"]
        assert details["uncertainty"].get("standard_error", {}).get("value") == row["standard_error"]
        assert details["uncertainty"]["num_samples"] == row["examples"]
    assert not results


@pytest.mark.slow
def test_euroeval_reads_the_exported_score_lines(finished: Project, tmp_path: Path, read: Read) -> None:
    file = export(finished, "euroeval", tmp_path / "lines.jsonl")
    result = read("euroeval", file)
    totals = {one["result"]["dataset"]: one["result"]["results"]["total"] for one in result}
    left = {data_set: {**total} for data_set, total in totals.items()}
    for row in scores_of(finished):
        is_share = "bits" not in row["metric"]
        name = {"acc": "accuracy", "acc_norm": "acc_norm"}.get(row["metric"], f"polder_{row['metric']}")
        value, half = (left[row["task"]].pop(f"test_{name}{end}") for end in ("", "_se"))
        assert value == pytest.approx(row["value"] * (100 if is_share else 1))
        assert half == pytest.approx((row["high"] - row["low"]) / 2 * (100 if is_share else 1))
    assert not any(left.values())
    first = result[0]["result"]
    assert (first["num_model_parameters"], first["vocabulary_size"], first["max_sequence_length"]) == (69280, 600, 64)
    assert (first["languages"], first["generative_type"], first["few_shot"]) == (["nl"], "base", False)
    assert first["euroeval_version"] is None
    again = result[0]["written"]
    assert again["evaluation_results"][0]["score_details"]["score"] == first["results"]["total"]["test_accuracy"]
    assert {json.loads(line)["schema_version"] for line in file.open()} == {again["schema_version"]}


def test_prompts_and_examples_equal_those_of_euroeval(
    tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EuroEval's own functions write the prompts of its first iteration for the same rows."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    mirror = write_euroeval_mirror(tmp_path / "mirror")
    suites: tuple[KnownSuite, ...] = ("euroeval_dutch", "euroeval_english")
    tasks = {name: task for suite in suites for name, task in tasks_of(suite, mirror, tmp_path / suite).items()}
    rows = {
        task.config.metadata["euroeval"]["dataset"]: {
            split: [json.loads(line) for line in (mirror / task.config.dataset_path / f"default-{split}.jsonl").open()]
            for split in ("train", "test")
        }
        for task in tasks.values()
    }
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    expected = read("euroeval-prompts", tmp_path / "rows.json")
    assert len(expected) == len(tasks) == 15
    for task in tasks.values():
        shots = task.get_config("num_fewshot")
        asked = [task.fewshot_context(doc, num_fewshot=shots) for doc in task.eval_docs]
        assert asked == [prompt.rstrip() for prompt in expected[task.config.metadata["euroeval"]["dataset"]]], task


def test_entities_are_marked_as_by_euroeval(tmp_path: Path, read: Read) -> None:
    tokens = ["De", "Jan", "de", "Boer", "uit", "Sneek", "De"]
    answers = [
        '{"persoon": ["Jan de Boer", "Jan"], "locatie": ["Sneek De"]} {"persoon": ["uit"]}',
        '{"organisatie": ["De Jan", "e"], "persoon": ["Boer uit"], "boot": ["Sneek"], "diversen": "Jan"}',
        '{"locatie": [3, "n ek"], "persoon": []}',
        "Jan de Boer",
        '{"persoon": [Jan]}',
    ]
    (tmp_path / "answers.json").write_text(json.dumps({"tokens": [tokens] * len(answers), "answers": answers}))
    names = {"persoon": "per", "locatie": "loc", "organisatie": "org", "diversen": "misc"}
    assert [tags_from_json_answer(text, tokens, names) for text in answers] == read(
        "euroeval-entities", tmp_path / "answers.json"
    )
