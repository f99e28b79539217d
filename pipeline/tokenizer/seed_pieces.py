"""The first pieces of a unigram tokenizer: the substrings of words that occur most, found with a suffix array."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydivsufsort import divsufsort

from pipeline.corpus.text.compiled import compiled
from pipeline.tokenizer.settings import BYTE_ALPHABET

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

SEPARATOR = 0xFF  # a byte that is in no UTF-8 text
MOST_SEEDS = 1_000_000
LEAST_EXPECTED = 0.5  # occurrences of a piece that stays


class WordCounts(NamedTuple):
    """The words behind one another, a SEPARATOR after each, where each ends, and how often it occurs."""

    letters: Bytes
    ends: Integers
    counts: Integers


def find_seed_pieces(words: WordCounts, minimum_frequency: int, longest_bytes: int) -> tuple[Bytes, Integers, Reals]:
    """Return letters, starts and frequencies of all bytes and of the substrings that are the first pieces.

    These are the substrings that no letter always follows, and the words themselves: as many as MOST_SEEDS, the
    greatest frequency times length first; of equal ones those first in the alphabet.
    """
    text, ends, counts = words
    order = divsufsort(text).astype(np.int64)
    word_of = np.searchsorted(ends, np.arange(len(text)))
    common = _common_prefixes(text, order, np.minimum(ends[word_of] - np.arange(len(text)), longest_bytes))
    weights = counts[word_of]
    summed = np.append(0, np.cumsum(weights[order]))
    places, lengths, found = _repeated(order, common, summed, minimum_frequency)
    begins = np.append(0, ends[:-1] + 1)
    words_whole = (counts >= minimum_frequency) & (ends - begins > 1) & (ends - begins <= longest_bytes)
    places = np.append(places, begins[words_whole])
    lengths = np.append(lengths, (ends - begins)[words_whole])
    found = np.append(found, counts[words_whole])
    best = np.sort(np.argsort(-(found * lengths), kind="stable")[:MOST_SEEDS])
    of_bytes = np.bincount(text, weights=weights.astype(np.float64), minlength=BYTE_ALPHABET)
    of_bytes[SEPARATOR] = 0
    frequency_of = dict(
        zip((bytes([byte]) for byte in range(BYTE_ALPHABET)), np.maximum(of_bytes, LEAST_EXPECTED), strict=True)
    )
    for place, length, frequency in zip(places[best], lengths[best], found[best], strict=True):
        frequency_of.setdefault(text[place : place + length].tobytes(), frequency)  # that of a word counts itself alone
    starts = np.append(0, np.cumsum([len(piece) for piece in frequency_of]))
    frequencies = np.array([*frequency_of.values()], dtype=np.float64)
    return np.frombuffer(bytearray(b"".join(frequency_of)), dtype=np.uint8), starts, frequencies


@compiled
def _common_prefixes(text: Bytes, order: Integers, room: Integers) -> Integers:
    """Return what each suffix has in common with the one before it, within its word and the longest piece.

    Kasai et al. 2001, https://doi.org/10.1007/3-540-48194-X_17.
    """
    rank = np.empty(len(order), dtype=np.int64)
    for place in range(len(order)):
        rank[order[place]] = place
    common = np.zeros(len(order), dtype=np.int64)
    length = 0
    for start in range(len(order)):
        if rank[start] == 0:
            length = 0
            continue
        other = order[rank[start] - 1]
        while (
            start + length < len(text) and other + length < len(text) and text[start + length] == text[other + length]
        ):
            length += 1
        common[rank[start]] = min(length, room[start], room[other])
        length = max(length - 1, 0)
    return common


@compiled
def _repeated(
    order: Integers, common: Integers, summed: Integers, minimum_frequency: int
) -> tuple[Integers, Integers, Integers]:
    """Return place, length and frequency of the substrings of two bytes or more that no letter always follows.

    They are the intervals of suffixes with a common prefix, found with a stack: Abouelhoda et al. 2004,
    https://doi.org/10.1016/S1570-8667(03)00065-0.
    """
    places = np.empty(len(order), dtype=np.int64)
    lengths = np.empty(len(order), dtype=np.int64)
    found = np.empty(len(order), dtype=np.int64)
    many = 0
    begin = np.empty(len(order) + 1, dtype=np.int64)
    depth = np.empty(len(order) + 1, dtype=np.int64)
    top = 0
    begin[0], depth[0] = 0, 0
    for place in range(1, len(order) + 1):
        now = common[place] if place < len(order) else 0
        first = place - 1
        while depth[top] > now:
            frequency = summed[place] - summed[begin[top]]
            if depth[top] > 1 and frequency >= minimum_frequency:
                places[many], lengths[many], found[many] = order[begin[top]], depth[top], frequency
                many += 1
            first = begin[top]
            top -= 1
        if depth[top] < now:
            top += 1
            begin[top], depth[top] = first, now
    return places[:many], lengths[:many], found[:many]
