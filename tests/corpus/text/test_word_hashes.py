"""Equal words have equal hashes, in any case, with any marks around them, in any text or slice."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.corpus.text import word_hashes
from pipeline.corpus.text.word_hashes import hash_ngrams, hash_text_words

_BETWEEN = re.compile("[\x00-/:-@[-`{-\xbf×÷\u2000-\u2bff]+")
_CAPITALS = {code: code + 32 for code in [*range(ord("A"), ord("Z") + 1), *range(0xC0, 0xDF)] if chr(code) != "×"}
TEXTS = st.lists(
    st.text(st.sampled_from("aAzZ09ÀàÞþßÿ×÷é \n.-«ªº–”…⯿Ⰰ中😀"), max_size=30).map("{}\n".format), min_size=1
)


def words(text: str) -> list[str]:
    return [word.translate(_CAPITALS) for word in _BETWEEN.split(text) if word]


@pytest.mark.parametrize("slice_bytes", [word_hashes.SLICE_BYTES, 128])
@given(texts=TEXTS)
@example(texts=["CAFÉ à×b÷c", "café", "À B", "Ÿ ÿ", "«zo» “Zo…", "ab\u2bffc ab\u2c00c", "a", "b" * 40 + " " + "b" * 40])
def test_distinct_words_have_distinct_hashes(texts: list[str], slice_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_hashes, "SLICE_BYTES", slice_bytes)
        hashes, bounds = hash_text_words(texts)
    expected = [words(text) for text in texts]
    assert np.diff(bounds).tolist() == list(map(len, expected))
    flat = [word for result in expected for word in result]
    assert len(set(zip(flat, hashes.tolist(), strict=True))) == len(set(flat)) == len(set(hashes.tolist()))


def test_ngram_hashes_depend_on_word_order() -> None:
    hashes, _ = hash_text_words(["een twee drie een twee. Drie twee een"])
    first, second, third, fourth, fifth, last = hash_ngrams(hashes, 3).tolist()
    assert first == fourth and len({first, second, third, fifth, last}) == 5
    assert len(hash_ngrams(hashes, 8)) == 1 and len(hash_ngrams(hashes, 9)) == 0
