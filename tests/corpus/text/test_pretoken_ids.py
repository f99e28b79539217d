"""Pretokens equal `str.split`, lines equal `str.splitlines`, and equal numbers are equal pretokens."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.corpus.text.pretoken_ids import PretokenTable

WHITE_SPACE = [chr(code) for code in range(0x110000) if chr(code).isspace()]
PIECES = st.one_of(
    st.sampled_from([*WHITE_SPACE, "\r\n", "a", "zeven77", "achttien", "é", "\x00", "\x00\x00", "\u200b", "\u3001"]),
    st.text(max_size=9),
)


@settings(max_examples=300)
@given(st.lists(st.lists(PIECES, max_size=40).map("".join), max_size=4))
@example(["\x85a\u2028b\u2029", "e\u2028", "\ud800 \u16803\u205f\u202f"])
def test_pretokens_equal_python_split(texts: list[str]) -> None:
    pretokens = PretokenTable()
    known: list[str] = []
    for text in texts:
        lines = text.splitlines()
        numbers_P, pretokens_L, new = pretokens.encode(text, len(lines))
        known += new.split("\n")[:-1]
        assert [known[number] for number in numbers_P] == text.split()
        assert pretokens_L.tolist() == [len(line.split()) for line in lines]
    assert len(known) == len(set(known)) == len(pretokens)


def test_table_grows_beyond_its_initial_size() -> None:
    words = [f"{number:x}" * (1 + number % 30) for number in range(20_000)]
    pretokens = PretokenTable()
    numbers_P, _, new = pretokens.encode(" ".join([*words, *words]), 1)
    again_P, _, nothing = pretokens.encode("\n".join(reversed(words)), len(words))
    assert new.split("\n")[:-1] == list(dict.fromkeys(words)) and nothing == ""
    assert numbers_P[: len(words)].tolist() == numbers_P[len(words) :].tolist() == again_P[::-1].tolist()
