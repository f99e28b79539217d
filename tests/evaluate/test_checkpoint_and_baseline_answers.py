"""A generating model is compared with rules, and is better only if it beats each of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import InputError
from pipeline.evaluate import baselines
from pipeline.evaluate.item_results import read_item_answers
from pipeline.evaluate.settings import KNOWN_SUITES, BaselineSettings, Suite
from pipeline.evaluate.task_file_reader import list_suite_files
from tests.evaluate.test_suites import evaluate
from tests.evaluate.test_written_answers import reading

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

Row = dict[str, Any]
GENERATE = "lm_eval.models.huggingface.HFLM.generate_until"
SIMPLER = """task: simpler
dataset_path: json
dataset_kwargs: {data_files: {test: simpler.jsonl}}
output_type: generate_until
doc_to_text: "{{source}}"
doc_to_target: "{{references[0]}}"
generation_kwargs: {until: ["\\n"], do_sample: false, max_gen_toks: 16}
metric_list:
  - {metric: sari, aggregation: mean, higher_is_better: true}
  - {metric: chrf, aggregation: chrf, higher_is_better: true}
  - {metric: lix, aggregation: nanmean, higher_is_better: false}
metadata: {trivial: {copy: "{{source}}", another's: "{{next.references[0]}}"}}
"""
WORDS = ("bij", "kat", "hond", "koe", "mus", "vos", "das", "eend", "haan", "kip")
ITEMS = [
    {
        "source": f"Het is niet toegestaan een {word} te voederen.",
        "references": [f"Voer de {word} niet.", f"Geen {word}!"],
    }
    for word in WORDS
]


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "simpler.yaml").write_text(SIMPLER, encoding="utf-8")
    (folder / "simpler.jsonl").write_text("".join(json.dumps(one) + "\n" for one in ITEMS), encoding="utf-8")
    return Suite(name="own", language="nl", folder=str(folder))


def evaluate_with(
    milestone: Path, folder: Path, suite: Suite, write: Callable[[Row], str], **settings: Any
) -> dict[str, Row]:
    """Return the rows by metric of a model that writes the result of a function of the item."""

    def written(_: object, requests: list[Instance]) -> list[str]:
        return [write(request.doc) for request in requests]

    with mock.patch(GENERATE, written):
        return {row["metric"]: row for row in evaluate(milestone, folder / "r.json", suite, **settings)["tasks"]}


def test_rule_based_baseline_scores_as_a_model_that_follows_the_rule(
    milestone: Path, suite: Suite, tmp_path: Path
) -> None:
    copied = evaluate_with(milestone, tmp_path, suite, lambda item: str(item["source"]))
    following = {one["source"]: after for one, after in zip(ITEMS, ITEMS[1:] + ITEMS[:1], strict=True)}
    others = evaluate_with(milestone, tmp_path, suite, lambda item: str(following[item["source"]]["references"][0]))
    for metric in ("sari", "chrf", "lix"):
        assert copied[metric]["baselines"]["copy"] == pytest.approx(copied[metric]["value"])
        assert others[metric]["baselines"] == copied[metric]["baselines"]
        assert others[metric]["baselines"]["another's"] == pytest.approx(others[metric]["value"])
    for metric in ("sari", "chrf"):
        assert copied[metric]["p_value"] == 1.0 and copied[metric]["verdict"] == "not better"


def test_better_verdict_requires_beating_every_rule(milestone: Path, suite: Suite, tmp_path: Path) -> None:
    right = evaluate_with(milestone, tmp_path, suite, lambda item: str(item["references"][0]))
    assert right["sari"]["verdict"] == "better" and right["sari"]["low"] is right["sari"]["high"] is None, "all alike"
    assert right["chrf"]["verdict"] == "better" and right["chrf"]["hardest_baseline"] in {"copy", "another's"}
    answers = pq.read_table(tmp_path / "r.parquet").to_pylist()
    assert right["sari"]["value"] == pytest.approx(sum(answer["sari"] for answer in answers) / len(answers))
    junk = evaluate_with(milestone, tmp_path, suite, lambda item: f"kwx de {item['source'][-4:]}")
    assert junk["sari"]["verdict"] == junk["chrf"]["verdict"] == "not better"


def test_readability_is_shown_with_the_reference_and_has_no_verdict(
    milestone: Path, suite: Suite, tmp_path: Path
) -> None:
    """An answer of a few short words is easier than a correct one, and one without words has no readability."""
    short = evaluate_with(
        milestone, tmp_path, suite, lambda item: "Ja." if item["source"] == ITEMS[0]["source"] else ""
    )
    row = short["lix"]
    assert row["value"] == 1 and row["verdict"] is None and row["value"] < row["baselines"]["reference"]
    assert row["baselines"]["reference"] < row["baselines"]["copy"]
    assert row["higher_is_better"] is row["hardest_baseline"] is None, "no direction is better"
    assert (row["examples"], row["examples_without_value"]) == (1, len(ITEMS) - 1) and row["low"] is row["high"] is None
    assert (short["sari"]["examples"], short["sari"]["examples_without_value"]) == (len(ITEMS), 0)
    assert short["sari"]["higher_is_better"] is True and short["chrf"]["examples"] == len(ITEMS)
    assert "reference" not in short["sari"]["baselines"], "a correct reference need not be beaten"
    none = evaluate_with(milestone, tmp_path, suite, lambda _: "")["lix"]
    assert none["value"] is none["low"] is None and none["examples"] == 0


def test_readability_score_has_a_finite_interval(milestone: Path, suite: Suite, tmp_path: Path) -> None:
    some = evaluate_with(
        milestone, tmp_path, suite, lambda item: str(item["source"]) if "vos" in item["source"] else "Zo. Ja?"
    )
    row = some["lix"]
    assert row["low"] < row["value"] < row["high"] and math.isfinite(row["high"])


def test_another_model_is_a_baseline_per_item(milestone: Path, suite: Suite, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    files = [tmp_path / "other" / name for name in ("items.parquet", "results.json")]
    settings = BaselineSettings.model_validate({"name": "other", "suites": [suite.model_dump()]}, extra="ignore")
    model = sorted((milestone / "huggingface").iterdir())
    with mock.patch(GENERATE, lambda _, requests: [request.doc["references"][1] for request in requests]):
        baselines.run(settings, model=model, tasks=list_suite_files(suite), answers=files[0], results=files[1])
    answered = read_item_answers(files[0])
    assert answered.right == {} and answered.graded.keys() == {"sari", "lix"}, "numbers are not binary"
    assert answered.statistics.keys() == {"chrf"}
    rows = evaluate_with(milestone, tmp_path, suite, lambda item: str(item["references"][1]), baselines=files)
    same = rows["sari"]
    assert same["baselines"]["other"] == pytest.approx(same["value"]) and same["p_value"] == 1.0
    assert same["hardest_baseline"] == "other" and same["verdict"] == "not better"
    assert rows["chrf"]["baselines"]["other"] == pytest.approx(rows["chrf"]["value"])
    assert rows["chrf"]["p_value"] == 1.0 and rows["chrf"]["verdict"] == "not better"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("{{source}}', ", "{{bron}}', "), "metadata.trivial does not fit its data"),
        (("{{source}}', ", "{{source.__class__.__mro__}}', "), "metadata.trivial does not fit its data"),
        (("{{source}}', ", "{{', "), "metadata.trivial does not fit its data"),
        (("metric: lix", "metric: acc"), "the metrics acc and sari exclude each other"),
    ],
)
def test_invalid_task_error_has_its_reason(
    milestone: Path, suite: Suite, tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    file = Path(str(suite.folder)) / "simpler.yaml"
    file.write_text(SIMPLER.replace('copy: "{{source}}", ', "copy: '{{source}}', ").replace(*change), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        evaluate(milestone, tmp_path / "r.json", suite)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_item_without_references_is_named(milestone: Path, suite: Suite, tmp_path: Path) -> None:
    wrong = [*ITEMS[:2], {"source": "a", "references": []}]
    data = Path(str(suite.folder)) / "simpler.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in wrong), encoding="utf-8")
    with pytest.raises(InputError, match=r"line 3 of simpler\.jsonl: write `references`, a list of texts"):
        evaluate(milestone, tmp_path / "r.json", suite)


NEW = (
    *("polder_nl_eenvoudig", "polder_en_simple", "polder_nl_samenvatting", "polder_en_summary"),
    *("polder_nl_bronnen", "polder_en_sources"),
)


@pytest.mark.parametrize("junk", ["", "ÿþ x. e", "De kat, het huis en een boom van de straat."])
def test_constant_writer_is_never_better(milestone: Path, tmp_path: Path, junk: str) -> None:
    suite = KNOWN_SUITES["use_cases"].model_copy(update={"limit": 8})
    with mock.patch(GENERATE, lambda _, requests: [junk for _ in requests]):
        rows = evaluate(reading(milestone, 8192, tmp_path), tmp_path / "r.json", suite)["tasks"]
    results = [row for row in rows if row["task"] in NEW]
    assert {row["task"] for row in results} == {*NEW}
    assert all(row["verdict"] in (None, "not better") and row["baselines"] for row in results)
