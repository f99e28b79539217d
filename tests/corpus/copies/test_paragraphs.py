"""Paragraphs that occurred before are cut, once in a stated order, and every byte is accounted for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus.copies.signature_files import paragraph_keys
from pipeline.corpus.document_streams import cut_paragraphs
from pipeline.corpus.settings import Corpus, Deduplication

SECTION = Deduplication(paragraphs=True, paragraph_characters=40, prefer=["b"])


@pytest.mark.slow
def test_a_paragraph_stays_where_it_occurs_first(new_chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    chain = new_chain(Corpus(deduplication=SECTION))
    notice = "Overname van deze tekst is toegestaan, mits met een duidelijke bronvermelding."
    water, baker, bicycle = texts["nl_water"], texts["nl_bakker"], texts["nl_fiets"]
    chain.filter(
        "a",
        {"x.jsonl": as_json_lines({"1": f"{water}\n\nKort.\n\n{notice}", "2": f"{notice}\n\n{texts['en_garden']}"})},
    )
    chain.filter(
        "b", {"x.jsonl": as_json_lines({"1": f"{baker}\n\nKort.\n\n{notice}\n\n{bicycle}\n\n{notice.upper()}"})}
    )
    chain.filter("c", {"x.jsonl": as_json_lines({"1": f"{bicycle}\n\n{water}"})})
    counts = chain.deduplicate(["a", "b", "c"])
    assert (counts["paragraphs_cut"], counts["near_duplicate"], counts["exact_duplicate"]) == (5, 0, 0)
    final = {row["id"]: row["text"] for source in "abc" for row in chain.rows(f"{source}.final")}
    assert final == {
        "a/x.jsonl/1": f"{water}\n\nKort.",
        "a/x.jsonl/2": texts["en_garden"],
        "b/x.jsonl/1": f"{baker}\n\nKort.\n\n{notice}\n\n{bicycle}",
    }
    assert [(row["id"], row["reason"]) for row in chain.rows("c.deduplicate")] == [
        ("c/x.jsonl/1", "duplicate_paragraphs")
    ]
    stage = chain.statistics(["a", "b", "c"])["totals"]["stages"][1]
    assert (stage["in"], stage["kept"], stage["removed"]) == (4, 3, {"duplicate_paragraphs": 1})
    for source in "ab":
        chain.refilter(source)
    assert chain.deduplicate(["a", "b"])["paragraphs_cut"] == 0


def test_paragraphs_of_removed_copies_do_not_count(new_chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    chain = new_chain(Corpus(deduplication=SECTION))
    chain.filter("a", {"x.jsonl": as_json_lines({"1": texts["nl_water"], "2": texts["nl_water"]})})
    counts = chain.deduplicate(["a"])
    assert (counts["exact_duplicate"], counts["paragraphs_cut"]) == (1, 0)
    assert [row["text"] for row in chain.rows("a.final")] == [texts["nl_water"]]


@given(st.lists(st.text("ab \n", max_size=12)))
def test_what_is_not_cut_stays_as_it_is(paragraphs: list[str]) -> None:
    text = "\n\n".join(paragraphs)
    keys = paragraph_keys(text, 4)
    assert cut_paragraphs(text, []) == text.strip()
    left = [place for place, key in enumerate(keys) if key not in keys[:place] or not key]
    shorter = cut_paragraphs(text, set(range(len(keys))) - set(left))
    again = [key for key in paragraph_keys(shorter, 4) if key]
    assert again == list(dict.fromkeys(key for key in keys if key))


@pytest.mark.parametrize(("text", "expected"), [("", [0]), ("kort", [0]), ("a\n\n \n\nb", [0, 0])])
def test_short_paragraphs_have_no_key(text: str, expected: list[int]) -> None:
    assert paragraph_keys(text, 5) == expected
