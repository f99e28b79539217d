"""Which records have equal keys, within a bound of memory, and which documents that makes one group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np

from pipeline.corpus.copies.signed import Keys, Numbers, SignedUnit
from pipeline.corpus.text.compiled import compiled

RECORD_BYTES = 80  # keys of 16 bytes and a number, twice, and where all keys are equal the pairs, twice
ALL_KEYS = 2**32  # numbers that the upper half of a key can be
BUCKET_RECORDS = 8192  # about as many fit into the cache of a core, with the table of their keys
MOST_BUCKETS = 4096  # with more, writing into all of them in turn is slow
_ODD = np.uint64(0x9E3779B97F4A7C15)


@compiled
def _hang(parents: Numbers, ones: Numbers, others: Numbers) -> None:
    """Join the sets of `ones[i]` and `others[i]`: the larger root is hung below the smaller, so no circle arises."""
    for place in range(len(ones)):
        one, other = ones[place], others[place]
        while parents[one] != one:
            parents[one] = parents[parents[one]]
            one = parents[one]
        while parents[other] != other:
            parents[other] = parents[parents[other]]
            other = parents[other]
        parents[max(one, other)] = min(one, other)


@compiled
def _shorten(parents: Numbers) -> None:
    """Hang every member below its root: a parent is smaller, so that its own is the root already."""
    for member in range(len(parents)):
        parents[member] = parents[parents[member]]


class Groups:
    """Disjoint sets of the numbers 0 … size - 1; the smallest number of a set stands for it."""

    def __init__(self, size: int) -> None:
        self._parents: Numbers = np.arange(size)

    def join(self, ones: Numbers, others: Numbers) -> None:
        """Make one set of the sets of `ones[i]` and `others[i]`, for each i."""
        _hang(self._parents, ones, others)

    def roots(self) -> Numbers:
        """Return the number that stands for the set of each member; it is no copy."""
        _shorten(self._parents)
        return self._parents


@compiled
def _count(keys: Keys, low: int, shift: int, counts: Numbers) -> None:
    """Add to `counts` how many keys are in each bucket: 2^shift of the upper halves of keys, from `low` on."""
    for record in range(keys.shape[1]):
        counts[(np.int64(keys[0, record] >> np.uint64(32)) - low) >> shift] += 1


@compiled
def _distribute(
    keys: Keys, numbers: Numbers, low: int, shift: int, ends: Numbers, into: Keys, numbered: Numbers
) -> None:
    """Write each record behind the others of its bucket, which end at `ends`."""
    for record in range(keys.shape[1]):
        bucket = (np.int64(keys[0, record] >> np.uint64(32)) - low) >> shift
        place = ends[bucket]
        for column in range(len(keys)):
            into[column, place] = keys[column, record]
        numbered[place] = numbers[record]
        ends[bucket] = place + 1


@compiled
def _same(keys: Keys, one: int, other: int) -> bool:
    same = True
    for column in range(len(keys)):
        same &= keys[column, one] == keys[column, other]
    return same


@compiled
def _pairs(keys: Keys, numbers: Numbers, starts: Numbers) -> tuple[Numbers, Numbers]:
    """Return the pairs of some buckets, of which each begins where the one before it ends."""
    ones, others = np.empty(starts[-1] - starts[0], np.int64), np.empty(starts[-1] - starts[0], np.int64)
    pairs, bits = 0, 10
    table = np.empty(1 << bits, np.int64)
    for bucket in range(len(starts) - 1):
        table[:] = -1
        record, held, pairs_before = starts[bucket], 0, pairs
        while record < starts[bucket + 1]:
            place = np.int64(keys[0, record] * _ODD >> np.uint64(64 - bits))
            while table[place] >= 0 and not _same(keys, table[place], record):
                place = (place + 1) % len(table)
            if table[place] >= 0:
                ones[pairs], others[pairs] = numbers[table[place]], numbers[record]
                pairs += 1
            elif 2 * held < len(table):
                table[place] = record
                held += 1
            else:  # this bucket again, with a larger table
                bits += 1
                table = np.full(1 << bits, -1, np.int64)
                record, held, pairs = starts[bucket], 0, pairs_before
                continue
            record += 1
    return ones[:pairs], others[:pairs]


def equal_pairs(
    units: Iterable[SignedUnit],
    read: Callable[[SignedUnit], tuple[Keys, Numbers]],
    records: int,
    memory_bytes: int,
    span: tuple[int, int] = (0, ALL_KEYS),
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield arrays of pairs, shape (pairs,) each: the first record with a key, and another that has it as well.

    Where not all records fit, the units are read several times, each time for other keys: the keys are hashes, so the
    parts are about equal. The records of a part are divided again, into buckets in which equal keys are looked up fast.

    Args:
        read: returns the keys of a unit, shape (columns, records), and the growing numbers of the records; a record
            whose first key is 0 has none.
        records: how many there are at most in all units.
        span: which keys are asked for, by the upper 32 bits of the first: from one number on to below the other.
    """
    expected = records * max(span[1] - span[0], 0) // ALL_KEYS
    parts = max(1, -(-expected * RECORD_BYTES // memory_bytes))
    bounds = [span[0] + (span[1] - span[0]) * part // parts for part in range(parts + 1)]
    for low, high in pairwise(bounds):
        if low >= high:
            continue
        wanted = min(max(1, expected // parts // BUCKET_RECORDS), MOST_BUCKETS)
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
            _count(some[-1][0], low, shift, counts)
        if not some:
            return
        starts = np.append(0, np.cumsum(counts))
        ends = starts[:-1].copy()
        keys, numbers = np.empty((len(keys), starts[-1]), dtype=np.uint64), np.empty(starts[-1], dtype=np.int64)
        for entry in some:
            _distribute(*entry, low, shift, ends, keys, numbers)
        del some, entry
        for bucket in range(0, len(counts), 64):
            yield _pairs(keys, numbers, starts[bucket : bucket + 65])
