"""NFC and NFD of a text score equally: generated text, references, choices, and filter patterns."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.unicode_normalization import normalize_nfc, normalize_nfc_recursively
from pipeline.evaluate import text_metrics
from pipeline.evaluate.item_results import TaskItem, _find_right_choices
from pipeline.evaluate.settings import Suite
from pipeline.evaluate.simplification_metrics import count_dutch_syllables, count_english_syllables, lix
from pipeline.evaluate.text_metrics import score_text
from pipeline.evaluate.trivial_baseline_tests import (
    find_model_constant_answer,
    majority_credits,
    normalize_choice_scores_by_length,
)
from tests.evaluate.test_checkpoint_and_baseline_answers import evaluate_with

FORMS = ("NFC", "NFD")
WRITES = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: items.jsonl}}}}
output_type: generate_until
doc_to_text: "{{{{source}}}}"
doc_to_target: "{{{{references[0]}}}}"
generation_kwargs: {{until: ["\\n"], do_sample: false, max_gen_toks: 16}}
metric_list:
"""
OWN_METRICS = """  - {metric: sari, aggregation: mean, higher_is_better: true}
  - {metric: rouge_l, aggregation: mean, higher_is_better: true}
  - {metric: flesch_douma, aggregation: nanmean, higher_is_better: true}
  - {metric: chrf, aggregation: chrf, higher_is_better: true}
  - {metric: bleu, aggregation: bleu, higher_is_better: true}
  - {metric: ter, aggregation: ter, higher_is_better: false}
  - {metric: squad_em, aggregation: mean, higher_is_better: true}
  - {metric: squad_f1, aggregation: mean, higher_is_better: true}
  - {metric: chrf3pp, aggregation: mean, higher_is_better: true}
  - {metric: sari_13a, aggregation: mean, higher_is_better: true}
metadata: {trivial: {copy: "{{source}}"}, fields: {answers: references}}
"""
SHIPPED = """  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    ignore_case: true
    regexes_to_ignore: ["[ÿï]"]
filter_list:
  - name: answer
    filter:
      - {function: regex, regex_pattern: "cliënt: (.+)"}
      - {function: take_first}
  - name: whole
    filter: [{function: take_first}]
"""
WORDS = ("coöperatie", "reünie", "één café", "geüpdatet", "façade", "Curaçao", "crèche", "ideeën", "knieën", "zeeën")
ITEMS = [
    {"source": f"Dit is onze {word}, mevrouw.", "references": [f"Cliënt: {word}", f"onze {word}"]} for word in WORDS
]


def of_form(form: Any, value: Any) -> Any:
    """Return a value with all its texts in a form of Unicode."""
    return json.loads(unicodedata.normalize(form, json.dumps(value, ensure_ascii=False)))


def answer(item: dict[str, Any]) -> str:
    """Return a correct answer for most items, another one for the rest, by a word of the item."""
    word = item["references"][0].split(": ", 1)[1]
    return (
        f"Een antwoord, cliënt: {word}" if len(normalize_nfc(word)) > 6 else f"cliënt: {normalize_nfc(word)[1:]} naïef"
    )


@pytest.mark.parametrize("metrics", [OWN_METRICS, SHIPPED])
def test_scores_do_not_depend_on_the_unicode_form(milestone: Path, tmp_path: Path, metrics: str) -> None:
    results = []
    for form in FORMS:
        for of_data in FORMS:
            folder = tmp_path / f"{form}-{of_data}"
            folder.mkdir()
            (folder / "task.yaml").write_text(
                unicodedata.normalize(of_data, WRITES.format(name="written") + metrics), encoding="utf-8"
            )
            lines = (json.dumps(of_form(of_data, one), ensure_ascii=False) + "\n" for one in ITEMS)
            (folder / "items.jsonl").write_text("".join(lines), encoding="utf-8")
            suite = Suite(name="own", language="nl", folder=str(folder))
            rows = evaluate_with(
                milestone,
                folder,
                suite,
                lambda item, form=form: unicodedata.normalize(form, answer(normalize_nfc_recursively(item))),
            )
            results.append(
                {
                    metric: (row["value"], row["low"], row["high"], row["baselines"], row["p_value"])
                    for metric, row in rows.items()
                }
            )
    assert all(one == results[0] for one in results)
    values = {metric: each[0] for metric, each in results[0].items()}
    if metrics == SHIPPED:
        assert values["exact_match,whole"] == 0.0 and values["exact_match,answer"] == 0.0
    assert all(value is not None for value in values.values())


