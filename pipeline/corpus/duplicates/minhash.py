"""MinHash signatures as computed by datatrove, and the Jaccard similarity of candidate texts.

The n-grams are those of datatrove's simplified text, with the words of this package. Simplification and word splitting
give the same result for a pretoken alone as within its text. So each different pretoken is simplified once, and the
n-grams of a text are assembled from its simplified pretokens. The hashes equal datatrove's, faster and in bounded
memory.

Of the texts that MinHash joins, a text is removed if its Jaccard similarity to a kept one is high enough. For this the
texts are read again, unit by unit.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from datatrove.utils.text import NUMBERS_PATTERN, PUNCTUATION, PUNCTUATION_TRANS

from pipeline.core.errors import InputError
from pipeline.corpus.duplicates.signature_files import Numbers, SignedUnit
from pipeline.corpus.settings import SignatureSettings
from pipeline.corpus.text.cached_numba_compilation import cached_njit
from pipeline.corpus.text.pretoken_ids import Bytes, GrowingArray, Integers, PretokenTable
from pipeline.corpus.text.word_splitting import word_tokenize

Hashes = npt.NDArray[np.uint64]

_SPACE = re.compile(rf"[\s{re.escape(PUNCTUATION)}]+")
_BEYOND_LATIN = re.compile("[\u0300-\U0010ffff]+")  # contains all combining marks
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f]")
_PRETOKENS_KEPT = 2**18
_PRIME = (1 << 61) - 1
_ONE, _TWO, _THREE = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
_FOUR, _FIVE = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)


def simplify(text: str) -> str:
    """Return a text in lower case, with 0 for numbers, without punctuation and diacritics, as datatrove does."""
    simple = NUMBERS_PATTERN.sub("0", text.lower())
    if simple.isascii():
        return " ".join(simple.translate(PUNCTUATION_TRANS).split())
    simple = _SPACE.sub(" ", simple).strip()
    return _BEYOND_LATIN.sub(_remove_combining_marks, unicodedata.normalize("NFD", simple)).strip()


def _remove_combining_marks(match: re.Match[str]) -> str:
    return "".join(character for character in match[0] if unicodedata.category(character) != "Mn")


def _simplify_pretokens(pretokens: str) -> str:
    """Return the simplified words, separated by spaces, of pretokens that are separated by line feeds."""
    every = pretokens.split("\n")
    # `translate` is slow for a string with any character beyond ASCII.
    plain = "\n".join(pretoken if pretoken.isascii() else "" for pretoken in every)
    lines = NUMBERS_PATTERN.sub("0", plain.lower()).translate(PUNCTUATION_TRANS).split("\n")
    # Of printable ASCII only letters, digits and spaces remain, so the words are already separated.
    control = _CONTROL.search(pretokens) is not None
    for place, pretoken in enumerate(every):
        if control or not pretoken.isascii():
            lines[place] = " ".join(word_tokenize(simplify(pretoken)))
    return "\n".join(lines)


@cached_njit
def _read_int(data: Bytes, place: int, size: int) -> np.uint64:
    number = np.uint64(0)
    for step in range(size):
        number |= np.uint64(data[place + step]) << np.uint64(8 * step)
    return number


@cached_njit
def _rotate_left(number: np.uint64, bits: int) -> np.uint64:
    return (number << np.uint64(bits)) | (number >> np.uint64(64 - bits))


@cached_njit
def _xxhash_round(lane: np.uint64, number: np.uint64) -> np.uint64:
    return _rotate_left(lane + number * _TWO, 31) * _ONE


@cached_njit
def _xxhash64(data: Bytes, place: int, end: int) -> np.uint64:
    """Return XXH64 (Collet 2012) of `data[place:end]` with seed 0."""
    size = np.uint64(end - place)
    value = _FIVE
    if end - place >= 32:
        one, two, three, four = _ONE + _TWO, _TWO, np.uint64(0), np.uint64(0) - _ONE
        while place + 32 <= end:
            one, two = (
                _xxhash_round(one, _read_int(data, place, 8)),
                _xxhash_round(two, _read_int(data, place + 8, 8)),
            )
            three, four = (
                _xxhash_round(three, _read_int(data, place + 16, 8)),
                _xxhash_round(four, _read_int(data, place + 24, 8)),
            )
            place += 32
        value = _rotate_left(one, 1) + _rotate_left(two, 7) + _rotate_left(three, 12) + _rotate_left(four, 18)
        for lane in (one, two, three, four):
            value = (value ^ _xxhash_round(np.uint64(0), lane)) * _ONE + _FOUR
    value += size
    while place + 8 <= end:
        value = _rotate_left(value ^ _xxhash_round(np.uint64(0), _read_int(data, place, 8)), 27) * _ONE + _FOUR
        place += 8
    if place + 4 <= end:
        value = _rotate_left(value ^ (_read_int(data, place, 4) * _ONE), 23) * _TWO + _THREE
        place += 4
    while place < end:
        value = _rotate_left(value ^ (np.uint64(data[place]) * _FIVE), 11) * _ONE
        place += 1
    value = (value ^ (value >> np.uint64(33))) * _TWO
    value = (value ^ (value >> np.uint64(29))) * _THREE
    return value ^ (value >> np.uint64(32))


@cached_njit
def _hash_ngrams(numbers_P: Integers, ends: Numbers, simple: Bytes, length: int) -> Hashes:
    """Return the hash of each n-gram of `length` words, separated by single spaces.

    The simplified form of pretoken i is `simple[ends[i]:ends[i + 1] - 1]`: words separated by one or more spaces.
    """
    capacity = 0
    for pretoken in numbers_P:
        capacity += ends[pretoken + 1] - ends[pretoken]
    data, starts = np.empty(capacity + 1, dtype=np.uint8), np.empty(capacity + 2, dtype=np.int64)
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


@cached_njit
def _minhash(shingles: Hashes, factors: Hashes, terms: Hashes) -> Hashes:
    """Return the smallest value of each hash function over shingles s: (factor · s + term mod 2^64) mod _PRIME."""
    prime, bits = np.uint64(_PRIME), np.uint64(61)
    smallest_H = np.full(len(factors), prime)
    for shingle in shingles:
        for place in range(len(factors)):
            value = shingle * factors[place] + terms[place]
            value = (value & prime) + (value >> bits)
            value = value - prime if value >= prime else value
            smallest_H[place] = min(smallest_H[place], value)
    return smallest_H


class ShingleHasher:
    """Hashes n-grams of `length` words."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._reset()

    def _reset(self) -> None:
        self._pretokens = PretokenTable()
        self._ends, self._simple = GrowingArray([0]), GrowingArray(kind=np.uint8)

    def hash_text(self, text: str) -> Hashes:
        """Return XXH64 of each n-gram of the simplified text, shape (N,)."""
        if len(self._pretokens) > _PRETOKENS_KEPT:
            self._reset()
        numbers_P, _, new = self._pretokens.encode(text)
        if new:
            simple = np.frombuffer(_simplify_pretokens(new).encode(), dtype=np.uint8)
            self._ends.extend(len(self._simple) + 1 + np.flatnonzero(simple == 0x0A))
            self._simple.extend(simple)
        return _hash_ngrams(numbers_P, self._ends.backing_array(), self._simple.backing_array(), self.length)


