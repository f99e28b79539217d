"""A score stands beside those of other models, which are asked the same: untrained ones, and folders of weights."""

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
from pipeline.evaluate.baseline_answers import read_baseline_answers
from pipeline.evaluate.settings import BaselineSettings, Suite, SuitesSettings
from pipeline.evaluate.task_file_reader import list_suite_files
from pipeline.evaluate.task_scores import _score_with_interval
from pipeline.model.huggingface import load_pretrained, save_pretrained
from pipeline.model.networks import initial_state
from pipeline.workflow.dag import Dag
from pipeline.workflow.steps.evaluate import baseline_answer_files, baseline_files

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
    found = [folder / name / file for file in ("items.parquet", "results.json")]
    found[0].parent.mkdir(parents=True)
    baselines.run(settings, model=model, tasks=list_suite_files(suite), answers=found[0], results=found[1])
    return found


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


def test_an_untrained_model_has_the_weights_that_training_begins_with(milestone: Path, suite: Suite, tmp_path: Path):
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
    assert not pq.read_table(files[0]).equals(pq.read_table(other[0])), "another seed draws others"


def test_a_model_is_compared_with_each_on_the_same_items(milestone: Path, suite: Suite, tmp_path: Path):
    files = ask(tmp_path, "itself", suite, sorted((milestone / "huggingface").iterdir()))
    files += ask(tmp_path, "untrained-base", suite, [milestone], 7)
    rows = judged(milestone, tmp_path, suite, files)
    acc = rows["pairs", "acc"]
    assert {"untrained", "itself"} < set(acc["baselines"]) and acc["baselines"]["itself"] == acc["value"]
    assert acc["p_value"] == 1.0 and acc["verdict"] == "not better", "nobody is better than himself"
    assert acc["clusters"] == 8 and acc["low"] < acc["high"]
    bits = rows["rolling", "bits_per_byte"]
    assert set(bits["baselines"]) == {"untrained", "itself", "unigram", "bigram"} and bits["verdict"] == "not better"
    assert bits["baselines"]["itself"] == pytest.approx(bits["value"]) != bits["baselines"]["untrained"]
    assert bits["low"] < bits["value"] < bits["high"]
    slor = rows["pairs", "acc_slor"]
    assert slor["baselines"]["unigram"] == 0.5, "of SLOR nothing is left of it"
    assert slor["baselines"]["itself"] == slor["value"] and "untrained" in slor["baselines"]


def test_items_that_a_baseline_did_not_answer_count_for_neither(milestone: Path, suite: Suite, tmp_path: Path):
    files = ask(tmp_path, "itself", suite, sorted((milestone / "huggingface").iterdir()))
    table = pq.read_table(files[0])
    pairs = [row for row in table.to_pylist() if row["task"] == "pairs"]
    half = table.filter([row["task"] == "pairs" and row["item"] < 4 for row in table.to_pylist()])
    pq.write_table(half, files[0])
    found = judged(milestone, tmp_path, suite, files)["pairs", "acc"]
    assert found["baselines"]["itself"] == np.mean([row["acc"] for row in pairs if row["item"] < 4])
    pq.write_table(table.filter([False] * len(table)), files[0])
    assert "itself" not in judged(milestone, tmp_path, suite, files)["pairs", "acc"]["baselines"]


def test_a_score_with_an_aim_is_compared_with_nobody(milestone: Path, suite: Suite, tmp_path: Path):
    (Path(str(suite.folder)) / "pairs.yaml").write_text(TASK.replace("cluster: good", "aim: 0.5"))
    files = ask(tmp_path, "itself", suite, sorted((milestone / "huggingface").iterdir()))
    rows = judged(milestone, tmp_path, suite, files)
    row = rows["pairs", "acc"]
    assert row["aim"] == 0.5 and row["baselines"] is row["verdict"] is row["p_value"] is None
    assert ("pairs", "acc_slor") not in rows


def test_a_score_that_is_no_number_is_none() -> None:
    found = _score_with_interval([], {}, np.nanmean, float("nan"), None)
    assert found["value"] is found["low"] is found["high"] is None


def test_slor_takes_off_what_the_frequency_of_the_tokens_gives(milestone: Path, suite: Suite, tmp_path: Path):
    found = judged(milestone, tmp_path, suite, [])["pairs", "acc_slor"]
    rows = [row for row in pq.read_table(tmp_path / "items.parquet").to_pylist() if row["task"] == "pairs"]
    by_hand = []
    for row in rows:
        columns = (row["log_probabilities"], row["unigram_log_probabilities"], row["tokens"])
        bad, good = ((model - unigram) / tokens for model, unigram, tokens in zip(*columns, strict=True))
        by_hand.append(good > bad)
        # One token is a byte of this tokenizer.
        assert row["tokens"] == [len(PAIRS[row["item"]][key].encode()) for key in ("bad", "good")]
    assert [row["acc_slor"] for row in rows] == by_hand and found["value"] == np.mean(by_hand)


def test_broken_files_of_a_baseline_are_named(milestone: Path, suite: Suite, tmp_path: Path):
    files = ask(tmp_path, "itself", suite, sorted((milestone / "huggingface").iterdir()))
    files[1].write_text("{}")
    with pytest.raises(InputError, match=r"itself/results\.json has no scores"):
        read_baseline_answers(files)
    files[0].write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"itself/items\.parquet is no item table"):
        read_baseline_answers(files)


def test_a_configuration_names_folders_that_are_there(tmp_path: Path):
    def config(**evaluation: Any) -> Any:
        return parse_configuration({**yaml.safe_load(MICRO.read_text()), "evaluation": evaluation})

    assert config(checkpoints="final").baselines() == {"untrained-base": "base"}
    assert config(untrained=False).baselines() == {}
    named = config(untrained=False, baselines={"peer": str(tmp_path)})
    assert named.baselines() == {"peer": None}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(InputError, match=r"evaluation\.baselines\.peer: .* needs config\.json, a tok"):
        named.baseline_files("peer")
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    assert [Path(file).name for file in named.baseline_files("peer")] == [
        "config.json",
        "model.safetensors",
        "pytorch_model.bin",
    ]
    with pytest.raises(InputError, match="'untrained-base' is a model before its first step"):
        config(baselines={"untrained-base": str(tmp_path)})


def test_a_model_is_compared_with_its_own_untrained_one_and_with_each_folder(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
    raw = yaml.safe_load(MICRO.read_text())
    raw["models"]["other"] = raw["models"]["base"]
    dag = Dag(parse_configuration({**raw, "evaluation": {"baselines": {"peer": str(tmp_path)}}}))
    assert [Path(file).parent.name for file in baseline_answer_files(dag, {"model": "other"})] == [
        *["untrained-other"] * 2,
        *["peer"] * 2,
    ]
    assert baseline_files(dag, {"baseline": "untrained-other"}) == ["results/micro/models/other/milestones/4"]
    assert baseline_files(dag, {"baseline": "peer"}) == [
        str(tmp_path / name) for name in ("config.json", "model.safetensors")
    ]
