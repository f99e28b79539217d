"""Embeddings of another vocabulary: equal text keeps its row, other text has the mean of its longest parts."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.pretrain.adopt import map_vocabularies

THEIRS = [None, b"a", b"b", b"ab", b"abc", b"c", None, b"ab"]


def test_each_embedding_row_is_composed_from_tokens_with_its_text() -> None:
    ours = [None, b"ab", b"abab", b"abcb", b"xa", b"", None, b"b"]
    result = map_vocabularies(ours, THEIRS, {0: 6}, size=10)
    assert result.rows == [[6], [7], [7, 7], [4, 2], [], [], [], [2], [], []]
    assert result.counts() == {"tokens_copied": 3, "tokens_composed": 2, "tokens_unknown": 5}
    theirs_VD = torch.arange(16.0).view(8, 2)
    ours_VD = result.map_embedding(theirs_VD)
    assert torch.equal(ours_VD[0], theirs_VD[6]) and torch.equal(ours_VD[1], theirs_VD[7])
    torch.testing.assert_close(ours_VD[3], (theirs_VD[4] + theirs_VD[2]) / 2)
    torch.testing.assert_close(ours_VD[4], theirs_VD.mean(0))


@given(st.lists(st.binary(min_size=1, max_size=6), max_size=20), st.lists(st.binary(max_size=3), max_size=40))
def test_token_parts_join_to_its_text(ours: list[bytes], theirs: list[bytes]) -> None:
    letters = [bytes([byte]) for byte in range(256)]
    vocabulary = [*letters, *theirs]
    rows = map_vocabularies(ours, vocabulary, {}, len(ours)).rows
    for text, row in zip(ours, rows, strict=True):
        assert b"".join(vocabulary[number] for number in row) == text
        assert text not in vocabulary or len(row) == 1


def test_same_vocabulary_keeps_all_rows() -> None:
    theirs_VD = torch.randn(6, 3)
    vocabulary = [None, *THEIRS[1:6]]
    assert torch.equal(map_vocabularies(vocabulary, vocabulary, {0: 0}, 6).map_embedding(theirs_VD), theirs_VD)