class MinhashSigner:
    """Computes the signatures of datatrove's `MinhashDedupSignature`, with the same permutations."""

    def __init__(self, settings: SignatureSettings) -> None:
        self.shingles = ShingleHasher(settings.ngram)
        self._bands = settings.bands
        random, hashes = np.random.RandomState(settings.seed), settings.bands * settings.rows
        self._factors_H = random.randint(1, _PRIME, dtype=np.uint64, size=hashes)
        self._terms_H = random.randint(0, _PRIME, dtype=np.uint64, size=hashes)

    def minhash(self, shingles: Hashes) -> Hashes:
        """Return the smallest value of each hash function over the shingles, shape (bands, rows)."""
        return _minhash(shingles, self._factors_H, self._terms_H).reshape(self._bands, -1)

    def band_keys(self, text: str) -> tuple[int, list[int]]:
        """Return the number of n-grams and the key of each band: 64 bits, nonzero, equal if all hashes of the band are.

        For a text shorter than one n-gram, all keys are 0.
        """
        shingles = self.shingles.hash_text(text)
        if len(shingles) == 0:
            return 0, [0] * self._bands
        bands = self.minhash(shingles).astype("<u8")
        return len(shingles), [xxhash.xxh3_64_intdigest(band.tobytes()) or 1 for band in bands]


