"""Named entities of a written answer are marked and counted; EuroEval's own marking is in tests/auditors."""

from __future__ import annotations

import json

import pytest
from lm_eval.api.registry import get_aggregation

from pipeline.evaluate.entity_scores import count_entities, find_entities, serialize_entities, tags_from_json_answer
from pipeline.evaluate.score_intervals import corpus_metric_statistics_by_item
from pipeline.evaluate.text_metrics import find_missing_field, register_aggregations, score_text

NAMES = {"persoon": "per", "locatie": "loc", "diversen": "misc"}
TOKENS = ["Jan", "de", "Boer", "vaart", "naar", "Sneek", "of", "Jan"]
LABELS = ["B-PER", "I-PER", "I-PER", "O", "O", "B-LOC", "O", "B-MISC"]


def test_sentence_json_has_each_name_and_joins_its_tokens() -> None:
    text = serialize_entities(TOKENS, LABELS, NAMES)
    assert text == '{"persoon": ["Jan de Boer"], "locatie": ["Sneek"], "diversen": ["Jan"]}'
    assert json.loads(serialize_entities(["in", "\u00e9\u00e9n"], ["I-PER", "B-ORG"], NAMES)) == {
        name: [] for name in NAMES
    }
    assert serialize_entities(["\u00e9"], ["b-loc"], {"locatie": "loc"}) == '{"locatie": ["\u00e9"]}'


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        (' {"persoon": ["Jan de Boer"]} en meer {', "b-per i-per i-per o o o o b-per"),
        ('{"locatie": ["Sneek", 3], "persoon": "Jan", "boot": ["naar"]}', "o o o o o b-loc o o"),
        ('{"locatie": ["Snee"]}', "o o o o o b-loc o o"),
        ('{"persoon": ["Boer naar"]}', "o o b-per o o o o o"),
        ('{"locatie": ["de"], "persoon": ["Jan de"]}', "b-per b-loc o o o o o b-per"),
        ("Jan de Boer", "o o o o o o o o"),
        ('{"persoon": [Jan]}', "o o o o o o o o"),
    ],
)
def test_answer_marks_the_tokens_that_contain_its_words(text: str, tags: str) -> None:
    assert tags_from_json_answer(text, TOKENS, NAMES) == tags.split()


def test_entities_are_runs_of_one_kind() -> None:
    assert find_entities(LABELS) == {("per", 0, 2), ("loc", 5, 5), ("misc", 7, 7)}
    assert find_entities(LABELS, "misc") == {("per", 0, 2), ("loc", 5, 5)}
    assert find_entities(["b-per", "b-per", "i-loc", "i-loc", "o", "i-loc"]) == {
        *(("per", 0, 0), ("per", 1, 1), ("loc", 2, 3), ("loc", 5, 5))
    }


def test_f1_counts_the_entities_of_all_items() -> None:
    fields = {"tokens": TOKENS, "labels": LABELS}
    answer = '{"persoon": ["Jan de Boer"], "locatie": ["naar"]}'
    assert count_entities(answer, fields, NAMES, None) == (1, 3, 3), "the second Jan and naar are wrong"
    metrics = ("entity_f1_no_misc", "entity_f1")
    scores = score_text(answer, fields, metrics, {"entities": NAMES})
    assert scores == {"entity_f1_no_misc": (1, 3, 2), "entity_f1": (1, 3, 3)}
    register_aggregations()
    items = [(1, 3, 2), (2, 2, 2), (0, 0, 1)]
    aggregation = get_aggregation("entity_f1")
    assert aggregation(items) == pytest.approx(2 * 3 / (5 + 5)) and aggregation([(0, 0, 0)]) == 0
    statistics = corpus_metric_statistics_by_item(aggregation, items)
    assert statistics is not None and [one.values for one in statistics] == items


@pytest.mark.parametrize(
    ("fields", "metadata", "lack"),
    [
        ({"tokens": ["a"], "labels": ["O"]}, {}, "entities: {NAME: TYPE"),
        ({"tokens": ["a"]}, {"entities": NAMES}, "`tokens` and `labels`, lists"),
        ({"tokens": ["a"], "labels": []}, {"entities": NAMES}, "a label for each"),
    ],
)
def test_missing_item_field_is_named(fields: dict[str, object], metadata: dict[str, object], lack: str) -> None:
    assert lack in str(find_missing_field(fields, ["entity_f1"], metadata))
    complete = {"tokens": ["a"], "labels": ["O"]}
    assert find_missing_field(complete, ["entity_f1"], {"entities": NAMES}) is None
