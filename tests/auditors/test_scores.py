"""Exported scores are read by the tools of their formats, and EuroEval gives the scores of its tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
import torch
from lm_eval.api.task import Task
from sklearn.metrics import matthews_corrcoef
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.cli.entry_point import main
from pipeline.evaluate.entity_scores import tags_from_json_answer
from pipeline.evaluate.settings import KNOWN_SUITES, KnownSuite
from pipeline.evaluate.simplification_metrics import sari_13a
from tests.auditors.answering_model import encode_json_start, write_milestone
from tests.conftest import ROOT, Project, is_lacking
from tests.evaluate.test_public_suites import scored, tasks_of, write_euroeval_mirror

READER = Path(__file__).parent / "read_scores.py"
Read = Callable[..., Any]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Read]:
    """Reads a file with a tool of `.venv-auditors`: `read(tool, file)`."""
    packages = next(ROOT.glob(".venv-auditors/lib/python*/site-packages"), ROOT)
    if not all((packages / name).is_dir() for name in ("every_eval_ever", "euroeval", "seqeval")):
        is_lacking("the readers of scores are not installed: see tests/auditors/readers.lock")

    # One process, because importing EuroEval takes seconds.
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    own = {"HF_HOME": str(tmp_path_factory.mktemp("hub")), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, READER, packages]
    with subprocess.Popen(command, text=True, cwd="/", env=os.environ | own, **pipes) as process:
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


class Comparison(NamedTuple):
    """Polder's evaluation of a model and the first iteration of EuroEval, by EuroEval's name of the data set."""

    model: Path
    tasks: dict[str, Task]
    answers: dict[str, list[str]]
    scores: dict[str, dict[str, float]]
    euroeval: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory, read: Read) -> Comparison:
    """One model on the same rows: nine items of each of the 15 tasks."""
    folder = tmp_path_factory.mktemp("comparison")
    mirror, milestone = write_euroeval_mirror(folder / "mirror", asked=9), write_milestone(folder)
    tasks, rows, answers, scores = {}, {}, {}, {}
    suites: tuple[KnownSuite, ...] = ("euroeval_dutch", "euroeval_english")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", folder / "cache")
        for name in suites:
            (folder / name).mkdir()
            suite = KNOWN_SUITES[name].model_copy(update={"data": str(mirror)})
            content = scored(suite, milestone, folder / name)
            assert content["not_asked"] == []
            items = pq.read_table(folder / name / "items.parquet").to_pylist()
            for task in tasks_of(name, mirror, folder / name).values():
                data_set = task.config.metadata["euroeval"]["dataset"]
                tasks[data_set], files = task, mirror / task.config.dataset_path
                rows[data_set] = {
                    split: [json.loads(line) for line in (files / f"default-{split}.jsonl").open()]
                    for split in ("train", "test")
                }
                choices = task.config.doc_to_choice
                answers[data_set] = [
                    choices[item["answer"]] if choices else item["written"].strip()
                    for item in items
                    if item["task"] == task.config.task
                ]
                scores[data_set] = {
                    row["metric"]: row["value"] for row in content["tasks"] if row["task"] == task.config.task
                }
    (folder / "rows.json").write_text(json.dumps({"model": str(milestone / "huggingface"), "rows": rows}))
    euroeval = read("euroeval-scores", folder / "rows.json")
    assert euroeval.keys() == tasks.keys() and len(tasks) == 15
    return Comparison(milestone / "huggingface", tasks, answers, scores, euroeval)


NAMES_OF_METRICS = {"mcc": "mcc", "acc": "accuracy", "squad_f1": "f1", "squad_em": "em", "chrf3pp": "chr_f3pp"}
ENTITIES = ("conll-nl", "conll-en")


def test_prompts_and_examples_equal_those_of_euroeval(comparison: Comparison) -> None:
    """EuroEval's own class writes the prompts of its first iteration for the same rows."""
    for data_set, task in comparison.tasks.items():
        shots = task.get_config("num_fewshot")
        asked = [task.fewshot_context(doc, num_fewshot=shots) for doc in task.eval_docs]
        assert [*dict.fromkeys(asked)] == comparison.euroeval[data_set]["prompts"], data_set


