"""MinHash as datatrove does it, with this package's words: the same numbers, sooner, in bounded memory.

Hashed are the n-grams of datatrove, of its simplified text and this package's words. What datatrove simplifies, and
what a word is, is the same for a pretoken by itself as within its text. So each different pretoken is simplified once;
the n-grams of a text are then read from what its pretokens became.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
from datatrove.utils.text import NUMBERS_PATTERN, PUNCTUATION, PUNCTUATION_TRANS
from datatrove.utils.word_tokenizers import WordTokenizer

from pipeline.corpus.settings import Signatures
from pipeline.corpus.text.numba_cache import compiled
from pipeline.corpus.text.pretokens import Bytes, Column, Integers, Numbers, PretokenNumbers
from pipeline.corpus.text.words import word_tokenize


def configuration(settings: Signatures) -> MinhashConfig:
    """Return datatrove's configuration of the same meaning."""
    return MinhashConfig(
        n_grams=settings.ngram,
        num_buckets=settings.bands,
        hashes_per_bucket=settings.rows,
        seed=settings.seed,
    )


class PlainWords(WordTokenizer):  # type: ignore[misc]
    """Gives datatrove the words of this package."""

    def word_tokenize(self, text: str) -> list[str]:
        """Return the words of a text."""
        return word_tokenize(text)

    def sent_tokenize(self, text: str) -> list[str]:
        """Return the text as one sentence; signatures do not ask for sentences."""
        return [text]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Return the bounds of that one sentence."""
        return [(0, len(text))]


class MinhashSignature(MinhashDedupSignature):  # type: ignore[misc]
    """Takes the place of its parent: it writes the same files from the same words."""

    name = "MinHash signatures"

    def __init__(self, output_folder: Path, settings: Signatures) -> None:
        super().__init__(str(output_folder), configuration(settings))
        self.word_tokenizer = PlainWords()
        self._shingles = Shingles(settings.ngram)
        self._factors_H, self._terms_H = (parameters[0] for parameters in self.parameters)

    def get_shingles(self, text: str) -> npt.NDArray[np.uint64]:
        """Return xxhash64 of each n-gram of the simplified text, shape (N, 1)."""
        return self._shingles.of(text).reshape(-1, 1)

    def get_signature(self, shingles: npt.NDArray[np.uint64]) -> list[list[int]]:
        """Return, for shingles of shape (N, 1), the smallest value of each hash, by band."""
        by_band: list[list[int]] = self._smallest(shingles[:, 0]).tolist()
        return by_band

    def _smallest(self, shingles: Hashes) -> Hashes:
        return smallest(shingles, self._factors_H, self._terms_H).reshape(self.config.num_buckets, -1)

    def keys(self, text: str) -> tuple[int, list[int]]:
        """Return the number of n-grams, and one for each band, 64 bits and not 0, equal where all its hashes are.

        Of a text that is shorter than one n-gram all are 0.
        """
        shingles = self._shingles.of(text)
        if len(shingles) == 0:
            return 0, [0] * int(self.config.num_buckets)
        bands = self._smallest(shingles).astype("<u8")
        return len(shingles), [xxhash.xxh3_64_intdigest(band.tobytes()) or 1 for band in bands]


Hashes = npt.NDArray[np.uint64]

_SPACE = re.compile(rf"[\s{re.escape(PUNCTUATION)}]+")
_BEYOND_LATIN = re.compile("[\u0300-\U0010ffff]+")  # no mark that combines is below
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f]")
_PRETOKENS_KEPT = 2**18
_ONE, _TWO, _THREE = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
_FOUR, _FIVE = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)


def simplify(text: str) -> str:
    """Return what datatrove's `simplify_text` returns: lower case, numbers 0, no punctuation, no diacritics."""
    simple = NUMBERS_PATTERN.sub("0", text.lower())
    if simple.isascii():
        return " ".join(simple.translate(PUNCTUATION_TRANS).split())
    simple = _SPACE.sub(" ", simple).strip()
    return _BEYOND_LATIN.sub(_without_marks, unicodedata.normalize("NFD", simple)).strip()


def _without_marks(match: re.Match[str]) -> str:
    return "".join(character for character in match[0] if unicodedata.category(character) != "Mn")


def _simple_words(pretokens: str) -> str:
    """Return the simplified words, spaces between them, of pretokens, each with a line feed behind it."""
    every = pretokens.split("\n")
    # One character beyond ASCII makes the translation of all of them slow.
    plain = "\n".join(pretoken if pretoken.isascii() else "" for pretoken in every)
    lines = NUMBERS_PATTERN.sub("0", plain.lower()).translate(PUNCTUATION_TRANS).split("\n")
    # What is left of printable ASCII is letters, digits and spaces: the words are seen as it is.
    control = _CONTROL.search(pretokens) is not None
    for place, pretoken in enumerate(every):
        if control or not pretoken.isascii():
            lines[place] = " ".join(word_tokenize(simplify(pretoken)))
    return "\n".join(lines)


