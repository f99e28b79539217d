"""What a text can hold is seen in one pass over its bytes, and is what its characters say one by one."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.corpus.text.normalise import _BITS, _PAIR, _seen

CHARACTERS = st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs"])


@example("één €5 – “ja”")
@example("ৰ\u2003Ã")
@given(st.text(CHARACTERS | st.sampled_from("aé\u200b\u2003Â€Œ"), max_size=20))
def test_the_bits_of_a_text_are_those_of_its_characters_and_their_neighbours(text: str) -> None:
    expected = 0
    for place, character in enumerate(text):
        expected |= int(_BITS[ord(character)])
        if place and not character.isascii() and not text[place - 1].isascii():
            expected |= _PAIR
    assert _seen(text) == expected


def test_a_character_beyond_the_table_may_be_anything() -> None:
    assert _seen("日本") == _seen("a 🙂") == 0xFF
