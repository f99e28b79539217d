"""Hashes the words of many texts at once, vectorized over bytes.

A word is a run of letters and digits, case-folded in ASCII and Latin-1; punctuation and white space are ignored. The
hash of a word is a polynomial of its bytes modulo 2^64, and the hash of an n-gram a polynomial of its words.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

SLICE_BYTES = 1 << 18
_BASE = 0x9E3779B97F4A7C15
_WORD_BASE = 0xD1342543DE82EF95
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_HALF = np.uint64(32)

_FOLDED = np.arange(256, dtype=np.uint8)
_FOLDED[ord("A") : ord("Z") + 1] += 32
_INSIDE = np.array([byte >= 0x80 or chr(byte).isalnum() for byte in range(256)])


def _powers(base: int, number: int) -> Hashes:
    factors = np.full(number, base, dtype=np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


_POWERS = _powers(_BASE, SLICE_BYTES + 1)


def _fold_case(data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Return the bytes in lower case, and whether each belongs to a word.

    In UTF-8, C2 begins the punctuation of Latin-1 and C3 its letters, with capitals 32 below small letters. E2 followed
    by less than B0 begins the marks and symbols from U+2000 to U+2BFF, such as quotation marks, dashes and ellipses.
    """
    folded, inside = _FOLDED[data], _INSIDE[data]
    if data.max(initial=0) < 0x80:
        return folded, inside
    last = len(data) - 1
    marks = np.flatnonzero(data[:last] == 0xC2)
    inside[marks] = inside[marks + 1] = False
    after = np.flatnonzero(data[:last] == 0xC3) + 1
    second = data[after]
    marks = after[(second == 0x97) | (second == 0xB7)]  # × and ÷
    inside[marks - 1] = inside[marks] = False
    folded[after[(second >= 0x80) & (second <= 0x9E) & (second != 0x97)]] += 32
    marks = np.flatnonzero(data[: max(0, last - 1)] == 0xE2)
    marks = marks[data[marks + 1] < 0xB0]
    inside[(marks[:, None] + np.arange(3)).ravel()] = False
    return folded, inside


def _hash_slice(data: npt.NDArray[np.uint8], breaks: Places) -> tuple[Places, Hashes]:
    """Return position and hash of each word; words end before the positions in `breaks`."""
    folded, inside = _fold_case(data)
    first = inside.copy()
    first[1:] &= ~inside[:-1]
    first[breaks] = inside[breaks]
    past = np.zeros(len(data) + 1, dtype=bool)
    past[1:] = inside
    past[1:-1] &= ~inside[1:] | first[1:]
    starts, ends = np.flatnonzero(first), np.flatnonzero(past)
    sums = np.zeros(len(data) + 1, dtype=np.uint64)
    np.cumsum((folded.astype(np.uint64) + np.uint64(1)) * _POWERS[: len(data)], out=sums[1:])
    # The polynomials begin at different powers; scaling to the same power makes equal words equal.
    hashes = (sums[ends] - sums[starts]) * _POWERS[SLICE_BYTES - starts]
    hashes ^= hashes >> _HALF
    return starts, hashes * _MIX


def hash_words(data: npt.NDArray[np.uint8], bounds: Places) -> tuple[Hashes, Places]:
    """Return the hashes of the words of D concatenated texts in UTF-8, and their bounds.

    Args:
        bounds: the start of each text and the end of the last one in bytes, shape (D + 1,).

    Returns:
        The hashes of W words, shape (W,), and the first word of each text and the end of the last one, shape (D + 1,).
    """
    places: list[Places] = []
    hashes: list[Hashes] = []
    start, end = int(bounds[0]), int(bounds[-1])
    while start < end:
        stop = min(start + SLICE_BYTES, end)
        if stop < end:  # a slice ends before white space, so that no word is split
            spaces = np.flatnonzero(data[start + 1 : stop] <= 0x20)
            stop = start + 1 + int(spaces[-1]) if len(spaces) else stop
        inner = bounds[np.searchsorted(bounds, start) : np.searchsorted(bounds, stop)]
        starts, values = _hash_slice(data[start:stop], inner - start)
        places.append(starts + start)
        hashes.append(values)
        start = stop
    all_places = np.concatenate([np.empty(0, dtype=np.int64), *places])
    return np.concatenate([np.empty(0, dtype=np.uint64), *hashes]), np.searchsorted(all_places, bounds)


def hash_text_words(texts: list[str]) -> tuple[Hashes, Places]:
    """Return the word hashes of texts and their bounds; see `hash_words`."""
    encoded = [text.encode() for text in texts]
    bounds = np.cumsum([0, *map(len, encoded)])
    return hash_words(np.frombuffer(b"".join(encoded), dtype=np.uint8), bounds)


def extend_ngrams(hashes: Hashes, words: Hashes, length: int) -> Hashes:
    """Return the hashes of n-grams of `length` words, extended by one word each."""
    return np.asarray(hashes + words * np.uint64(pow(_WORD_BASE, length, 1 << 64)))


def hash_ngrams(words: Hashes, length: int) -> Hashes:
    """Return the hash of each n-gram of `length` words of W words, shape (W - length + 1,)."""
    number = max(0, len(words) - length + 1)
    hashes: Hashes = np.zeros(number, dtype=np.uint64)
    for offset in range(length):
        hashes = extend_ngrams(hashes, words[offset : offset + number], offset)
    return hashes
