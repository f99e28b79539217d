"""The features of the classifier."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus.classifier.linear_classifier import BUCKETS, ngram_buckets


def same(one: str, other: str) -> bool:
    return ngram_buckets(one).tolist() == ngram_buckets(other).tolist()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("De Brug ÉÉN Ünie", "de brug één ünie"),
        ("in 1984", "in 0000"),
        ("een  twee\tdrie", "een twee drie"),
        ("ja , nee", "ja,nee"),
        ("“ja”…", "“ ja ” …"),
        ("klaar😀", "klaar 😀"),
    ],
)
def test_case_digits_and_blanks_are_ignored_and_marks_are_separate_tokens(one: str, other: str) -> None:
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("een twee", "eentwee"),
        ("een twee", "een\ntwee"),
        ("een twee", "twee een"),
        ("een", "een."),
        ("1984", "198"),
        ("“ja", "”ja"),
        ("×", "÷"),
        ("Z", "["),
        ("a", "z"),
        ("9", "a"),
        ("@", "`"),
    ],
)
def test_words_marks_line_ends_and_order_change_the_features(one: str, other: str) -> None:
    assert not same(one, other)


def test_features_are_words_and_word_pairs() -> None:
    one, two, three = ngram_buckets("een")[0], ngram_buckets("twee")[0], ngram_buckets(".")[0]
    first, second = ngram_buckets("een twee")[2], ngram_buckets("twee.")[2]
    assert ngram_buckets("een twee.").tolist() == [one, two, three, first, second]
    assert first not in (one, two) and ngram_buckets("twee een")[2] != first


@given(st.text())
def test_any_text_has_one_bucket_per_word_and_pair(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    result = ngram_buckets(text)
    assert len(result) == 0 or len(result) % 2 == 1
    assert ((result >= 0) & (result < BUCKETS)).all() and result.dtype == np.int32
    assert (len(result) == 0) == (not text.strip("".join(map(chr, [*range(10), *range(11, 33)]))))


def test_words_are_spread_over_the_buckets() -> None:
    result = ngram_buckets(
        " ".join(f"w{'abcdefghij'[n % 10]}{'klmnopqrst'[n // 10 % 10]}x{'uvw'[n // 100]}" for n in range(300))
    )
    assert len(set(result.tolist())) > 595 and len(set((result[:300] >> 12).tolist())) > 150
