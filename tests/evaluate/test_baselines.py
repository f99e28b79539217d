"""A score is compared with those of other models under the same evaluation: untrained ones, and folders of weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.config.configuration import parse_configuration
from pipeline.core.errors import InputError
from pipeline.evaluate import baselines, suites
from pipeline.evaluate.checkpoint_and_baseline_answers import read_baseline_answers
from pipeline.evaluate.lm_eval_scoring import _score_with_interval
from pipeline.evaluate.settings import BaselineSettings, Suite, SuitesSettings
from pipeline.evaluate.task_file_reader import list_suite_files
from pipeline.model.huggingface import load_pretrained, save_pretrained
from pipeline.model.networks import initial_state
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.steps.evaluate import baseline_answer_files, baseline_model_files

pytestmark = pytest.mark.slow

MICRO = Path(__file__).parents[2] / "config" / "micro.yaml"
PAIRS = [{"good": f"Zij loopt {n} meter.", "bad": f"Zij lopen loopt {n} meter."} for n in range(8)]
TASK = """task: pairs
dataset_path: json
dataset_kwargs: {data_files: {test: pairs.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: ""
doc_to_choice: "{{[bad, good]}}"
doc_to_target: 1
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
metadata: {cluster: good}
"""
ROLLING = """task: rolling
dataset_path: json
dataset_kwargs: {data_files: {test: pairs.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{good}}"
metric_list: [{metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}]
"""


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    folder = tmp_path / "suite"
    folder.mkdir()
    (folder / "pairs.yaml").write_text(TASK)
    (folder / "rolling.yaml").write_text(ROLLING)
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PAIRS))
    return Suite(name="own", language="nl", folder=str(folder))


def ask(folder: Path, name: str, suite: Suite, model: list[Path], seed: int | None = None) -> list[Path]:
    settings = BaselineSettings.model_validate(
        {"name": name, "suites": [suite.model_dump()], "untrained_seed": seed}, extra="ignore"
    )
    results = [folder / name / file for file in ("items.parquet", "results.json")]
    results[0].parent.mkdir(parents=True)
    baselines.run(settings, model=model, tasks=list_suite_files(suite), answers=results[0], results=results[1])
    return results


def judged(milestone: Path, folder: Path, suite: Suite, others: list[Path]) -> dict[tuple[str, str], dict[str, Any]]:
    settings = {"model": "base", "step": 7, "suites": [suite.model_dump()]}
    suites.run(
        SuitesSettings.model_validate(settings, extra="ignore"),
        milestone=milestone,
        tasks=list_suite_files(suite),
        index=milestone / "tokens/index.json",
        baselines=others,
        results=folder / "results.json",
        answers=folder / "items.parquet",
    )
    rows = json.loads((folder / "results.json").read_text())["tasks"]
    return {(row["task"], row["metric"]): row for row in rows}


def test_untrained_baseline_has_the_initial_weights_of_training(milestone: Path, suite: Suite, tmp_path: Path):
    files = ask(tmp_path, "untrained-base", suite, [milestone], 7)
    architecture, vocabulary, weights = load_pretrained(milestone / "huggingface")
    untrained = tmp_path / "untrained"
    tokenizer = {
        key: milestone / "huggingface" / f"{name}.json"
        for key, name in (("tokenizer", "tokenizer"), ("tokenizer_configuration", "tokenizer_config"))
    }
    state = initial_state(architecture, vocabulary, 7)
    save_pretrained(state, architecture, vocabulary, 512, folder=untrained, **tokenizer)
    assert not np.allclose(state["embedding.weight"], weights["embedding.weight"])
    same = ask(tmp_path, "same", suite, sorted(untrained.iterdir()))
    assert pq.read_table(files[0]).equals(pq.read_table(same[0]))
    other = ask(tmp_path, "untrained-other", suite, [milestone], 8)
    assert not pq.read_table(files[0]).equals(pq.read_table(other[0])), "another seed gives other weights"


def test_model_and_baselines_are_compared_on_the_same_items(milestone: Path, suite: Suite, tmp_path: Path):
    files = ask(tmp_path, "itself", suite, sorted((milestone / "huggingface").iterdir()))
    files += ask(tmp_path, "untrained-base", suite, [milestone], 7)
    rows = judged(milestone, tmp_path, suite, files)
    acc = rows["pairs", "acc"]
    assert {"untrained", "itself"} < set(acc["baselines"]) and acc["baselines"]["itself"] == acc["value"]
    assert acc["p_value"] == 1.0 and acc["verdict"] == "not better", "no model is better than itself"
    assert acc["clusters"] == 8 and acc["low"] < acc["high"]
    bits = rows["rolling", "bits_per_byte"]
    assert set(bits["baselines"]) == {"untrained", "itself", "unigram", "bigram"} and bits["verdict"] == "not better"
    assert bits["baselines"]["itself"] == pytest.approx(bits["value"]) != bits["baselines"]["untrained"]
    assert bits["low"] < bits["value"] < bits["high"]
    slor = rows["pairs", "acc_slor"]
    assert slor["baselines"]["unigram"] == 0.5, "SLOR leaves nothing of it"
    assert slor["baselines"]["itself"] == slor["value"] and "untrained" in slor["baselines"]


def test_items_without_a_baseline_answer_are_excluded(milestone: Path, suite: Suite, tmp_path: Path):
    files = ask(tmp_path, "itself", suite, sorted((milestone / "huggingface").iterdir()))
    table = pq.read_table(files[0])
    pairs = [row for row in table.to_pylist() if row["task"] == "pairs"]
    half = table.filter([row["task"] == "pairs" and row["item"] < 4 for row in table.to_pylist()])
    pq.write_table(half, files[0])
    result = judged(milestone, tmp_path, suite, files)["pairs", "acc"]
    assert result["baselines"]["itself"] == np.mean([row["acc"] for row in pairs if row["item"] < 4])
    pq.write_table(table.filter([False] * len(table)), files[0])
    assert "itself" not in judged(milestone, tmp_path, suite, files)["pairs", "acc"]["baselines"]


def test_score_with_a_target_is_not_compared(milestone: Path, suite: Suite, tmp_path: Path):
    (Path(str(suite.folder)) / "pairs.yaml").write_text(TASK.replace("cluster: good", "aim: 0.5"))
    files = ask(tmp_path, "itself", suite, sorted((milestone / "huggingface").iterdir()))
    rows = judged(milestone, tmp_path, suite, files)
    row = rows["pairs", "acc"]
    assert row["aim"] == 0.5 and row["baselines"] is row["verdict"] is row["p_value"] is None
    assert ("pairs", "acc_slor") not in rows


def test_non_finite_score_is_none() -> None:
    result = _score_with_interval([], {}, np.nanmean, float("nan"), None)
    assert result["value"] is result["low"] is result["high"] is None


def test_slor_subtracts_the_unigram_log_probability(milestone: Path, suite: Suite, tmp_path: Path):
    result = judged(milestone, tmp_path, suite, [])["pairs", "acc_slor"]
    rows = [row for row in pq.read_table(tmp_path / "items.parquet").to_pylist() if row["task"] == "pairs"]
    by_hand = []
    for row in rows:
        columns = (row["log_probabilities"], row["unigram_log_probabilities"], row["tokens"])
        bad, good = ((model - unigram) / tokens for model, unigram, tokens in zip(*columns, strict=True))
        by_hand.append(good > bad)
        # One token is a byte of this tokenizer.
        assert row["tokens"] == [len(PAIRS[row["item"]][key].encode()) for key in ("bad", "good")]
    assert [row["acc_slor"] for row in rows] == by_hand and result["value"] == np.mean(by_hand)


def test_invalid_baseline_files_are_named(milestone: Path, suite: Suite, tmp_path: Path):
    files = ask(tmp_path, "itself", suite, sorted((milestone / "huggingface").iterdir()))
    files[1].write_text("{}")
    with pytest.raises(InputError, match=r"itself/results\.json has no scores"):
        read_baseline_answers(files)
    files[0].write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"itself/items\.parquet is no item table"):
        read_baseline_answers(files)


def test_configured_baseline_folders_must_exist(tmp_path: Path):
    def config(**evaluation: Any) -> Any:
        return parse_configuration({**yaml.safe_load(MICRO.read_text()), "evaluation": evaluation})

    assert config(checkpoints="final").baselines() == {"untrained-base": "base"}
    assert config(untrained=False).baselines() == {}
    named = config(untrained=False, baselines={"peer": str(tmp_path)})
    assert named.baselines() == {"peer": None}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(InputError, match=r"evaluation\.baselines\.peer: .* needs config\.json, a tok"):
        named.baseline_model_files("peer")
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    assert [Path(file).name for file in named.baseline_model_files("peer")] == [
        "config.json",
        "model.safetensors",
        "pytorch_model.bin",
    ]
    with pytest.raises(InputError, match="'untrained-base' is a model before its first step"):
        config(baselines={"untrained-base": str(tmp_path)})


def test_model_is_compared_with_its_untrained_version_and_each_folder(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
    raw = yaml.safe_load(MICRO.read_text())
    raw["models"]["other"] = raw["models"]["base"]
    dag = Dag(parse_configuration({**raw, "evaluation": {"baselines": {"peer": str(tmp_path)}}}))
    assert [Path(file).parent.name for file in baseline_answer_files(dag, {"model": "other"})] == [
        *["untrained-other"] * 2,
        *["peer"] * 2,
    ]
    assert baseline_model_files(dag, {"baseline": "untrained-other"}) == ["results/micro/models/other/milestones/4"]
    assert baseline_model_files(dag, {"baseline": "peer"}) == [
        str(tmp_path / name) for name in ("config.json", "model.safetensors")
    ]
