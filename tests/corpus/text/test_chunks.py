"""Chunks are those of `str.split`, lines those of `str.splitlines`, and equal numbers are equal chunks."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.corpus.text.chunks import ChunkNumbers

WHITE_SPACE = [chr(code) for code in range(0x110000) if chr(code).isspace()]
PIECES = st.one_of(
    st.sampled_from([*WHITE_SPACE, "\r\n", "a", "zeven77", "achttien", "é", "\x00", "\x00\x00", "\u200b", "\u3001"]),
    st.text(max_size=9),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(PIECES, max_size=40).map("".join), max_size=4))
@example(["\x85a\u2028b\u2029", "e\u2028", "\ud800 \u16803\u205f\u202f"])
def test_as_python_splits(texts: list[str]) -> None:
    chunks = ChunkNumbers()
    known: list[str] = []
    for text in texts:
        lines = text.splitlines()
        numbers_C, chunks_L, new = chunks.read(text, len(lines))
        known += new.split("\n")[:-1]
        assert [known[number] for number in numbers_C] == text.split()
        assert chunks_L.tolist() == [len(line.split()) for line in lines]
        assert chunks.sizes(numbers_C).tolist() == [len(c.encode("utf-8", "surrogatepass")) for c in text.split()]
    assert len(known) == len(set(known)) == len(chunks)


def test_more_chunks_than_there_is_room_for() -> None:
    words = [f"{number:x}" * (1 + number % 30) for number in range(20_000)]
    chunks = ChunkNumbers()
    numbers_C, _, new = chunks.read(" ".join([*words, *words]), 1)
    again_C, _, nothing = chunks.read("\n".join(reversed(words)), len(words))
    assert new.split("\n")[:-1] == list(dict.fromkeys(words)) and nothing == ""
    assert numbers_C[: len(words)].tolist() == numbers_C[len(words) :].tolist() == again_C[::-1].tolist()