def test_answers_and_scores_equal_those_of_euroeval(comparison: Comparison) -> None:
    """EuroEval extracts the answers of the same model and scores them; the three other tasks are below."""
    compared = {}
    for data_set in comparison.tasks.keys() - {*ENTITIES, "dbrd"}:
        result, answers = comparison.euroeval[data_set], comparison.answers[data_set]
        if data_set.startswith("squad"):
            expected = [answer["prediction_text"] for answer in result["predictions"]]
            answers = [answer.lower() for answer in answers]
        else:
            expected = result["predictions"]
        assert answers == expected and len({*answers}) > 1, data_set
        for metric, value in comparison.scores[data_set].items():
            if (score := result["scores"].get(f"test_{NAMES_OF_METRICS.get(metric)}")) is not None:
                compared[data_set, metric] = value
                assert value * (1 if metric == "chrf3pp" else 100) == pytest.approx(score, abs=1e-9), (data_set, metric)
    assert len(compared) == 16
    assert [key for key, value in compared.items() if not value] == [("squad", "squad_em")], "no score by default"


def test_label_of_several_tokens_is_scored_as_a_whole(comparison: Comparison) -> None:
    """The label that EuroEval's decoder begins with the likelier token, and the likelier label: here not the same."""
    tokenizer, model = (kind.from_pretrained(comparison.model) for kind in (AutoTokenizer, AutoModelForCausalLM))
    first, whole = [], []
    for prompt in comparison.euroeval["dbrd"]["prompts"]:
        before = [*tokenizer(prompt).input_ids, *encode_json_start(tokenizer)]
        said = {}
        for label in ("negatief", "positief"):
            tokens = tokenizer(label, add_special_tokens=False).input_ids
            said_TV = model(torch.tensor([before + tokens])).logits[0, len(before) - 1 : -1].log_softmax(dim=-1)
            said[label] = said_TV.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
        first.append(max(said, key=lambda label: said[label][0]))
        whole.append(max(said, key=lambda label: sum(said[label])))
    assert comparison.euroeval["dbrd"]["predictions"] == first
    assert comparison.answers["dbrd"] == whole != first
    labels = [["negative", "positive"].index(doc["label"]) for doc in comparison.tasks["dbrd"].eval_docs]
    for answers, score in (
        (first, comparison.euroeval["dbrd"]["scores"]["test_mcc"] / 100),
        (whole, comparison.scores["dbrd"]["mcc"]),
    ):
        predicted = [["negatief", "positief"].index(answer) for answer in answers]
        assert score == pytest.approx(matthews_corrcoef(labels, predicted), abs=1e-9)


def test_entities_differ_by_the_decoder_and_by_small_letters(comparison: Comparison) -> None:
    """Without its constrained decoder and with tags in capitals, EuroEval's functions give Polder's scores."""
    equal_starts, differences = 0, 0
    for data_set in ENTITIES:
        names, result = comparison.tasks[data_set].config.metadata["entities"], comparison.euroeval[data_set]
        free, scores = result["unconstrained"], comparison.scores[data_set]
        items = [*zip(comparison.tasks[data_set].eval_docs, comparison.answers[data_set], strict=True)]
        assert [tags_from_json_answer(text, doc["tokens"], names) for doc, text in items] == free["predictions"]
        assert len({*map(str, free["predictions"])}) > 1 and free["predictions"] != result["predictions"]
        for metric in ("micro_f1", "micro_f1_no_misc"):
            value = scores[metric.replace("micro", "entity")]
            assert value == pytest.approx(free["scores_of_capitals"][metric], abs=1e-9) and value > 0
            differences += abs(100 * value - free["scores"][f"test_{metric}"]) > 1  # there, rows of `o` are entities
        for (_, text), tags, constrained in zip(items, free["predictions"], result["predictions"], strict=True):
            if text.startswith(f'{{"{next(iter(names))}"'):
                equal_starts += 1
                assert tags == constrained
    assert equal_starts and differences > 1


def test_sari_takes_the_document_as_its_source(comparison: Comparison) -> None:
    """EuroEval hands its metric the whole prompt, with the examples, as the source."""
    result, value = comparison.euroeval["duidelijke-taal"], comparison.scores["duidelijke-taal"]["sari_13a"]
    assert comparison.answers["duidelijke-taal"] == result["predictions"]
    assert value == pytest.approx(result["sari_of_documents"], abs=1e-9)
    texts = zip(result["prompts"], result["predictions"], comparison.tasks["duidelijke-taal"].eval_docs, strict=True)
    of_prompts = [sari_13a(prompt, text, [doc["target_text"]]) for prompt, text, doc in texts]
    assert mean(of_prompts) == pytest.approx(result["scores"]["test_sari"], abs=1e-9) != value


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