@pytest.mark.parametrize("form", FORMS)
def test_filtered_answers_are_correct_in_either_unicode_form(milestone: Path, tmp_path: Path, form: str) -> None:
    folder = tmp_path / form
    folder.mkdir()
    task = WRITES.format(name="written").replace("references[0]", "answer") + SHIPPED
    (folder / "task.yaml").write_text(unicodedata.normalize("NFD", task), encoding="utf-8")
    items = [{"source": word, "answer": word} for word in WORDS]
    (folder / "items.jsonl").write_text(
        "".join(json.dumps(of_form("NFD", one), ensure_ascii=False) + "\n" for one in items), encoding="utf-8"
    )
    suite = Suite(name="own", language="nl", folder=str(folder))
    rows = evaluate_with(
        milestone, folder, suite, lambda item: unicodedata.normalize(form, f"Ja, cliënt: {item['answer']}")
    )
    assert rows["exact_match,answer"]["value"] == 1.0 and rows["exact_match,whole"]["value"] == 0.0


# Tasks normalize these before they are scored: the test above.
NORMALIZED_BY_TASKS = {
    "squad_em",
    "squad_f1",
    "chrf3pp",
    "sari_13a",
    "pass_at_1",
    *text_metrics.FOLLOWED_METRICS,
    *text_metrics.ENTITY_METRICS,
}


@pytest.mark.parametrize("metric", sorted({*text_metrics.OWN_METRICS} - NORMALIZED_BY_TASKS))
def test_own_metrics_do_not_depend_on_the_unicode_form(metric: str) -> None:
    fields = {
        "references": ["Eén coöperatie met ideeën.", "De reünie."],
        "source": "Er is één coöperatie, die ideeën heeft.",
        "passages": ["Eén coöperatie had vijf ideeën over een crèche."],
        "answers": ["de coöperatie"],
        "passage": 1,
    }
    for text in ("Eén coöperatie heeft ideeën.", "De coöperatie [1]", "Géén idee."):
        results = {
            score_text(
                unicodedata.normalize(of_text, text), of_form(of_item, fields), [metric], {"abstention": "Géén idee."}
            )[metric]
            for of_text in FORMS
            for of_item in FORMS
        }
        assert len(results) == 1


def test_syllables_and_words_are_counted_in_composed_text() -> None:
    for word in WORDS:
        apart = unicodedata.normalize("NFD", word)
        assert count_dutch_syllables(apart) == count_dutch_syllables(word)
        assert count_english_syllables(apart) == count_english_syllables(word)
        assert lix(apart) == lix(word)
    assert count_dutch_syllables("cooperatie") < count_dutch_syllables("coöperatie")


class Choosing:
    """The parts of a task that `_right` needs."""

    multiple_input = False

    def __init__(self, target: Any) -> None:
        self.target = target

    def doc_to_target(self, doc: Any) -> Any:
        return self.target


def test_answers_match_choices_in_any_unicode_form() -> None:
    choices = [unicodedata.normalize("NFD", word) for word in WORDS[:3]]
    task: Any = Choosing("reünie")
    assert _find_right_choices(task, {}, choices) == {1} == _find_right_choices(task, {}, WORDS[:3])
    items = [
        TaskItem(
            number, str(number), (form, "nee"), (("", form), ("", "nee")), frozenset({0}), (-1.0, -2.0), {"acc": True}
        )
        for number, form in enumerate(
            (unicodedata.normalize("NFC", "één"), unicodedata.normalize("NFD", "één")) * 3, start=1
        )
    ]
    assert majority_credits(items).tolist() == [1.0] * 6
    wrong = [replace(item, right=frozenset({1})) for item in items]
    assert normalize_nfc(str(find_model_constant_answer(wrong))) == "één"
    assert (
        normalize_choice_scores_by_length(items[0], "acc_norm", (-6.0, -3.0))
        == normalize_choice_scores_by_length(items[1], "acc_norm", (-6.0, -3.0))
        == [-2.0, -1.0]
    )
