"""Text properties are found in one pass over its bytes, and equal those of its characters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.corpus.settings import Normalization
from pipeline.corpus.text.text_cleaning import _BITS, _PAIR, TextCleaner, _pattern_bits
from pipeline.corpus.text.word_splitting import word_tokenize

WHITE_SPACE = [character for character in map(chr, range(0x3001)) if character.isspace()]

CHARACTERS = st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs"])


@example("één €5 – “ja”")
@example("ৰ\u2003Ã")
@given(st.text(CHARACTERS | st.sampled_from("aé\u200b\u2003Â€Œ"), max_size=20))
def test_character_flags_depend_on_character_and_neighbors(text: str) -> None:
    expected = 0
    for place, character in enumerate(text):
        expected |= int(_BITS[ord(character)])
        if place and not character.isascii() and not text[place - 1].isascii():
            expected |= _PAIR
    assert _pattern_bits(text) == expected


def test_characters_beyond_the_table_set_all_flags() -> None:
    assert _pattern_bits("日本") == _pattern_bits("a 🙂") == 0xFF


@pytest.mark.parametrize("white_space", ["keep", "tidy", "collapse"])
@pytest.mark.parametrize("character", WHITE_SPACE)
def test_every_white_space_character_separates_words(character: str, white_space: Any) -> None:
    for around in ("", " ", " ’€é "):
        text = TextCleaner(Normalization(white_space=white_space)).format(f"{around}een{character}twee drie")
        assert word_tokenize(text)[-3:] in (["een", "twee", "drie"], ["een…", "twee", "drie"]), (text, around)


@pytest.mark.parametrize("entity", ["&#11;", "&#x0B;", "&#28;", "&#x1F;", "&#12;", "&nbsp;", "&#8232;", "&#10;"])
def test_white_space_entities_separate_words(entity: str) -> None:
    assert word_tokenize(TextCleaner().format(f"één{entity}twee {entity}drie")) == ["één", "twee", "drie"]


@pytest.mark.parametrize("character", [*"\u00ad\u200b\u2060\ufeff"])
def test_invisible_characters_do_not_split_words(character: str) -> None:
    assert TextCleaner().format(f"boek{character}handel") == "boekhandel"
