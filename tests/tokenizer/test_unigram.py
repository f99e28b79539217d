"""Pieces of a unigram tokenizer: seeds by brute force, the likeliest segmentation, reproducible bytes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as property_settings
from hypothesis import strategies as st

from pipeline.tokenizer import unigram
from pipeline.tokenizer.train import new_pretokenizer
from pipeline.tokenizer.unigram import Bytes, Integers, Reals, WordCounts, find_seed_pieces

WORDS = {b"banaan": 5, b"bananen": 3, b"anna": 2, b"kanaal": 4, b"a": 9, "één".encode(): 1}


def table(words: dict[bytes, int]) -> WordCounts:
    ordered = sorted(words)
    text = np.frombuffer(bytearray(b"".join(word + b"\xff" for word in ordered)), dtype=np.uint8)
    counts = np.array([words[word] for word in ordered], dtype=np.int64)
    return WordCounts(text, np.flatnonzero(text == 0xFF).astype(np.int64), counts)


def occurrences(words: dict[bytes, int], longest: int) -> dict[bytes, int]:
    """Count each substring of two bytes or more."""
    results: dict[bytes, int] = {}
    for word, count in words.items():
        for begin in range(len(word)):
            for end in range(begin + 2, min(begin + longest, len(word)) + 1):
                results[word[begin:end]] = results.get(word[begin:end], 0) + count
    return results


@property_settings(max_examples=60)
@given(
    st.dictionaries(st.text("abé", min_size=1, max_size=8).map(str.encode), st.integers(1, 5), min_size=1),
    st.integers(2, 9),
    st.integers(1, 4),
)
def test_seeds_are_substrings_with_their_frequencies(words: dict[bytes, int], longest: int, minimum: int) -> None:
    letters, starts, frequencies = find_seed_pieces(table(words), minimum, longest)
    results = {
        letters[begin:end].tobytes(): frequency
        for (begin, end), frequency in zip(pairwise(starts.tolist()), frequencies.tolist(), strict=True)
    }
    assert len(results) == len(starts) - 1 and all(bytes([byte]) in results for byte in range(256))
    every = occurrences(words, longest)
    longer = {piece: frequency for piece, frequency in results.items() if len(piece) > 1}
    assert all(every[piece] == frequency >= minimum for piece, frequency in longer.items())
    # A repeated substring that is not a seed is always followed by the same letter.
    places: dict[bytes, list[bytes]] = {}
    for word in words:
        for begin in range(len(word)):
            for end in range(begin + 2, min(begin + longest, len(word)) + 1):
                places.setdefault(word[begin:end], []).append(word[end : end + 1])
    for piece, following in places.items():
        if every[piece] >= minimum and len(following) > 1 and piece not in longer:
            assert len(piece) < longest and len(set(following)) == 1 and following[0], (piece, following)


def cuts(word: bytes, pieces: dict[bytes, float]) -> list[list[bytes]]:
    """All segmentations of a word."""
    if not word:
        return [[]]
    return [
        [word[:end], *rest]
        for end in range(1, len(word) + 1)
        if word[:end] in pieces
        for rest in cuts(word[end:], pieces)
    ]


def prepared(scores: dict[bytes, float]) -> tuple[list[bytes], Bytes, Integers, Reals]:
    names = [bytes([byte]) for byte in range(256)] + [piece for piece in scores if len(piece) > 1]
    letters = np.frombuffer(bytearray(b"".join(names)), dtype=np.uint8)
    starts = np.append(0, np.cumsum([len(name) for name in names])).astype(np.int64)
    return names, letters, starts, np.array([scores.get(name, -9.0) for name in names])


SCORES = {b"a": -2.0, b"n": -2.5, b"an": -3.0, b"ana": -4.5, b"ban": -4.0, b"anaan": -5.5, b"en": -3.3}


def test_expected_counts_sum_over_all_segmentations() -> None:
    names, letters, starts, scores = prepared(SCORES)
    known = dict(zip(names, scores.tolist(), strict=True))
    wanted = dict.fromkeys(names, 0.0)
    for word, count in WORDS.items():
        likely = [np.exp(sum(known[piece] for piece in way)) for way in cuts(word, known)]
        for way, likelihood in zip(cuts(word, known), likely, strict=True):
            for piece in way:
                wanted[piece] += count * likelihood / sum(likely)
    result = unigram._expected_counts(table(WORDS), unigram._build_trie(letters, starts), scores)
    assert result == pytest.approx(np.array([wanted[name] for name in names]))


def test_viterbi_counts_and_losses_are_those_of_the_likeliest_segmentation() -> None:
    names, letters, starts, scores = prepared(SCORES)
    known = dict(zip(names, scores.tolist(), strict=True))

    def likeliest(word: bytes, without: bytes | None = None) -> list[bytes]:
        ways = [way for way in cuts(word, known) if without not in way]
        return max(ways, key=lambda way: sum(known[piece] for piece in way))

    wanted = dict.fromkeys(names, 0)
    for word, count in WORDS.items():
        for piece in likeliest(word):
            wanted[piece] += count
    trie = unigram._build_trie(letters, starts)
    best = unigram._viterbi_counts(table(WORDS), trie, scores, np.diff(starts))
    assert best.tolist() == [wanted[name] for name in names]
    losses = unigram._piece_losses(letters, starts, trie, scores, best)
    total = sum(wanted.values())
    for name, loss in zip(names, losses.tolist(), strict=True):
        if len(name) == 1:
            assert loss == np.inf
            continue
        parts = likeliest(name, name)
        if not wanted[name] or sum(known[part] for part in parts) >= known[name]:
            assert loss == -np.inf, name
            continue
        after = np.log(total + wanted[name] * (len(parts) - 1))
        without = sum(np.log(wanted[part] + wanted[name]) - after for part in parts)
        assert loss == pytest.approx(wanted[name] / total * (np.log(wanted[name] / total) - without)), name


def test_pieces_contain_all_bytes_and_frequent_substrings() -> None:
    words = {b" polder": 50, b" polders": 20, b" dijk": 40, b" dijken": 20, b" zee": 30}
    result = unigram.train_pieces(words, 259, 2, 64)
    assert len(result) == 259 and {bytes([byte]) for byte in range(256)} <= {piece for piece, _ in result}
    assert {b" polder", b" dijk", b" zee"} <= {piece for piece, _ in result}
    assert [score for _, score in result] == sorted((score for _, score in result), reverse=True)
    assert result == unigram.train_pieces(dict(reversed(words.items())), 259, 2, 64)
    assert max(len(piece) for piece, _ in unigram.train_pieces(words, 300, 2, 3)) == 3
    assert all(len(piece) == 1 for piece, _ in unigram.train_pieces(words, 300, 51 + 40 + 20 + 20 + 30, 64))


def test_words_are_counted() -> None:
    texts = ["'t huis, 't huis", "huis é"]
    counted = unigram.count_words(new_pretokenizer("left"), iter(texts), iter(texts))
    assert counted == {"'t": 1, "Ġ't": 1, "Ġhuis": 2, ",": 1, "huis": 1, "ĠÃ©": 1}
    assert list(counted) == sorted(counted)
