"""What the sieve lets through is all that the searches for personal data can find."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.personal_texts import Writer
from pipeline.corpus.personal_data import find
from pipeline.corpus.personal_data.block import _SEARCHES
from pipeline.corpus.personal_data.sieve import BITS, possible
from pipeline.corpus.settings import PersonalData

ALL = PersonalData()
PIECES = [
    *("1", "2", "0", "00", "12", "2012", "1234", "12-05-2012", "4111", "+31", "+", "-", " ", ".", "(", ")", "/", "–"),
    *("\u00a0", "a", "ab", "AB", "nr", "huis", "NL", "NL-", "BDF", "X", "é", "_", ",", "\n", "::", ":", "2001:", "af"),
    *("@", "[at]", "(AT) ", "٣", "１", "tel ", "KvK ", "BSN ", "kaart ", "paspoort ", "kenteken ", "Number plate "),
]


def unsieved(text: str) -> set[str]:
    """Return the kinds of which the search alone finds something."""
    return {kind for kind, search in _SEARCHES.items() if list(search(text, ALL))}


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=24).map("".join))
def test_nothing_is_held_back(text: str) -> None:
    assert all(possible(text) & BITS[kind] for kind in unsieved(text))


def test_nothing_of_seeded_texts_is_held_back() -> None:
    writer = Writer(5)
    texts = [writer.write().text for _ in range(400)]
    kinds = [unsieved(text) for text in texts]
    assert set().union(*kinds) == set(BITS) == set(_SEARCHES)
    for text, found in zip(texts, kinds, strict=True):
        assert all(possible(text) & BITS[kind] for kind in found)


@pytest.mark.parametrize("text", ["", "In 2012 stonden er 12 huizen (vier te koop).", "Op 3 mei, om 12:30 uur: § 4–6."])
def test_ordinary_text_is_not_searched(text: str) -> None:
    assert not any(possible(text) & bit for bit in BITS.values())
    assert find(text, ALL) == []
