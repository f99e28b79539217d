"""How similar texts are: MinHash as datatrove does it, with this package's words, and the Jaccard similarity.

Hashed are the n-grams of datatrove, of its simplified text and this package's words. What datatrove simplifies, and
what a word is, is the same for a pretoken by itself as within its text. So each different pretoken is simplified once;
the n-grams of a text are then read from what its pretokens became. The numbers are datatrove's, sooner, in bounded
memory.

Of the texts that MinHash joins one goes where it is like one that is kept, and stays where not. The share of the
different n-grams of either text that both have decides, for which the texts are read again, unit by unit.
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
from pipeline.corpus.text.numba_cache import cached_njit
from pipeline.corpus.text.pretokens import Bytes, GrowingArray, Integers, PretokenTable
from pipeline.corpus.text.words import word_tokenize

Hashes = npt.NDArray[np.uint64]

_SPACE = re.compile(rf"[\s{re.escape(PUNCTUATION)}]+")
_BEYOND_LATIN = re.compile("[\u0300-\U0010ffff]+")  # no mark that combines is below
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f]")
_PRETOKENS_KEPT = 2**18
_PRIME = (1 << 61) - 1
_ONE, _TWO, _THREE = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
_FOUR, _FIVE = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)


def simplify(text: str) -> str:
    """Return what datatrove's `simplify_text` returns: lower case, numbers 0, no punctuation, no diacritics."""
    simple = NUMBERS_PATTERN.sub("0", text.lower())
    if simple.isascii():
        return " ".join(simple.translate(PUNCTUATION_TRANS).split())
    simple = _SPACE.sub(" ", simple).strip()
    return _BEYOND_LATIN.sub(_remove_combining_marks, unicodedata.normalize("NFD", simple)).strip()


def _remove_combining_marks(match: re.Match[str]) -> str:
    return "".join(character for character in match[0] if unicodedata.category(character) != "Mn")


def _simplify_pretokens(pretokens: str) -> str:
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


@cached_njit
def _read_integer(data: Bytes, place: int, size: int) -> np.uint64:
    """Return the little-endian number of so many bytes."""
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
    """Return XXH64 (Collet 2012) of `data[place:end]` with the seed 0."""
    size = np.uint64(end - place)
    value = _FIVE
    if end - place >= 32:
        one, two, three, four = _ONE + _TWO, _TWO, np.uint64(0), np.uint64(0) - _ONE
        while place + 32 <= end:
            one, two = (
                _xxhash_round(one, _read_integer(data, place, 8)),
                _xxhash_round(two, _read_integer(data, place + 8, 8)),
            )
            three, four = (
                _xxhash_round(three, _read_integer(data, place + 16, 8)),
                _xxhash_round(four, _read_integer(data, place + 24, 8)),
            )
            place += 32
        value = _rotate_left(one, 1) + _rotate_left(two, 7) + _rotate_left(three, 12) + _rotate_left(four, 18)
        for lane in (one, two, three, four):
            value = (value ^ _xxhash_round(np.uint64(0), lane)) * _ONE + _FOUR
    value += size
    while place + 8 <= end:
        value = _rotate_left(value ^ _xxhash_round(np.uint64(0), _read_integer(data, place, 8)), 27) * _ONE + _FOUR
        place += 8
    if place + 4 <= end:
        value = _rotate_left(value ^ (_read_integer(data, place, 4) * _ONE), 23) * _TWO + _THREE
        place += 4
    while place < end:
        value = _rotate_left(value ^ (np.uint64(data[place]) * _FIVE), 11) * _ONE
        place += 1
    value = (value ^ (value >> np.uint64(33))) * _TWO
    value = (value ^ (value >> np.uint64(29))) * _THREE
    return value ^ (value >> np.uint64(32))


@cached_njit
def _hash_ngrams(numbers_P: Integers, ends: Numbers, simple: Bytes, length: int) -> Hashes:
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


@cached_njit
def _minhash(shingles: Hashes, factors: Hashes, terms: Hashes) -> Hashes:
    """Return the smallest value of each hash of shingles s: factor · s + term mod 2^64, modulo _PRIME."""
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
        numbers_P, _, new = self._pretokens.read(text)
        if new:
            simple = np.frombuffer(_simplify_pretokens(new).encode(), dtype=np.uint8)
            self._ends.extend(len(self._simple) + 1 + np.flatnonzero(simple == 0x0A))
            self._simple.extend(simple)
        return _hash_ngrams(numbers_P, self._ends.values(), self._simple.values(), self.length)


class MinhashSigner:
    """Computes what datatrove's `MinhashDedupSignature` does, whose permutations it draws."""

    def __init__(self, settings: SignatureSettings) -> None:
        self.shingles = ShingleHasher(settings.ngram)
        self._bands = settings.bands
        random, hashes = np.random.RandomState(settings.seed), settings.bands * settings.rows
        self._factors_H = random.randint(1, _PRIME, dtype=np.uint64, size=hashes)
        self._terms_H = random.randint(0, _PRIME, dtype=np.uint64, size=hashes)

    def minhash(self, shingles: Hashes) -> Hashes:
        """Return the smallest value of each hash of shingles, shape (bands, rows)."""
        return _minhash(shingles, self._factors_H, self._terms_H).reshape(self._bands, -1)

    def band_keys(self, text: str) -> tuple[int, list[int]]:
        """Return the number of n-grams, and one for each band, 64 bits and not 0, equal where all its hashes are.

        Of a text that is shorter than one n-gram all are 0.
        """
        shingles = self.shingles.hash_text(text)
        if len(shingles) == 0:
            return 0, [0] * self._bands
        bands = self.minhash(shingles).astype("<u8")
        return len(shingles), [xxhash.xxh3_64_intdigest(band.tobytes()) or 1 for band in bands]


