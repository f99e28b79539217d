"""Long item texts match by an n-gram, short ones as a whole, and the shortest only next to another one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus.decontamination.item_search import CONTEXT_WORDS
from pipeline.corpus.text.word_hashes import SLICE_BYTES, hash_ngrams, hash_text_words
from tests.corpus.decontamination.conftest import IndexedItems, rows

LONG = "the lighthouse keeper wrote his sister a letter about seven birds that rested upon the iron railing"
SHORT = "Nine words make this sentence short but long enough."
BRIEF = "Who painted the blue bridge?"
TINY = "Jan Mulder"
LETTERS = st.sampled_from("abC dé É.-’\n…x²")


def words(text: str) -> list[str]:
    return "".join(c.lower() if c.isalnum() and c != "²" else " " for c in text).split()


@given(st.lists(st.text(LETTERS, max_size=60), max_size=6))
def test_only_equal_words_have_equal_hashes(texts: list[str]) -> None:
    hashes, bounds = hash_text_words(texts)
    split = [words(text) for text in texts]
    assert np.diff(bounds).tolist() == [len(part) for part in split]
    flat = [word for part in split for word in part]
    assert len(set(zip(flat, hashes.tolist(), strict=True))) == len(set(flat)) == len(set(hashes.tolist()))


def test_long_text_hashed_in_slices_has_the_same_words() -> None:
    text = "één kort verhaal, " * (3 * SLICE_BYTES // 18)
    hashes, bounds = hash_text_words([text, "kort"])
    assert np.diff(bounds).tolist() == [len(words(text)), 1]
    assert len(set(hashes.tolist())) == 3 and hashes[-1] == hashes[1]


@given(st.lists(st.sampled_from("abcd"), max_size=30), st.integers(1, 5))
def test_ngrams_are_equal_if_their_words_are(letters: list[str], length: int) -> None:
    hashes = hash_ngrams(hash_text_words([" ".join(letters)])[0], length)
    runs = [tuple(letters[place : place + length]) for place in range(len(letters) - length + 1)]
    assert len(hashes) == len(runs)
    assert len(set(zip(runs, hashes.tolist(), strict=True))) == len(set(runs)) == len(set(hashes.tolist()))


def test_long_items_match_by_ngram_and_short_items_as_a_whole(index_items: Any) -> None:
    result = index_items({"a.jsonl": rows({"x": LONG}, {"x": [SHORT]}, {"x": BRIEF, "y": 3}, {"x": TINY})})
    assert result.tasks == {"a": {"items": 4, "searched": 2, "not_searched": 2}}
    middle = " ".join(LONG.split()[2:15])
    texts = [
        f"So, {middle.upper()}!",
        " ".join(LONG.split()[2:14]),
        f"… «{SHORT.replace(' ', chr(10))}» …",
        SHORT.rsplit(" ", 1)[0],
        f"{BRIEF} {TINY}",
        f"{LONG} {SHORT} {SHORT}",
    ]
    assert result.find(texts) == [(0, "a", "1", 1, 5), (2, "a", "2", 1, 1), (5, "a", "1", 5, 5), (5, "a", "2", 1, 1)]


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        (f"{BRIEF} Answer: {TINY}.", True),
        (f"{TINY}! {BRIEF}", True),
        (BRIEF, False),
        (TINY, False),
        (f"{BRIEF} {'x ' * (CONTEXT_WORDS - 2)}{TINY}", True),
        (f"{BRIEF} {'x ' * (CONTEXT_WORDS - 1)}{TINY}", False),
        (f"{TINY} {'x ' * (CONTEXT_WORDS - 2)}{BRIEF}", True),
        (f"{TINY} {'x ' * (CONTEXT_WORDS - 1)}{BRIEF}", False),
        (f"{BRIEF} Jan, {'x ' * 5} Mulder", False),
        (f"{BRIEF} The bridge.", False),
        ("Who painted the blue door? Jan Mulder", False),
    ],
)
def test_short_text_matches_only_near_another_text_of_its_item(text: str, is_found: bool, index_items: Any) -> None:
    result = index_items(
        {"a.jsonl": rows({"q": BRIEF, "choices": [TINY, "Ann"]}, {"q": "Where does Jan Mulder live?"})}
    )
    assert result.find([TINY, text, BRIEF]) == ([(1, "a", "1", 1, 1)] if is_found else [])


def test_answer_words_inside_the_question_are_no_match(index_items: Any) -> None:
    result = index_items(
        {"a.jsonl": rows({"q": "Which is larger, mouse or elephant?", "choices": ["mouse", "elephant"]})}
    )
    assert result.find(["Which is larger, mouse or elephant?"]) == []
    assert len(result.find(["Which is larger, mouse or elephant? Elephant."])) == 1


@pytest.mark.parametrize(("alone", "is_found"), [(5, True), (6, False)])
def test_number_of_words_that_match_alone_is_configurable(alone: int, is_found: bool, index_items: Any) -> None:
    assert bool(index_items({"a.jsonl": rows({"q": BRIEF})}, alone_words=alone).find([BRIEF])) is is_found


def test_two_similar_sentences_match_only_together(index_items: Any) -> None:
    result = index_items({"a.jsonl": rows({"good": "She reads the old book.", "bad": "She read the old book."})})
    assert result.find(["She reads the old book.", "She read the old book."]) == []
    assert result.find(["good: She reads the old book. bad: She read the old book."]) == [(0, "a", "1", 1, 1)]


def test_ngram_and_context_do_not_span_documents(index_items: Any) -> None:
    result = index_items({"a.jsonl": rows({"x": SHORT}, {"q": BRIEF, "a": TINY})})
    half = len(SHORT.split()) // 2
    parts = [" ".join(SHORT.split()[:half]), " ".join(SHORT.split()[half:])]
    assert result.find(parts) == result.find(["", ""]) == result.find([BRIEF, TINY]) == result.find([TINY, BRIEF]) == []
    assert index_items({}).find([SHORT]) == []


def test_search_index_stores_no_item_text(index_items: Any) -> None:
    table = index_items({"a.jsonl": rows({"x": LONG, "q": BRIEF, "a": TINY})}).table
    columns = table.to_pydict()
    assert "lighthouse" not in str(columns) and "Mulder" not in str(columns)
    assert columns["task"] == ["a"] * 6 and sum(map(bool, columns["context"])) == 1


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=25), min_size=1, max_size=4), st.integers(0, 99))
def test_search_equals_brute_force(tmp_path_factory: Any, texts: Any, seed: int) -> None:
    drawn = random.Random(seed)
    items = [" ".join(drawn.choice("abc") for _ in range(drawn.randint(1, 9))) for _ in range(4)]
    contents = {f"t{number}.jsonl": rows({"x": item}) for number, item in enumerate(items)}
    indexed = IndexedItems(
        tmp_path_factory.mktemp("items"), contents, {}, {"ngram": 6, "minimum_words": 3, "alone_words": 3}
    )
    documents = [" ".join(text) for text in texts]
    by_hand = set()
    for place, document in enumerate(documents):
        for number, item in enumerate(items):
            split = item.split()
            if len(split) < 3:
                continue
            runs = [split[start : start + 6] for start in range(max(1, len(split) - 5))]
            if any(f" {' '.join(run)} " in f" {document} " for run in runs):
                by_hand.add((place, f"t{number}"))
    assert {(hit[0], hit[1]) for hit in indexed.find(documents)} == by_hand


LEAK = "de torenwachter schreef zijn zuster over zeven vogels op de ijzeren leuning"
FORMULA = "dit besluit treedt in werking met ingang van de dag na die van uitgifte"


def test_minimum_overlap_requires_a_share_of_the_ngrams(index_items: Any) -> None:
    text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    part = " ".join(text.split()[:15])
    for share, hits in ((0.6, 1), (0.61, 0)):
        assert len(index_items({"a.jsonl": rows({"x": text})}, minimum_overlap=share).find([part])) == hits


def test_ngram_in_many_documents_is_common(index_items: Any) -> None:
    result = index_items({"a.jsonl": rows({"x": FORMULA}, {"x": LEAK}), "b.jsonl": rows({"x": f"{FORMULA} {LEAK}"})})
    texts = [f"Artikel {number}: {FORMULA}." for number in range(10)]
    hits, summary = result.units({"laws": texts, "web": [LEAK]})
    assert (
        len(hits["laws"]) == 20
        and summary["a"]["items_with_common_n_grams"] == 0
        and summary["a"]["found_items"] == ["1", "2"]
    )
    hits, summary = result.units({"laws": [*texts, f"{texts[0]} {texts[0]}"], "web": [LEAK]})
    assert hits["laws"] == [] and [hit[1:3] for hit in hits["web"]] == [("a", "2")]
    assert summary["a"] == {
        "items": 2,
        "searched": 2,
        "not_searched": 0,
        "found": 1,
        "found_items": ["2"],
        "items_with_common_n_grams": 1,
        "documents": 1,
        "sources": {"web": 1},
        "by_chance": None,
    }
    assert summary["b"]["items_with_common_n_grams"] == 1 and summary["b"]["found"] == 0


def test_common_and_rare_ngrams_of_one_item_are_distinguished(index_items: Any) -> None:
    result = index_items({"a.jsonl": rows({"x": f"{FORMULA} {LEAK}"})}, maximum_documents=1)
    hits, summary = result.units({"web": [FORMULA, FORMULA, f"{FORMULA} {LEAK}"]})
    assert [hit[0] for hit in hits["web"]] == [2] and summary["a"]["items_with_common_n_grams"] == 0
    assert hits["web"][0][3] == hits["web"][0][4] - 2, "the two n-grams of the template do not count"


@pytest.mark.parametrize("same", [50, 26, 25])
def test_task_template_wording_is_not_an_item(same: int, index_items: Any) -> None:
    rules = [FORMULA] * same + ["een regel"] * (50 - same)
    items = [{"rule": rule, "x": f"{LEAK} nummer {number}"} for number, rule in enumerate(rules)]
    result = index_items({"a.jsonl": rows(*items)}).find([FORMULA, f"{LEAK} nummer 7"])
    assert {hit[0] for hit in result} == ({1} if same > 25 else {0, 1})
    assert [hit[2] for hit in result if hit[0] == 1] == ["8"], "words shared by all items do not match"


def test_constant_answer_is_no_match_next_to_a_question(index_items: Any) -> None:
    items = [{"q": f"Staat boek {n} daar?", "choices": ["ja", "nee"], "more": f"plank {n}"} for n in "123"]
    result = index_items({"a.jsonl": rows(*items)})
    assert result.find(["Staat boek 2 daar? ja"]) == [] and len(result.find(["Staat boek 2 daar? ja, plank 2"])) == 1


def test_hits_in_sources_without_items_estimate_chance(index_items: Any) -> None:
    contents = {"a.jsonl": rows({"x": LEAK}, {"x": FORMULA}, {"x": "vier woorden en nog een paar woorden"})}
    result = index_items(contents, cannot_hold_items=["novels", "plays"])
    units = {"novels": [FORMULA, FORMULA, "x" * 1000], "plays": ["y" * 800], "web": [LEAK, "z" * 2000]}
    hits, summary = result.units(units)
    assert hits["novels"] == hits["plays"] == [] and summary["a"]["found_items"] == ["1"]
    known, elsewhere = 1800 + 2 * len(FORMULA), 2000 + len(LEAK)
    assert summary["a"]["by_chance"] == {
        "found": 1,
        "bytes": known,
        "expected": round(elsewhere / known, 2),
        "bytes_in_known_languages": elsewhere,
    }
    units["web"].append("z" * 20_000)
    assert result.units(units)[1]["a"]["by_chance"]["expected"] == 2, "not more than are searched"
    del units["novels"], units["plays"]
    nothing = result.units(units)[1]["a"]["by_chance"]
    assert nothing == {"found": 0, "bytes": 0, "expected": 0, "bytes_in_known_languages": 0}