Similarities = npt.NDArray[np.float64]
HASH_BYTES = 8
MAXIMUM_COMPARED = 100
"""Kept texts per cluster that others are compared with, which keeps the time per cluster linear."""


@cached_njit
def _count_shared(hashes: Hashes, one: int, one_end: int, other: int, other_end: int) -> int:
    """Return the number of common hashes of two sorted sets, `hashes[one:one_end]` and `hashes[other:other_end]`."""
    shared = 0
    while one < one_end and other < other_end:
        if hashes[one] == hashes[other]:
            shared, one, other = shared + 1, one + 1, other + 1
        elif hashes[one] < hashes[other]:
            one += 1
        else:
            other += 1
    return shared


@cached_njit
def assign_kept_texts(
    hashes: Hashes, starts_T: Numbers, sizes_T: Numbers, clusters_T: Numbers, least: float
) -> tuple[Numbers, Similarities]:
    """Return for each of T texts the first similar kept text of its cluster, itself if kept, and their similarity.

    Args:
        hashes: the sorted sets of all texts; the set of text t starts at `starts_T[t]`.
        clusters_T: ascending cluster numbers; the best text of a cluster comes first.
        least: the minimum Jaccard similarity.
    """
    kept_T, similarity_T = np.arange(len(starts_T)), np.ones(len(starts_T))
    compared = np.empty(MAXIMUM_COMPARED, dtype=np.int64)
    number, cluster = 0, np.int64(-1)
    for text in range(len(starts_T)):
        if clusters_T[text] != cluster:
            number, cluster = 0, clusters_T[text]
        size, start = sizes_T[text], starts_T[text]
        for place in range(number):
            other = compared[place]
            smaller, larger = min(size, sizes_T[other]), max(size, sizes_T[other])
            if larger == 0 or smaller / larger < least:
                continue
            both = _count_shared(hashes, start, start + size, starts_T[other], starts_T[other] + sizes_T[other])
            similarity = both / (size + sizes_T[other] - both)
            if similarity >= least:
                kept_T[text], similarity_T[text] = other, similarity
                break
        if kept_T[text] == text and number < MAXIMUM_COMPARED:
            compared[number] = text
            number += 1
    return kept_T, similarity_T


