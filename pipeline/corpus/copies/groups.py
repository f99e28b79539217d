"""Which records have equal keys, within a bound of memory, and which documents that makes one group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from pipeline.corpus.copies.signed import Keys, Numbers, SignedUnit

RECORD_BYTES = 100  # keys of 16 bytes and a number, their order, and where all keys are equal the pairs and their roots


class Groups:
    """Disjoint sets of the numbers 0 … size - 1; the smallest number of a set stands for it."""

    def __init__(self, size: int) -> None:
        self._parents: Numbers = np.arange(size)

    def find(self, members: Numbers) -> Numbers:
        """Return the numbers that stand for the sets of some members."""
        while True:
            above = self._parents[members]
            if np.array_equal(above, members):
                return above
            members = above

    def join(self, ones: Numbers, others: Numbers) -> None:
        """Make one set of the sets of `ones[i]` and `others[i]`, for each i.

        A root is hung below a smaller one, so no circle arises; where several pairs would hang the same root, it goes
        below the smallest, and the next round joins that with the others.
        """
        while len(ones):
            ones, others = self.find(ones), self.find(others)
            apart = ones != others
            ones, others = ones[apart], others[apart]
            np.minimum.at(self._parents, np.maximum(ones, others), np.minimum(ones, others))

    def roots(self) -> Numbers:
        """Return the number that stands for the set of each member; the paths to it are shortened."""
        while True:
            above = self._parents[self._parents]
            if np.array_equal(above, self._parents):
                return above
            self._parents = above


def equal_pairs(
    units: Iterable[SignedUnit],
    read: Callable[[SignedUnit], tuple[Keys, Numbers]],
    records: int,
    memory_bytes: int,
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield arrays of pairs, shape (pairs,) each: the first record with a key, and another that has it as well.

    Where not all records fit, the units are read several times, each time for other keys: the keys are hashes, so the
    parts are about equal.

    Args:
        read: returns the keys of a unit, shape (columns, records), and the growing numbers of the records; a record
            whose first key is 0 has none.
        records: how many there are at most in all units.
    """
    parts = max(1, -(-records * RECORD_BYTES // memory_bytes))
    for part in range(parts):
        some: list[tuple[Keys, Numbers]] = []
        for unit in units:
            keys, numbers = read(unit)
            chosen = keys[0] != 0
            if parts > 1:
                chosen &= (keys[0] >> np.uint64(32)) * np.uint64(parts) >> np.uint64(32) == part
            some.append((keys[:, chosen], numbers[chosen]))
        if not some:
            return
        keys = np.concatenate([entry[0] for entry in some], axis=1)
        numbers = np.concatenate([entry[1] for entry in some])
        del some
        order = np.lexsort(keys[::-1])
        again = np.arange(len(order)) > 0
        for column in keys:
            ordered = column[order]
            again[1:] &= ordered[1:] == ordered[:-1]
        del keys
        places = np.flatnonzero(again)
        starts = np.flatnonzero(~again)
        first = starts[np.searchsorted(starts, places) - 1]
        yield numbers[order[first]], numbers[order[places]]
