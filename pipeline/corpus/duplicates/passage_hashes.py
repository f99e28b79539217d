"""Hashes the passages of a text: windows of a number of words, and anchors that choose which windows to compare.

A word is a run of bytes without ASCII white space, so it never ends within a character of UTF-8. Windows are equal if
their words are, byte for byte; the white space between words does not count.

A passage of `size` words has `size - half + 1` shorter ones of `half` words. Its anchor is the one with the smallest
hash, the first of several (winnowing, Schleimer et al. 2003). It depends on the words of the passage alone, so equal
passages have equal anchors. A text has about one anchor for each `size / 4` words, because neighboring passages share
them. Only passages whose anchor occurs twice in the corpus are compared.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.corpus.duplicates.signature_files import Keys, Numbers
from pipeline.corpus.text.cached_numba_compilation import cached_njit
from pipeline.corpus.text.pretoken_ids import Bytes

_BASES = (0x9E3779B97F4A7C15, 0xD1342543DE82EF95)  # odd, so powers of them do not vanish modulo 2^64
_PRIME = np.uint64(0x100000001B3)
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)


@cached_njit
def _mix(value: np.uint64) -> np.uint64:
    """Return the finalizer of MurmurHash3 (Appleby 2011)."""
    value = (value ^ (value >> _SHIFT)) * _FIRST
    value = (value ^ (value >> _SHIFT)) * _SECOND
    return value ^ (value >> _SHIFT)


@cached_njit
def _hash_words(data: Bytes) -> tuple[Keys, Numbers, Numbers]:
    """Return the hash, first byte and end of each word."""
    capacity = len(data) // 2 + 1
    hashes = np.empty(capacity, dtype=np.uint64)
    starts, ends = np.empty(capacity, dtype=np.int64), np.empty(capacity, dtype=np.int64)
    words = place = 0
    while place < len(data):
        if data[place] == 0x20 or 0x09 <= data[place] <= 0x0D:
            place += 1
            continue
        starts[words], value = place, np.uint64(0xCBF29CE484222325)
        while place < len(data) and not (data[place] == 0x20 or 0x09 <= data[place] <= 0x0D):
            value = (value ^ np.uint64(data[place])) * _PRIME  # FNV-1a
            place += 1
        hashes[words], ends[words] = _mix(value), place
        words += 1
    return hashes[:words], starts[:words], ends[:words]


@cached_njit
def _hash_windows(words: Keys, size: int, base: np.uint64) -> Keys:
    """Return the hash of each window of `size` words: a polynomial modulo 2^64, mixed."""
    hashes = np.empty(max(0, len(words) - size + 1), dtype=np.uint64)
    last = np.uint64(1)
    for _ in range(size):
        last *= base
    value = np.uint64(0)
    for place in range(len(words)):
        value = value * base + words[place]
        if place >= size:
            value -= words[place - size] * last
        if place >= size - 1:
            hashes[place - size + 1] = _mix(value)
    return hashes


@cached_njit
def _find_anchors(hashes: Keys, width: int) -> Numbers:
    """Return the place of the first of the smallest hashes in each window of `width` hashes; the places ascend."""
    places = np.empty(max(0, len(hashes) - width + 1), dtype=np.int64)
    least = -1
    for window in range(len(places)):
        if least < window:
            least = window
            for place in range(window + 1, window + width):
                if hashes[place] < hashes[least]:
                    least = place
        elif hashes[window + width - 1] < hashes[least]:
            least = window + width - 1
        places[window] = least
    return places


class Passages(NamedTuple):
    """The passages of a text of W words, A anchors and P passages, the p-th of them from word p.

    `keys_P` are 128 bits of each passage, shape (2, P); the first 64 are not 0.
    """

    starts_W: Numbers
    ends_W: Numbers
    anchors_A: Keys
    anchor_P: Numbers
    keys_P: Keys


def hash_all_word_passages(text: str, size: int) -> Passages:
    """Return the passages of `size` words of a text."""
    words, starts, ends = _hash_words(np.frombuffer(text.encode(), dtype=np.uint8))
    half = (size + 1) // 2
    short = np.maximum(_hash_windows(words, half, np.uint64(_BASES[0])), np.uint64(1))
    places_P = _find_anchors(short, size - half + 1)
    is_new_P = np.diff(places_P, prepend=-1) != 0
    keys = np.stack([_hash_windows(words, size, np.uint64(base)) for base in _BASES])
    keys[0] = np.maximum(keys[0], np.uint64(1))
    return Passages(starts, ends, short[places_P[is_new_P]], np.cumsum(is_new_P) - 1, keys)
