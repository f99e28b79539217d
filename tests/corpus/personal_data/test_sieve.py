"""What is found at the places that the sieve lets through is all that the searches for personal data find."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.corpus.personal_data import find
from pipeline.corpus.personal_data.block import _SEARCHES
from pipeline.corpus.personal_data.found import Found
from pipeline.corpus.personal_data.sieve import EVERYWHERE, Places, places
from pipeline.corpus.settings import PersonalData
from tests.corpus.personal_data.texts import Writer

ALL = PersonalData()
PIECES = [
    *("1", "2", "0", "00", "12", "2012", "1234", "12-05-2012", "4111", "+31", "+", "-", " ", ".", "(", ")", "/", "–"),
    *("\u00a0", "a", "ab", "AB", "nr", "huis", "NL", "NL-", "BDF", "X", "é", "_", ",", "\n", "::", ":", "2001:", "af"),
    *("@", "[at]", "(AT) ", "٣", "１", "🙂", "tel ", "KvK ", "BSN ", "kaart ", "paspoort ", "kenteken ", "plate "),
    *(
        "NL91ABNA0417164300",
        "4111 1111 1111 1111",
        "11.12.22.333",
        "123456782",
        "020 794 0000",
        "8.8.8.8",
        "2001:470::1",
    ),
    *(
        "SPECI2014",
        "12-ABC-3",
        "1234 AB 5",
        "Kerkstraat 5, ",
        "(415) 555-2671",
        "+31 (0)20 794 00 00",
        "12345678",
        "j@x.nl",
    ),
]


def found(text: str, where: Places) -> dict[str, list[Found]]:
    """Return what each search finds at some places."""
    return {kind: list(search(text, where, ALL)) for kind, search in _SEARCHES.items()}


@settings(max_examples=600, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=24).map("".join))
def test_nothing_is_held_back(text: str) -> None:
    assert found(text, places(text)) == found(text, EVERYWHERE)


def test_nothing_of_seeded_texts_is_held_back() -> None:
    writer = Writer(5)
    everything: set[str] = set()
    for text in (writer.write().text for _ in range(400)):
        everywhere = found(text, EVERYWHERE)
        everything |= {kind for kind, spans in everywhere.items() if spans}
        assert found(text, places(text)) == everywhere
    assert everything == set(_SEARCHES)


def test_digits_of_other_scripts_are_looked_for_everywhere() -> None:
    foreign = [chr(code) for code in range(128, sys.maxunicode + 1) if unicodedata.category(chr(code)) == "Nd"]
    assert len(foreign) > 600
    assert all(places(f"a{digit} 🙂") == EVERYWHERE for digit in foreign)


def test_places_are_those_of_characters() -> None:
    assert places("é🙂 – 中文 j@x.nl").at_sign == [9]


@pytest.mark.parametrize(
    "text",
    ["", "In 2012 stonden er 12 huizen (vier te koop).", "Op 3 mei, om 12:30 uur: § 4–6. 🙂", "Zie lid 1, 2 en 3."],
)
def test_ordinary_text_is_not_searched(text: str) -> None:
    assert not any(places(text))
    assert find(text, ALL) == []
