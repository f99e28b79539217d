"""Which numbers are card numbers, and how far the context word of a number may be from it."""

from __future__ import annotations

import pytest
from stdnum import luhn

from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.personal_data.text_masking import find_personal_data

ALL = PersonalData()

# First digits with the lengths of their issuer, and others: ISO/IEC 7812 and the issuers' own pages.
ISSUED = [
    ("4", (13, 16, 19), (14, 15, 17, 18)),
    *((prefix, (16,), (13, 15, 19)) for prefix in ("51", "55", "2221", "2720")),
    *((prefix, (), (16,)) for prefix in ("2220", "2721", "3527", "3590", "6010", "6012", "61", "33", "35")),
    *((prefix, (15,), (14, 16)) for prefix in ("34", "37")),
    *((prefix, (14,), (15, 16)) for prefix in ("36", "38", "39", "300", "305", "3095")),
    *((prefix, (), (14,)) for prefix in ("306", "3094", "3096")),
    *((prefix, (16,), (12, 15)) for prefix in ("62", "6011", "3528", "3589")),
    *((prefix, (12, 13, 16, 19), ()) for prefix in ("50", "56", "59", "63", "64", "65", "69")),
]


@pytest.mark.parametrize(("prefix", "lengths", "others"), ISSUED)
def test_card_number_needs_an_issuer_prefix_and_length(
    prefix: str, lengths: tuple[int, ...], others: tuple[int, ...]
) -> None:
    for length in (*lengths, *others):
        body = prefix.ljust(length - 1, "0")
        number = body + luhn.calc_check_digit(body)
        results = [one.kind for one in find_personal_data(f"creditcard {number}", ALL)]
        assert ("credit_card" in results) == (length in lengths), number


@pytest.mark.parametrize(
    ("word", "number", "kind", "ahead", "behind"),
    [
        ("kvk", "12345678", "kvk", 50, 25),
        ("btw", "111222333B01", "bsn", 40, 25),
        ("visa", "4222222222222", "credit_card", 40, 25),
    ],
)
def test_context_word_counts_within_its_search_distance(
    word: str, number: str, kind: str, ahead: int, behind: int
) -> None:
    def kinds(text: str) -> set[str]:
        return {one.kind for one in find_personal_data(text, ALL)}

    for far, seen in ((0, True), (1, False)):
        between = "x" * (ahead - len(word) - 2 + far)
        assert (kind in kinds(f"{word} {between} {number}")) == seen
        between = "y" * (behind - len(word) - 2 + far)
        assert (kind in kinds(f"{number} {between} {word}")) == seen


def test_date_like_number_needs_a_nearer_context_word_on_its_line() -> None:
    for text, seen in (
        (f"kvk {'x' * 30} 20240131", True),
        (f"kvk {'x' * 31} 20240131", False),
        ("20240131 kvk", False),
        ("kvk\n20240131", False),
        ("20240131 of kvk 20240132", False),
    ):
        assert any(one.value == "20240131" for one in find_personal_data(text, ALL)) == seen, text
