"""Bits per byte of given texts: a metric for any model, compared with n-gram baselines."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.config.configuration import parse_configuration
from pipeline.config.evaluation_item_paths import list_decontamination_item_files
from pipeline.core.errors import InputError
from pipeline.evaluate import baselines, suites
from pipeline.evaluate.bits_per_byte_tasks import make_text_task
from pipeline.evaluate.item_results import TaskItem
from pipeline.evaluate.settings import BaselineSettings, Evaluation, SuitesSettings, TextSettings
from pipeline.evaluate.task_file_reader import ItemFile, list_item_files, list_suite_files
from pipeline.evaluate.trivial_baseline_tests import (
    add_verdicts,
    compare_bits_with_baselines,
    find_model_constant_answer,
)
from tests.evaluate.test_suites import log_likelihoods

TEXTS = [
    {"text": f"De {animal} loopt over de dijk en ziet {n} poëtische schepen.", "genre": "tale" if n % 2 else "law"}
    for n, animal in enumerate(["hond", "kat", "koe", "haas", "reiger", "otter", "das", "bever", "mol", "vos"])
]


@pytest.fixture
def evaluation(tmp_path: Path) -> Evaluation:
    with gzip.open(tmp_path / "tales.jsonl.gz", "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in TEXTS)
    text = {"language": "nl", "path": "{data}/tales.jsonl.gz"}
    return Evaluation.model_validate({"suites": [], "texts": {"tales": text}})


def measured(evaluation: Evaluation, milestone: Path, folder: Path, others: list[Path]) -> list[dict[str, Any]]:
    asked = evaluation.resolve_suites(str(folder))
    suites.run(
        SuitesSettings.model_validate(
            {"model": "base", "step": 7, "suites": [suite.model_dump() for suite in asked]}, extra="ignore"
        ),
        milestone=milestone,
        tasks=[file for suite in asked for file in list_suite_files(suite)],
        index=milestone / "tokens/index.json",
        baselines=others,
        results=folder / "results.json",
        answers=folder / "items.parquet",
    )
    result: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())["tasks"]
    return result


def test_bits_per_byte_equal_a_reference_forward_pass(evaluation: Evaluation, milestone: Path, tmp_path: Path) -> None:
    (row,) = measured(evaluation, milestone, tmp_path, [])
    nats = log_likelihoods(milestone, [row["text"] for row in TEXTS])
    sizes = [len(row["text"].encode()) for row in TEXTS]
    assert (row["suite"], row["task"], row["language"], row["metric"]) == ("texts", "tales", "nl", "bits_per_byte")
    assert row["value"] == pytest.approx(-sum(nats) / math.log(2) / sum(sizes), rel=1e-5)
    assert row["low"] < row["value"] < row["high"] and not row["higher_is_better"]
    for part in row["parts"]:
        own = [n for n, text in enumerate(TEXTS) if text["genre"] == part["part"]]
        expected = -sum(nats[n] for n in own) / math.log(2) / sum(sizes[n] for n in own)
        assert (part["examples"], part["value"]) == (5, pytest.approx(expected, rel=1e-5))
    assert [part["part"] for part in row["parts"]] == ["law", "tale"]
    answers = pq.read_table(tmp_path / "items.parquet").to_pylist()
    assert [answer["log_probabilities"] for answer in answers] == [[pytest.approx(one, abs=1e-3)] for one in nats]
    # The same counts by hand: a token of this tokenizer is a byte, counted once more than it occurs in the text.
    assert set(row["baselines"]) == {"unigram", "bigram"}
    unigram = [answer["unigram_log_probabilities"][0] for answer in answers]
    assert row["baselines"]["unigram"] == pytest.approx(-sum(unigram) / math.log(2) / sum(sizes))
    assert row["verdict"] == "not better", "random weights are worse than counting"


def test_other_model_is_a_baseline_on_the_same_texts(evaluation: Evaluation, milestone: Path, tmp_path: Path) -> None:
    asked = evaluation.resolve_suites(str(tmp_path))
    (tmp_path / "itself").mkdir()
    files = [tmp_path / "itself" / name for name in ("items.parquet", "results.json")]
    settings = {"name": "itself", "suites": [suite.model_dump() for suite in asked]}
    baselines.run(
        BaselineSettings.model_validate(settings, extra="ignore"),
        model=sorted((milestone / "huggingface").iterdir()),
        tasks=[file for suite in asked for file in list_suite_files(suite)],
        answers=files[0],
        results=files[1],
    )
    (row,) = measured(evaluation, milestone, tmp_path, files)
    assert row["baselines"]["itself"] == pytest.approx(row["value"]) and row["p_value"] == 1.0


def test_text_with_a_name_of_two_files_is_refused(tmp_path: Path) -> None:
    files = [tmp_path / folder / "tales.jsonl" for folder in ("a", "b")]
    with pytest.raises(
        InputError, match=r"evaluation\.texts\.tales: its file tales\.jsonl may be any of .*/a/.*, .*/b/"
    ):
        make_text_task("tales", TextSettings(language="nl", path="tales.jsonl"), files)


def rolling(number: int, nats: float) -> TaskItem:
    return TaskItem(number, str(number), (), (("", "x" * 40),), frozenset(), (nats,), {})


def test_better_verdict_in_bits_is_a_paired_test_over_texts() -> None:
    random = np.random.default_rng(3)
    hard = random.uniform(40, 90, 60)  # nats of very different texts
    better = [rolling(n, -each + 2 + random.normal(0, 2)) for n, each in enumerate(hard)]
    row = compare_bits_with_baselines(better, {"unigram": -hard, "worse": -hard - 1}) | {
        "constant_answer": find_model_constant_answer(better)
    }
    add_verdicts([row])
    assert row["hardest_baseline"] == "unigram" and row["verdict"] == "better"
    assert row["baselines"]["unigram"] == pytest.approx(hard.sum() / math.log(2) / 2400)
    false_alarms = 0
    for _ in range(1000):
        same = [rolling(n, -each + random.normal(0, 2)) for n, each in enumerate(hard[:20])]
        result = compare_bits_with_baselines(same, {"unigram": -hard[:20]}) | {"constant_answer": None}
        add_verdicts([result])
        false_alarms += result["verdict"] == "better"
    assert false_alarms <= 65, "5 of 100, and the allowance for 1,000 rounds"


def test_evaluation_text_is_decontaminated(evaluation: Evaluation, tmp_path: Path) -> None:
    (suite,) = evaluation.resolve_suites(str(tmp_path))
    assert list_item_files(suite) == [ItemFile("tales", tmp_path / "tales.jsonl.gz")]
    raw = yaml.safe_load((Path(__file__).parents[2] / "config/micro.yaml").read_text())
    del raw["corpus"]["main"]["decontamination"]["suites"]
    config = parse_configuration(
        {**raw, "evaluation": evaluation.model_dump(exclude_unset=True), "data": str(tmp_path)}
    )
    assert ItemFile("tales", tmp_path / "tales.jsonl.gz") in list_decontamination_item_files(config, "main")


def test_invalid_settings_are_reported(evaluation: Evaluation, milestone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"evaluation\.texts\.tales: its path .* add --config data=FOLDER"):
        evaluation.resolve_suites(None)
    with pytest.raises(InputError, match=r"evaluation\.texts\.tales: there is no file .*tales\.jsonl\.gz"):
        list_suite_files(evaluation.resolve_suites(str(tmp_path / "nowhere"))[0])
    (tmp_path / "tales.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n{"text": " "}\n'))
    with pytest.raises(InputError, match=r"tales\.jsonl\.gz, line 2: the field text holds no text"):
        measured(evaluation, milestone, tmp_path, [])
    with pytest.raises(ValueError, match=r"'texts' are what evaluation\.texts names"):
        Evaluation.model_validate({"suites": [{"name": "texts", "language": "nl", "folder": "x"}]})