Similarities = npt.NDArray[np.float64]
HASH_BYTES = 8
MAXIMUM_COMPARED = 100
"""Of the kept texts of a cluster, the first ones that others are compared with: so a cluster is never quadratic."""


@cached_njit
def _count_shared(hashes: Hashes, one: int, one_end: int, other: int, other_end: int) -> int:
    """Return how many hashes two sorted sets have in common: those from `one` on, and those from `other` on."""
    found = 0
    while one < one_end and other < other_end:
        if hashes[one] == hashes[other]:
            found, one, other = found + 1, one + 1, other + 1
        elif hashes[one] < hashes[other]:
            one += 1
        else:
            other += 1
    return found


@cached_njit
def assign_kept_texts(
    hashes: Hashes, starts_T: Numbers, sizes_T: Numbers, clusters_T: Numbers, least: float
) -> tuple[Numbers, Similarities]:
    """Return for each of T texts the first kept one of its cluster that it is like, itself if kept, and how alike.

    Args:
        hashes: the sorted sets of all texts, that of text t from `starts_T[t]` on.
        clusters_T: which follow each other; the best text of each comes first.
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


def find_similar(
    clusters_D: Numbers,
    ngrams_D: Numbers,
    read: Callable[[Numbers, Hashes, Numbers], Numbers],
    least: float,
    memory_bytes: int,
) -> tuple[Numbers, Similarities]:
    """Return for each of D texts the first kept one of its cluster that it is like, and how alike they are.

    The texts are read in parts, each of what fits into half of the memory: the other half is for the kept ones of a
    cluster that is cut.

    Args:
        clusters_D: which follow each other; the best text of each comes first.
        ngrams_D: of each text, those that stand in it twice counted twice.
        read: writes the sorted sets of some texts into an array, each from a given place on, and returns their sizes.
        least: the similarity from which on two texts are alike.

    Raises:
        InputError: there is too little memory for one text and those that it is compared with.
    """
    kept_D, similarity_D = np.arange(len(clusters_D)), np.ones(len(clusters_D))
    before, ends = np.empty(0, dtype=np.int64), np.cumsum(ngrams_D)
    held: list[Hashes] = []
    first = 0
    while first < len(clusters_D):
        room = memory_bytes // HASH_BYTES // 2
        last = max(int(np.searchsorted(ends, ends[first] - ngrams_D[first] + room, side="right")), first + 1)
        texts = np.concatenate([before, np.arange(first, last)])
        starts = np.cumsum(ngrams_D[texts]) - ngrams_D[texts]
        needed_bytes = int(ngrams_D[texts].sum()) * HASH_BYTES
        if needed_bytes > memory_bytes:
            raise InputError(
                f"deduplication.memory_bytes leaves {memory_bytes} for the n-grams of copies, of which some need "
                f"{needed_bytes}: raise it by {2 * needed_bytes}"
            )
        hashes = np.empty(needed_bytes // HASH_BYTES, dtype=np.uint64)
        sizes = np.array([len(entry) for entry in held] + [0] * (last - first))
        for start, entry in zip(starts, held, strict=False):
            hashes[start : start + len(entry)] = entry
        sizes[len(held) :] = read(np.arange(first, last), hashes, starts[len(held) :])
        kept, similarity = assign_kept_texts(hashes, starts, sizes, clusters_D[texts], least)
        kept_D[first:last], similarity_D[first:last] = texts[kept[len(held) :]], similarity[len(held) :]
        cut = last < len(clusters_D) and clusters_D[last] == clusters_D[last - 1]
        own = (kept == np.arange(len(texts))) & (clusters_D[texts] == clusters_D[last - 1]) & cut
        places = np.flatnonzero(own)[:MAXIMUM_COMPARED]
        before = texts[places]
        held = [hashes[starts[place] : starts[place] + sizes[place]].copy() for place in places]
        first = last
    return kept_D, similarity_D


ROWS_AT_ONCE = 100


class NgramSetReader:
    """Reads the n-grams of documents by their numbers.

    Args:
        units: in the order of their numbers.
        documents: by the signatures of a unit the file of its documents.
        length: of an n-gram, in words.
    """

    def __init__(self, units: list[SignedUnit], documents: Mapping[Path, Path], length: int) -> None:
        self._units = units
        self._documents = documents
        self._shingles = ShingleHasher(length)

    def read_sets(self, numbers_P: Numbers, ngrams_P: Numbers, hashes: Hashes, starts_P: Numbers) -> Numbers:
        """Write the sets of the documents of these numbers into an array, each from its place on; return their sizes.

        Raises:
            InputError: a text has not as many n-grams as its signature says.
        """
        sizes_P = np.zeros(len(numbers_P), dtype=np.int64)
        order = np.argsort(numbers_P)
        ordered = numbers_P[order]
        for unit in self._units:
            inside = slice(*np.searchsorted(ordered, [unit.numbers.start, unit.numbers.stop]))
            rows = ordered[inside] - unit.first
            for place, text in zip(order[inside].tolist(), self._texts(unit, rows), strict=True):
                found = self._shingles.hash_text(text)
                if len(found) != ngrams_P[place]:
                    raise InputError(f"{unit.path} does not sign {self._documents[unit.path]}: rerun corpus.signatures")
                different = np.unique(found)
                sizes_P[place] = len(different)
                hashes[starts_P[place] : starts_P[place] + len(different)] = different
        return sizes_P

    def _texts(self, unit: SignedUnit, rows: Numbers) -> Iterator[str]:
        """Yield the texts of some rows of a unit, which ascend."""
        if len(rows) == 0:
            return
        with pq.ParquetFile(self._documents[unit.path]) as file:
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
