"""Few-shot examples come from their own file, and never from the items."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from pipeline.core.errors import InputError
from pipeline.evaluate.settings import Suite
from pipeline.evaluate.task_file_reader import list_item_files, list_suite_files
from tests.evaluate.test_suites import evaluate

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

TASK = """task: simpler
dataset_path: json
dataset_kwargs: {data_files: {test: simpler.jsonl, fewshot: shots.jsonl}}
output_type: generate_until
doc_to_text: "{{hard}}"
doc_to_target: "{{easy}}"
num_fewshot: 2
fewshot_config: {sampler: first_n}
generation_kwargs: {until: ["\\n"], do_sample: false, max_gen_toks: 16}
metric_list: [{metric: chrf, aggregation: chrf, higher_is_better: true}]
"""
ITEMS = [{"hard": f"Verboden een {word} te voederen.", "easy": f"Voer de {word} niet."} for word in ("kat", "mus")]
SHOTS = [{"hard": f"Verboden te {word}.", "easy": f"Niet {word}."} for word in ("roken", "eten")]


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "simpler.yaml").write_text(TASK, encoding="utf-8")
    for name, rows in (("simpler", ITEMS), ("shots", SHOTS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return Suite(name="own", language="nl", folder=str(folder))


def test_examples_are_read_from_their_own_file(milestone: Path, suite: Suite, tmp_path: Path) -> None:
    prompts: list[str] = []

    def noted(_: object, requests: list[Instance]) -> list[str]:
        prompts.extend(request.args[0] for request in requests)
        return ["" for _ in requests]

    with mock.patch("lm_eval.models.huggingface.HFLM.generate_until", noted):
        evaluate(milestone, tmp_path / "r.json", suite)
    shown = "Verboden te roken. Niet roken.\n\nVerboden te eten. Niet eten.\n\n"
    assert sorted(prompts) == sorted(f"{shown}{one['hard']}" for one in ITEMS)
    shots = Path(str(suite.folder)) / "shots.jsonl"
    assert shots in list_suite_files(suite), "the rule reads it: a changed file reruns it"
    assert ("simpler: examples", shots) in [(f.task, f.path) for f in list_item_files(suite)], (
        "the corpus must not contain it"
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_fewshot: 2", "num_fewshot: 3", "num_fewshot: 3, and shots.jsonl has 2 examples; write more of them"),
        (", fewshot: shots.jsonl", "", "num_fewshot: 2 would take its examples from the items: name a file of them"),
        ("fewshot: shots.jsonl", "fewshot: [shots.jsonl]", "write the name of one file"),
        ("fewshot: shots.jsonl", "fewshot: simpler.jsonl", "simpler.jsonl, line 1, is one of the items"),
        ("fewshot: shots.jsonl", "train: shots.jsonl", "and also `fewshot: NAME.jsonl` for examples"),
    ],
)
def test_invalid_examples_are_reported(
    milestone: Path, suite: Suite, tmp_path: Path, old: str, new: str, message: str
) -> None:
    file = Path(str(suite.folder)) / "simpler.yaml"
    file.write_text(TASK.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        evaluate(milestone, tmp_path / "r.json", suite)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_missing_examples_file_is_reported(suite: Suite) -> None:
    (Path(str(suite.folder)) / "shots.jsonl").unlink()
    with pytest.raises(InputError, match=r"simpler\.yaml: its data file shots\.jsonl is in neither"):
        list_suite_files(suite)