def find_similar_kept_texts(
    clusters_D: Numbers,
    ngrams_D: Numbers,
    read: Callable[[Numbers, Hashes, Numbers], Numbers],
    least: float,
    memory_bytes: int,
) -> tuple[Numbers, Similarities]:
    """Return for each of D texts the first similar kept text of its cluster, and their similarity.

    The texts are read in parts that fit into half of the memory. The other half is for the kept texts of a cluster that
    extends over several parts.

    Args:
        clusters_D: ascending cluster numbers; the best text of a cluster comes first.
        ngrams_D: the number of n-grams of each text, counted with repetition.
        read: writes the sorted sets of some texts into an array, each at a given start, and returns their sizes.
        least: the minimum Jaccard similarity.

    Raises:
        InputError: the memory is too small for one text and the texts that it is compared with.
    """
    kept_D, similarity_D = np.arange(len(clusters_D)), np.ones(len(clusters_D))
    before, ends = np.empty(0, dtype=np.int64), np.cumsum(ngrams_D)
    kept_sets: list[Hashes] = []
    first = 0
    while first < len(clusters_D):
        capacity = memory_bytes // HASH_BYTES // 2
        last = max(int(np.searchsorted(ends, ends[first] - ngrams_D[first] + capacity, side="right")), first + 1)
        texts = np.concatenate([before, np.arange(first, last)])
        starts = np.cumsum(ngrams_D[texts]) - ngrams_D[texts]
        needed_bytes = int(ngrams_D[texts].sum()) * HASH_BYTES
        if needed_bytes > memory_bytes:
            raise InputError(
                f"deduplication.memory_bytes leaves {memory_bytes} for the n-grams of duplicates, and some need "
                f"{needed_bytes}: raise it by {2 * needed_bytes}"
            )
        hashes = np.empty(needed_bytes // HASH_BYTES, dtype=np.uint64)
        sizes = np.array([len(entry) for entry in kept_sets] + [0] * (last - first))
        for start, entry in zip(starts, kept_sets, strict=False):
            hashes[start : start + len(entry)] = entry
        sizes[len(kept_sets) :] = read(np.arange(first, last), hashes, starts[len(kept_sets) :])
        kept, similarity = assign_kept_texts(hashes, starts, sizes, clusters_D[texts], least)
        kept_D[first:last], similarity_D[first:last] = texts[kept[len(kept_sets) :]], similarity[len(kept_sets) :]
        cut = last < len(clusters_D) and clusters_D[last] == clusters_D[last - 1]
        is_carried = (kept == np.arange(len(texts))) & (clusters_D[texts] == clusters_D[last - 1]) & cut
        places = np.flatnonzero(is_carried)[:MAXIMUM_COMPARED]
        before = texts[places]
        kept_sets = [hashes[starts[place] : starts[place] + sizes[place]].copy() for place in places]
        first = last
    return kept_D, similarity_D


ROWS_AT_ONCE = 100


def read_texts(documents: Path, rows: Numbers) -> Iterator[str]:
    """Yield the texts in some rows of a file of documents; the rows ascend."""
    if len(rows) == 0:
        return
    with pq.ParquetFile(documents) as file:
        first = 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if not np.any((rows >= first) & (rows < first + size)):
                first += size
                continue
            for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=["text"]):
                inside = slice(*np.searchsorted(rows, [first, first + len(batch)]))
                yield from batch.column("text").take(pa.array(rows[inside] - first)).to_pylist()
                first += len(batch)


class NgramSetReader:
    """Reads the sets of n-grams of documents by document number.

    Args:
        units: sorted by document numbers.
        documents: the file of documents by the file of signatures of a unit.
        length: words of an n-gram.
    """

    def __init__(self, units: list[SignedUnit], documents: Mapping[Path, Path], length: int) -> None:
        self._units = units
        self._documents = documents
        self._shingles = ShingleHasher(length)

    def read_sets(self, numbers_P: Numbers, ngrams_P: Numbers, hashes: Hashes, starts_P: Numbers) -> Numbers:
        """Write the sorted sets of documents into an array, each at its start; return the sizes.

        Raises:
            InputError: the number of n-grams of a text differs from its signature.
        """
        sizes_P = np.zeros(len(numbers_P), dtype=np.int64)
        order = np.argsort(numbers_P)
        ordered = numbers_P[order]
        for unit in self._units:
            inside = slice(
                *np.searchsorted(ordered, [unit.corpus_document_range.start, unit.corpus_document_range.stop])
            )
            rows = ordered[inside] - unit.first
            for place, text in zip(order[inside].tolist(), read_texts(self._documents[unit.path], rows), strict=True):
                text_hashes = self._shingles.hash_text(text)
                if len(text_hashes) != ngrams_P[place]:
                    raise InputError(
                        f"{unit.path} does not match {self._documents[unit.path]}: rerun corpus.signatures"
                    )
                different = np.unique(text_hashes)
                sizes_P[place] = len(different)
                hashes[starts_P[place] : starts_P[place] + len(different)] = different
        return sizes_P
