"""N-grams that few documents have decide; the wording of a task does not; chance is told from text without items."""

from __future__ import annotations

from typing import Any

import pytest

from tests.corpus.items.conftest import rows

LEAK = "de torenwachter schreef zijn zuster over zeven vogels op de ijzeren leuning"
FORMULA = "dit besluit treedt in werking met ingang van de dag na die van uitgifte"


def test_an_overlap_asks_for_a_share_of_the_ngrams(looked: Any) -> None:
    text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    part = " ".join(text.split()[:15])
    for share, hits in ((0.6, 1), (0.61, 0)):
        assert len(looked({"a.jsonl": rows({"x": text})}, minimum_overlap=share).find([part])) == hits


def test_what_stands_in_many_documents_is_a_phrase(looked: Any) -> None:
    found = looked({"a.jsonl": rows({"x": FORMULA}, {"x": LEAK}), "b.jsonl": rows({"x": f"{FORMULA} {LEAK}"})})
    texts = [f"Artikel {number}: {FORMULA}." for number in range(10)]
    hits, summary = found.units({"laws": texts, "web": [LEAK]})
    assert len(hits["laws"]) == 20 and summary["a"]["phrases"] == 0 and summary["a"]["found_items"] == ["1", "2"]
    hits, summary = found.units({"laws": [*texts, f"{texts[0]} {texts[0]}"], "web": [LEAK]})
    assert hits["laws"] == [] and [hit[1:3] for hit in hits["web"]] == [("a", "2")]
    assert summary["a"] == {
        "items": 2,
        "searched": 2,
        "not_searched": 0,
        "found": 1,
        "found_items": ["2"],
        "phrases": 1,
        "documents": 1,
        "sources": {"web": 1},
        "by_chance": None,
    }
    assert summary["b"]["phrases"] == 1 and summary["b"]["found"] == 0


def test_a_phrase_and_what_is_rare_in_the_same_item_are_told_apart(looked: Any) -> None:
    found = looked({"a.jsonl": rows({"x": f"{FORMULA} {LEAK}"})}, maximum_documents=1)
    hits, summary = found.units({"web": [FORMULA, FORMULA, f"{FORMULA} {LEAK}"]})
    assert [hit[0] for hit in hits["web"]] == [2] and summary["a"]["phrases"] == 0
    assert hits["web"][0][3] == hits["web"][0][4] - 2, "the two n-grams of the formula do not count"


@pytest.mark.parametrize("same", [50, 26, 25])
def test_the_wording_of_a_task_is_no_item(same: int, looked: Any) -> None:
    rules = [FORMULA] * same + ["een regel"] * (50 - same)
    items = [{"rule": rule, "x": f"{LEAK} nummer {number}"} for number, rule in enumerate(rules)]
    found = looked({"a.jsonl": rows(*items)}).find([FORMULA, f"{LEAK} nummer 7"])
    assert {hit[0] for hit in found} == ({1} if same > 25 else {0, 1})
    assert [hit[2] for hit in found if hit[0] == 1] == ["8"], "the words that all items share find none"


def test_a_constant_answer_is_none_beside_a_question(looked: Any) -> None:
    items = [{"q": f"Staat boek {n} daar?", "choices": ["ja", "nee"], "more": f"plank {n}"} for n in "123"]
    found = looked({"a.jsonl": rows(*items)})
    assert found.find(["Staat boek 2 daar? ja"]) == [] and len(found.find(["Staat boek 2 daar? ja, plank 2"])) == 1


def test_what_is_found_where_no_item_can_be_is_chance(looked: Any) -> None:
    contents = {"a.jsonl": rows({"x": LEAK}, {"x": FORMULA}, {"x": "vier woorden en nog een paar woorden"})}
    found = looked(contents, cannot_hold_items=["novels", "plays"])
    units = {"novels": [FORMULA, FORMULA, "x" * 1000], "plays": ["y" * 800], "web": [LEAK, "z" * 2000]}
    hits, summary = found.units(units)
    assert hits["novels"] == hits["plays"] == [] and summary["a"]["found_items"] == ["1"]
    known, elsewhere = 1800 + 2 * len(FORMULA), 2000 + len(LEAK)
    assert summary["a"]["by_chance"] == {
        "found": 1,
        "bytes": known,
        "expected": round(elsewhere / known, 2),
        "bytes_told": elsewhere,
    }
    units["web"].append("z" * 20_000)
    assert found.units(units)[1]["a"]["by_chance"]["expected"] == 2, "no more than are looked for"
    del units["novels"], units["plays"]
    nothing = found.units(units)[1]["a"]["by_chance"]
    assert nothing == {"found": 0, "bytes": 0, "expected": 0, "bytes_told": 0}
