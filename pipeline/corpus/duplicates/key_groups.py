"""Groups documents that have an equal key, and finds repeated paragraphs, in bounded memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.corpus.documents import encode_parquet_metadata, read_file_metadata
from pipeline.corpus.duplicates.signature_files import (
    CONTENT,
    KEY_BYTES,
    Keys,
    Numbers,
    SignedUnit,
    band_columns,
    open_units,
)
from pipeline.corpus.settings import KeyComparison
from pipeline.corpus.text.cached_numba_compilation import cached_njit

RECORD_BYTES = 80  # keys of 16 bytes and a number, twice; if all keys are equal, also the pairs, twice
ALL_KEYS = 2**32  # values of the upper half of a key
BUCKET_RECORDS = 8192  # about the cache of a core, with the table of their keys
MAXIMUM_BUCKETS = 4096  # more buckets make scattered writes slow
_ODD = np.uint64(0x9E3779B97F4A7C15)


@cached_njit
def _union(parents: Numbers, ones: Numbers, others: Numbers) -> None:
    """Join the sets of `ones[i]` and `others[i]`; the smaller root becomes the parent, which avoids cycles."""
    for place in range(len(ones)):
        one, other = ones[place], others[place]
        while parents[one] != one:
            parents[one] = parents[parents[one]]
            one = parents[one]
        while parents[other] != other:
            parents[other] = parents[parents[other]]
            other = parents[other]
        parents[max(one, other)] = min(one, other)


@cached_njit
def _compress_paths(parents: Numbers) -> None:
    """Set each parent to the root, in ascending order: a parent is smaller, so it already has its root."""
    for member in range(len(parents)):
        parents[member] = parents[parents[member]]


class DisjointSets:
    """Disjoint sets (union-find) of the numbers 0 … size - 1; the root of a set is its smallest number."""

    def __init__(self, size: int) -> None:
        self._parents: Numbers = np.arange(size)

    def join(self, ones: Numbers, others: Numbers) -> None:
        """Join the sets of `ones[i]` and `others[i]`, for each i."""
        _union(self._parents, ones, others)

    def roots(self) -> Numbers:
        """Return the root of each member; the array is not a copy."""
        _compress_paths(self._parents)
        return self._parents


@cached_njit
def _count_buckets(keys: Keys, low: int, shift: int, counts: Numbers) -> None:
    """Add to `counts` the keys per bucket; a bucket has 2^shift values of the upper half of a key, from `low`."""
    for record in range(keys.shape[1]):
        counts[(np.int64(keys[0, record] >> np.uint64(32)) - low) >> shift] += 1


@cached_njit
def _sort_into_buckets(
    keys: Keys, numbers: Numbers, low: int, shift: int, ends: Numbers, into: Keys, numbered: Numbers
) -> None:
    """Append each record to its bucket; `ends` are the current ends of the buckets."""
    for record in range(keys.shape[1]):
        bucket = (np.int64(keys[0, record] >> np.uint64(32)) - low) >> shift
        place = ends[bucket]
        for column in range(len(keys)):
            into[column, place] = keys[column, record]
        numbered[place] = numbers[record]
        ends[bucket] = place + 1


@cached_njit
def _keys_equal(keys: Keys, one: int, other: int) -> bool:
    same = True
    for column in range(len(keys)):
        same &= keys[column, one] == keys[column, other]
    return same


@cached_njit
def _pair_buckets(keys: Keys, numbers: Numbers, starts: Numbers) -> tuple[Numbers, Numbers]:
    ones, others = np.empty(starts[-1] - starts[0], np.int64), np.empty(starts[-1] - starts[0], np.int64)
    pairs, bits = 0, 10
    table = np.empty(1 << bits, np.int64)
    for bucket in range(len(starts) - 1):
        table[:] = -1
        record, entries, pairs_before = starts[bucket], 0, pairs
        while record < starts[bucket + 1]:
            place = np.int64(keys[0, record] * _ODD >> np.uint64(64 - bits))
            while table[place] >= 0 and not _keys_equal(keys, table[place], record):
                place = (place + 1) % len(table)
            if table[place] >= 0:
                ones[pairs], others[pairs] = numbers[table[place]], numbers[record]
                pairs += 1
            elif 2 * entries < len(table):
                table[place] = record
                entries += 1
            else:  # repeat this bucket with a larger table
                bits += 1
                table = np.full(1 << bits, -1, np.int64)
                record, entries, pairs = starts[bucket], 0, pairs_before
                continue
            record += 1
    return ones[:pairs], others[:pairs]


def pair_equal_keys(
    units: Iterable[SignedUnit],
    read: Callable[[SignedUnit], tuple[Keys, Numbers]],
    records: int,
    memory_bytes: int,
    span: tuple[int, int] = (0, ALL_KEYS),
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield arrays of pairs, shape (pairs,) each: the first record with a key, and another record with that key.

    If not all records fit into memory, the units are read several times, each time for another range of keys. Keys are
    hashes, so the ranges have about equal sizes. The records of a range go into buckets that fit into the cache.

    Args:
        read: returns the keys of a unit, shape (columns, records), and the ascending numbers of its records. A record
            with 0 as its first key has no key.
        records: the maximum number of records in all units.
        span: the range of keys by the upper 32 bits of the first column: start, and end (exclusive).
    """
    expected = records * max(span[1] - span[0], 0) // ALL_KEYS
    parts = max(1, -(-expected * RECORD_BYTES // memory_bytes))
    bounds = [span[0] + (span[1] - span[0]) * part // parts for part in range(parts + 1)]
    for low, high in pairwise(bounds):
        if low >= high:
            continue
        wanted = min(max(1, expected // parts // BUCKET_RECORDS), MAXIMUM_BUCKETS)
        shift = (-(-(high - low) // wanted) - 1).bit_length()
        counts = np.zeros((high - low - 1 >> shift) + 1, dtype=np.int64)
        some: list[tuple[Keys, Numbers]] = []
        for unit in units:
            keys, numbers = read(unit)
            chosen = keys[0] != 0
            if high - low < ALL_KEYS:
                upper = keys[0] >> np.uint64(32)
                chosen &= (upper >= low) & (upper < high)
            some.append((keys[:, chosen], numbers[chosen]))
            _count_buckets(some[-1][0], low, shift, counts)
        if not some:
            return
        starts = np.append(0, np.cumsum(counts))
        ends = starts[:-1].copy()
        keys, numbers = np.empty((len(keys), starts[-1]), dtype=np.uint64), np.empty(starts[-1], dtype=np.int64)
        for entry in some:
            _sort_into_buckets(*entry, low, shift, ends, keys, numbers)
        del some, entry
        for bucket in range(0, len(counts), 64):
            yield _pair_buckets(keys, numbers, starts[bucket : bucket + 65])


def memory_left_for_keys(settings: KeyComparison, documents: int, needed_bytes: int) -> int:
    """Return the memory left for comparing keys, in bytes.

    Raises:
        InputError: the documents need more than the configuration allows.
    """
    least_bytes = needed_bytes + documents * KEY_BYTES
    if least_bytes > settings.memory_bytes:
        raise InputError(
            f"deduplication.memory_bytes is {settings.memory_bytes}, and {documents} documents need {least_bytes}: "
            f"raise it to {2 * least_bytes}"
        )
    return settings.memory_bytes - needed_bytes


class SignedCorpus:
    """The signatures of the documents of a corpus, followed by those of reserved documents.

    Args:
        prefer: sources to keep duplicates of, the best first.

    Raises:
        InputError: a file has other columns, or two files are the same unit.
    """

    def __init__(
        self, signatures: list[Path], reserved: list[Path], settings: KeyComparison, prefer: Sequence[str] = ()
    ) -> None:
        self.units = open_units(signatures, settings, prefer)
        self.documents = sum(unit.rows for unit in self.units)
        self.reserved = open_units(reserved, settings, prefer, self.documents)
        self.total = self.documents + sum(unit.rows for unit in self.reserved)
        self._exact = settings.exact
        with_content = settings.exact or bool(reserved)
        self._kinds = [CONTENT] * with_content + [[name] for name in band_columns(settings)]

    def group_equal_keys(self, memory_bytes: int, share: int = 0, shares: int = 1) -> DisjointSets:
        """Return the sets of documents with an equal key, for one of several equal shares of all keys.

        All kinds of keys, content hashes and then bands, form one sequence that the shares divide. A document with the
        same text as a reserved one is joined to it, even if the corpus keeps exact duplicates.
        """

        def read_unit_keys(unit: SignedUnit, columns: list[str]) -> tuple[Keys, Numbers]:
            return unit.keys(columns), np.arange(unit.corpus_document_range.start, unit.corpus_document_range.stop)

        groups = DisjointSets(self.total)
        first, end = (place * len(self._kinds) * ALL_KEYS // shares for place in (share, share + 1))
        for place, columns in enumerate(self._kinds):
            span = (max(first - place * ALL_KEYS, 0), min(end - place * ALL_KEYS, ALL_KEYS))
            keys = partial(read_unit_keys, columns=columns)
            # Of equal keys the first is paired with each of the others, so the reserved ones come first.
            for ones, others in pair_equal_keys([*self.reserved, *self.units], keys, self.total, memory_bytes, span):
                wanted = slice(None) if self._exact or columns != CONTENT else ones >= self.documents
                groups.join(ones[wanted], others[wanted])
        return groups

    def _hash_units(self) -> str:
        units = [[(unit.source, unit.unit, unit.rows) for unit in some] for some in (self.units, self.reserved)]
        return hashlib.sha256(json.dumps([units, self._kinds, self._exact]).encode()).hexdigest()

    def write_pairs(self, path: Path, groups: DisjointSets, share: int, shares: int) -> int:
        """Write pairs of a document and the smallest number in its set; return the number of pairs."""
        roots = groups.roots()
        documents = np.flatnonzero(roots != np.arange(len(roots)))
        metadata = {"share": share, "shares": shares, "of": self._hash_units()}
        pairs = pa.table({"document": documents, "first": roots[documents]})
        pairs = pairs.replace_schema_metadata(encode_parquet_metadata(metadata))
        encodings = dict.fromkeys(pairs.column_names, "DELTA_BINARY_PACKED")
        pq.write_table(pairs, path, compression="zstd", use_dictionary=False, column_encoding=encodings)
        return len(pairs)

    def read_document_sets(self, paths: list[Path]) -> DisjointSets:
        """Return the sets of documents joined by all shares, read from one file per share.

        Raises:
            InputError: a file belongs to other documents or other shares, or one is missing.
        """
        groups = DisjointSets(self.total)
        sha256 = self._hash_units()
        for share, path in enumerate(paths):
            metadata = read_file_metadata(path)
            if [metadata[key] for key in ("share", "shares", "of")] != [share, len(paths), sha256]:
                raise InputError(f"{path} is not share {share} of {len(paths)} of these keys: rerun corpus.equal_keys")
            with pq.ParquetFile(path) as file:
                for rows in file.iter_batches():
                    groups.join(rows["first"].to_numpy(), rows["document"].to_numpy())
        return groups


Bits = npt.NDArray[np.bool_]


def read_list_column_keys(unit: SignedUnit, column: str, removed: Bits) -> Keys:
    """Return the keys in the lists of a column, shape (1, keys); they are 0 in removed documents."""
    lists = unit.read([column])[column]
    keys = pc.list_flatten(lists).to_numpy()
    is_removed = np.repeat(removed[unit.corpus_document_range], pc.list_value_length(lists).to_numpy())
    return np.where(is_removed, np.uint64(0), keys)[None]


def _paragraph_keys(unit: SignedUnit, removed: Bits) -> tuple[Keys, Numbers]:
    """Return the keys of the paragraphs of a unit, and the numbers of the paragraphs."""
    keys = read_list_column_keys(unit, "paragraphs", removed)
    return keys, np.arange(unit.first_paragraph, unit.first_paragraph + unit.paragraphs)


def find_repeated_paragraphs(units: list[SignedUnit], removed_documents: Numbers, memory_bytes: int) -> Bits:
    """Return for each paragraph of the units whether it occurred before in a kept document."""
    removed = np.zeros(sum(unit.rows for unit in units), dtype=bool)
    removed[removed_documents] = True
    repeated = np.zeros(sum(unit.paragraphs for unit in units), dtype=bool)
    if len(repeated):
        keys = partial(_paragraph_keys, removed=removed)
        in_order = sorted(units, key=lambda unit: unit.first_paragraph)
        for _, others in pair_equal_keys(in_order, keys, len(repeated), memory_bytes):
            repeated[others] = True
    return repeated


def locate_repeated_paragraphs(unit: SignedUnit, repeated: Bits) -> tuple[Numbers, Numbers]:
    """Return the document row of each repeated paragraph of a unit, and its index in the document."""
    places = np.flatnonzero(repeated[unit.first_paragraph : unit.first_paragraph + unit.paragraphs])
    if len(places) == 0:
        return places, places
    ends = np.cumsum(pc.list_value_length(unit.read(["paragraphs"])["paragraphs"]).to_numpy())
    rows = np.searchsorted(ends, places, side="right")
    return rows, places - np.append(0, ends)[rows]
