"""Language statements of documents are read in the forms that sources use."""

from __future__ import annotations

import pytest

from pipeline.corpus.text.language_codes import normalize_language, states_other_language


@pytest.mark.parametrize(
    ("code", "written"),
    [
        ("nl", "nl NL nl-BE nl_NL nld NLD nld_Latn dut DUT Dutch dutch DUTCH Flemish Nederlands"),
        ("nl", "__label__nl __label__nld_Latn nl/en ['nl'] nl,en \"nl\""),
        ("ga", "ga gle Irish Iers"),
        ("en", "en en-GB eng English"),
        ("de", "ger deu German"),
        ("fy", "fy fry"),
        ("und", "und UND unknown Unknown zxx mul N/A n/a null None NaN -"),
    ],
)
def test_codes_and_names_identify_one_language(code: str, written: str) -> None:
    assert {normalize_language(word) for word in written.split()} == {code}


@pytest.mark.parametrize(
    ("stated", "code"),
    [
        ("American English", "en"),
        ("English (US)", "en"),
        ("Western Frisian", "fy"),
        ("Middle Dutch", "dum"),
        ("Dutch, English", "nl"),
        ("Dutch; Flemish", "nl"),
        ("nl|en", "nl"),
        ("nl en", "nl"),
        ("  Dutch\n", "nl"),
        (" ", "und"),
        ("", "und"),
    ],
)
def test_first_language_of_a_statement_is_used(stated: str, code: str) -> None:
    assert normalize_language(stated) == code


def test_unknown_language_does_not_contradict() -> None:
    stated = ["dut", "nl|en", None, "", "zxx", "French", "en|nl"]
    assert [states_other_language(one, "nl") for one in stated] == [False] * 5 + [True] * 2
    assert not states_other_language("Frysk", "fy") and states_other_language("Frysk", "nl")
    assert not states_other_language("gle", "ga") and not states_other_language("Deutsch, English", "deu")