@compiled
def _read(data: Bytes, place: int, size: int) -> np.uint64:
    """Return the little-endian number of so many bytes."""
    number = np.uint64(0)
    for step in range(size):
        number |= np.uint64(data[place + step]) << np.uint64(8 * step)
    return number


@compiled
def _turned(number: np.uint64, bits: int) -> np.uint64:
    return (number << np.uint64(bits)) | (number >> np.uint64(64 - bits))


@compiled
def _round(lane: np.uint64, number: np.uint64) -> np.uint64:
    return _turned(lane + number * _TWO, 31) * _ONE


@compiled
def _xxhash64(data: Bytes, place: int, end: int) -> np.uint64:
    """Return XXH64 (Collet 2012) of `data[place:end]` with the seed 0."""
    size = np.uint64(end - place)
    value = _FIVE
    if end - place >= 32:
        one, two, three, four = _ONE + _TWO, _TWO, np.uint64(0), np.uint64(0) - _ONE
        while place + 32 <= end:
            one, two = _round(one, _read(data, place, 8)), _round(two, _read(data, place + 8, 8))
            three, four = _round(three, _read(data, place + 16, 8)), _round(four, _read(data, place + 24, 8))
            place += 32
        value = _turned(one, 1) + _turned(two, 7) + _turned(three, 12) + _turned(four, 18)
        for lane in (one, two, three, four):
            value = (value ^ _round(np.uint64(0), lane)) * _ONE + _FOUR
    value += size
    while place + 8 <= end:
        value = _turned(value ^ _round(np.uint64(0), _read(data, place, 8)), 27) * _ONE + _FOUR
        place += 8
    if place + 4 <= end:
        value = _turned(value ^ (_read(data, place, 4) * _ONE), 23) * _TWO + _THREE
        place += 4
    while place < end:
        value = _turned(value ^ (np.uint64(data[place]) * _FIVE), 11) * _ONE
        place += 1
    value = (value ^ (value >> np.uint64(33))) * _TWO
    value = (value ^ (value >> np.uint64(29))) * _THREE
    return value ^ (value >> np.uint64(32))


@compiled
def _n_grams(numbers_P: Integers, ends: Numbers, simple: Bytes, length: int) -> Hashes:
    """Return the hash of each run of `length` words with a space between them.

    What pretoken i became is `simple[ends[i]:ends[i + 1] - 1]`: words with a space or several between them.
    """
    room = 0
    for pretoken in numbers_P:
        room += ends[pretoken + 1] - ends[pretoken]
    data, starts = np.empty(room + 1, dtype=np.uint8), np.empty(room + 2, dtype=np.int64)
    size = words = 0
    for pretoken in numbers_P:
        begins = True
        for place in range(ends[pretoken], ends[pretoken + 1] - 1):
            if simple[place] == 0x20:
                begins = True
                continue
            if begins:
                begins = False
                if size:
                    data[size] = 0x20
                    size += 1
                starts[words] = size
                words += 1
            data[size] = simple[place]
            size += 1
    starts[words] = size + 1
    hashes = np.empty(max(0, words - length + 1), dtype=np.uint64)
    for word in range(len(hashes)):
        hashes[word] = _xxhash64(data, starts[word], starts[word + length] - 1)
    return hashes


@compiled
def smallest(shingles: Hashes, factors: Hashes, terms: Hashes) -> Hashes:
    """Return the smallest value of each hash of shingles s: factor · s + term mod 2^64, modulo the prime 2^61 - 1."""
    prime, bits = np.uint64((1 << 61) - 1), np.uint64(61)
    smallest_H = np.full(len(factors), prime)
    for shingle in shingles:
        for place in range(len(factors)):
            value = shingle * factors[place] + terms[place]
            value = (value & prime) + (value >> bits)
            value = value - prime if value >= prime else value
            smallest_H[place] = min(smallest_H[place], value)
    return smallest_H


class Shingles:
    """Hashes n-grams of `length` words."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._forget()

    def _forget(self) -> None:
        self._pretokens = PretokenNumbers()
        self._ends, self._simple = Column([0]), Column(kind=np.uint8)

    def of(self, text: str) -> Hashes:
        """Return XXH64 of each n-gram of the simplified text, shape (N,)."""
        if len(self._pretokens) > _PRETOKENS_KEPT:
            self._forget()
        numbers_P, _, new = self._pretokens.read(text)
        if new:
            simple = np.frombuffer(_simple_words(new).encode(), dtype=np.uint8)
            self._ends.add(len(self._simple) + 1 + np.flatnonzero(simple == 0x0A))
            self._simple.add(simple)
        return _n_grams(numbers_P, self._ends.array(), self._simple.array(), self.length)
