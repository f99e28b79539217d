"""The positions that the prefilter accepts contain all matches of the searches for personal data."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.corpus.personal_data.candidates import find_candidates
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.personal_data.spans import ALL_POSITIONS, Candidates, PersonalDataSpan, normalize_typography
from pipeline.corpus.personal_data.text_masking import KINDS, find_personal_data, searches_by_kind
from tests.corpus.personal_data.contexts import read_contexts
from tests.corpus.personal_data.letters import Letters
from tests.corpus.personal_data.texts import Writer

ALL = PersonalData()
PIECES = [
    *("1", "2", "0", "00", "12", "2012", "1234", "12-05-2012", "4111", "+31", "+", "-", " ", ".", "(", ")", "/", "–"),
    *("\u00a0", "a", "ab", "AB", "nr", "huis", "NL", "NL-", "BDF", "X", "é", "_", ",", "\n", "::", ":", "2001:", "af"),
    *(
        "\u2011",
        "\u00ad",
        "\u202f",
        "<at>",
        "( at )",
        " at ",
        " AT ",
        " dot ",
        " punt ",
        " apenstaartje ",
        "jan",
        "voorbeeld",
        "nl",
    ),
    *(
        "B01",
        "b 02",
        "B.03",
        "NL123456782B01",
        "NL 91 ABNA 0417164300",
        "BE68 539",
        "12,1234AB",
        "1234  AB",
        "; ",
        "\t",
        "• ",
    ),
    *(
        "@",
        "[at]",
        "(AT) ",
        "٣",
        "１",
        "🙂",
        "tel ",
        "KvK ",
        "BSN ",
        "kaart ",
        "paspoort ",
        "kenteken ",
        "kentekens: ",
        "nummerbord",
        "License plate ",
    ),
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
        "Kerkstr. ",
        "weg 5",
        " te Zwolle",
        "rekening ",
        "0202988813",
        "17.09.10.296",
        "(415) 555-2671",
        "+31 (0)20 794 00 00",
        "12345678",
        "j@x.nl",
    ),
]


def find_values(text: str, where: Candidates) -> dict[str, list[PersonalDataSpan]]:
    """Return the matches of each search at some positions."""
    return {kind: list(search(text, where)) for kind, search in searches_by_kind(ALL).items()}


def held_back(text: str) -> bool:
    """Return whether the prefilter loses any match of a text, read as the searches read it."""
    read = normalize_typography(text)
    return find_values(read, find_candidates(read)) != find_values(read, ALL_POSITIONS)


@settings(max_examples=600)
@given(st.lists(st.sampled_from(PIECES), max_size=24).map("".join))
def test_prefilter_skips_no_personal_data(text: str) -> None:
    assert not held_back(text)


@pytest.mark.parametrize("writer", [Writer(5), Letters(5)], ids=["texts", "letters"])
def test_prefilter_skips_no_personal_data_in_seeded_texts(writer: Writer | Letters) -> None:
    everything: set[str] = set()
    for text in (writer.write().text for _ in range(400)):
        everything |= {kind for kind, spans in find_values(normalize_typography(text), ALL_POSITIONS).items() if spans}
        assert not held_back(text)
    assert everything == set(KINDS)


def test_prefilter_skips_no_personal_data_in_labelled_passages() -> None:
    assert not any(held_back(passage.text) for passages in read_contexts().values() for passage in passages)


def test_digits_of_other_scripts_trigger_a_full_search() -> None:
    foreign = [chr(code) for code in range(128, sys.maxunicode + 1) if unicodedata.category(chr(code)) == "Nd"]
    assert len(foreign) > 600
    assert all(find_candidates(f"a{digit} 🙂") == ALL_POSITIONS for digit in foreign)


def test_candidate_positions_are_characters() -> None:
    assert find_candidates("é🙂 – 中文 j@x.nl").at_sign == [9]


@pytest.mark.parametrize(
    "text",
    ["", "In 2012 stonden er 12 huizen (vier te koop).", "Op 3 mei, om 12:30 uur: § 4–6. 🙂", "Zie lid 1, 2 en 3."],
)
def test_text_without_candidates_is_not_searched(text: str) -> None:
    assert not any(find_candidates(text))
    assert find_personal_data(text, ALL) == []
