"""A linear classifier of texts over hashed unigrams and bigrams of words and marks, and its file.

A word is a run of letters and digits, case-folded in ASCII and Latin-1, with each digit as 0. Each other character
except blanks is a mark, and so is the end of a line: marks identify menus, tables and code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from pipeline.core import atomic_files
from pipeline.corpus.text.cached_numba_compilation import cached_njit

Bytes = npt.NDArray[np.uint8]
Buckets = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

BITS = 20
BUCKETS = 1 << BITS
_SHIFT = np.uint64(64 - BITS)
_START, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
_PAIR, _MIX, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFF51AFD7ED558CCD), np.uint64(32)
_FOLD = np.uint64(32)


@cached_njit
def _bucket(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> _HALF)) * _MIX
    return (value ^ (value >> _HALF)) * _MIX >> _SHIFT


@cached_njit
def _byte_kind(data: Bytes, place: int) -> int:
    """Return 0 for a blank, 1 for a byte of a word, else the negative length of the mark that begins here, in bytes.

    In UTF-8, C2 begins the signs of Latin-1; E2 followed by less than B0 begins the marks and symbols from U+2000 to
    U+2BFF; F0 to F4 begin characters beyond U+FFFF, such as emoji.
    """
    byte = data[place]
    if byte < 0x80:
        if (0x30 <= byte <= 0x39) or (0x41 <= byte <= 0x5A) or (0x61 <= byte <= 0x7A):
            return 1
        return 0 if byte <= 0x20 and byte != 0x0A else -1
    if byte == 0xC2:
        return -2
    if byte == 0xE2 and place + 1 < len(data) and data[place + 1] < 0xB0:
        return -3
    return -4 if byte >= 0xF0 else 1


@cached_njit
def _ends_latin1_letter(data: Bytes, place: int) -> bool:
    return place > 0 and data[place - 1] == 0xC3


@cached_njit
def _hash_words_and_marks(data: Bytes) -> npt.NDArray[np.uint64]:
    hashes = np.empty(len(data), dtype=np.uint64)  # only written pages take memory
    count = place = 0
    value, inside = _START, False
    while place <= len(data):
        kind = _byte_kind(data, place) if place < len(data) else 0
        if kind == 1:
            byte = np.uint64(data[place])
            if 0x30 <= byte <= 0x39:
                byte = np.uint64(0x30)
            elif 0x41 <= byte <= 0x5A or (_ends_latin1_letter(data, place) and 0x80 <= byte <= 0x9E and byte != 0x97):
                byte += _FOLD
            value, inside = (value ^ byte) * _PRIME, True
            place += 1
            continue
        if inside:
            hashes[count] = value
            count += 1
            value, inside = _START, False
        if kind < 0:
            end = min(place - kind, len(data))
            mark = _START
            while place < end:
                mark = (mark ^ np.uint64(data[place])) * _PRIME
                place += 1
            hashes[count] = mark
            count += 1
        else:
            place += 1
    return hashes[:count]


@cached_njit
def _ngram_buckets(data: Bytes) -> Buckets:
    hashes = _hash_words_and_marks(data)
    buckets = np.empty(max(0, 2 * len(hashes) - 1), dtype=np.int32)
    for place in range(len(hashes)):
        buckets[place] = _bucket(hashes[place])
        if place:
            buckets[len(hashes) + place - 1] = _bucket(hashes[place - 1] * _PAIR + hashes[place])
    return buckets


def ngram_buckets(text: str) -> Buckets:
    """Return the hash bucket, below BUCKETS, of each word and mark of a text, then of each bigram."""
    return _ngram_buckets(np.frombuffer(text.encode(), dtype=np.uint8))


@cached_njit
def _mean_ngram_weight(buckets_M: Buckets, weights_B: npt.NDArray[np.float32]) -> float:
    total = 0.0
    for bucket in buckets_M:
        total += weights_B[bucket]
    return total / max(len(buckets_M), 1)


@dataclass(frozen=True)
class LinearClassifier:
    """The weight of each bucket of n-grams, (BUCKETS,), and the calibration of mean weights to probabilities."""

    weights_B: npt.NDArray[np.float32]
    slope: float
    constant: float

    def probabilities(self, means_N: Floats) -> Floats:
        """Return the scores, 0 to 1, of texts with these mean weights."""
        exponents = np.clip(self.slope * means_N + self.constant, -700, 700)
        return np.asarray(1 / (1 + np.exp(-exponents)))

    def score_texts(self, texts: Iterable[str]) -> Floats:
        """Return the probability that each text is good, (N,), for equally frequent classes."""
        return self.probabilities(
            np.array([_mean_ngram_weight(ngram_buckets(text), self.weights_B) for text in texts], dtype=np.float64)
        )


def save_classifiers(classifiers: dict[str, LinearClassifier], path: Path) -> None:
    """Write classifiers, by language."""
    tensors = {}
    for language, classifier in sorted(classifiers.items()):
        tensors[f"{language}.weights"] = classifier.weights_B
        tensors[f"{language}.calibration"] = np.array([classifier.slope, classifier.constant])
    with atomic_files.apply_umask(path):
        save_file(tensors, path)


def load_classifiers(path: Path) -> dict[str, LinearClassifier]:
    """Return the classifiers of a file, by language."""
    tensors = load_file(path)
    classifiers = {}
    for name in sorted(tensors):
        language, _, kind = name.rpartition(".")
        if kind == "weights":
            slope, constant = map(float, tensors[f"{language}.calibration"])
            classifiers[language] = LinearClassifier(tensors[name], slope, constant)
    return classifiers
