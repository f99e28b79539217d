"""Which of the texts that MinHash joins are kept: one goes where it is like one that is kept, and stays where not.

How alike two texts are is their Jaccard similarity: of the different n-grams of either, the share that both have. The
texts are read again for it, unit by unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.corpus.copies.minhash import Hashes, Shingles
from pipeline.corpus.copies.signature_files import Numbers, SignedUnit
from pipeline.corpus.text.numba_cache import compiled

Similarities = npt.NDArray[np.float64]
HASH_BYTES = 8
MOST_COMPARED = 100
"""Of the kept texts of a cluster, the first ones that others are compared with: so a cluster is never quadratic."""


@compiled
def _shared(hashes: Hashes, one: int, one_end: int, other: int, other_end: int) -> int:
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


@compiled
def compare(
    hashes: Hashes, starts_T: Numbers, sizes_T: Numbers, clusters_T: Numbers, least: float
) -> tuple[Numbers, Similarities]:
    """Return for each of T texts the first kept one of its cluster that it is like, itself if kept, and how alike.

    Args:
        hashes: the sorted sets of all texts, that of text t from `starts_T[t]` on.
        clusters_T: which follow each other; the best text of each comes first.
    """
    kept_T, similarity_T = np.arange(len(starts_T)), np.ones(len(starts_T))
    compared = np.empty(MOST_COMPARED, dtype=np.int64)
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
            both = _shared(hashes, start, start + size, starts_T[other], starts_T[other] + sizes_T[other])
            similarity = both / (size + sizes_T[other] - both)
            if similarity >= least:
                kept_T[text], similarity_T[text] = other, similarity
                break
        if kept_T[text] == text and number < MOST_COMPARED:
            compared[number] = text
            number += 1
    return kept_T, similarity_T


def find_alike(
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
        kept, similarity = compare(hashes, starts, sizes, clusters_D[texts], least)
        kept_D[first:last], similarity_D[first:last] = texts[kept[len(held) :]], similarity[len(held) :]
        cut = last < len(clusters_D) and clusters_D[last] == clusters_D[last - 1]
        own = (kept == np.arange(len(texts))) & (clusters_D[texts] == clusters_D[last - 1]) & cut
        places = np.flatnonzero(own)[:MOST_COMPARED]
        before = texts[places]
        held = [hashes[starts[place] : starts[place] + sizes[place]].copy() for place in places]
        first = last
    return kept_D, similarity_D


ROWS_AT_ONCE = 100


class NgramSets:
    """Reads the n-grams of documents by their numbers.

    Args:
        units: in the order of their numbers.
        documents: by the signatures of a unit the file of its documents.
        length: of an n-gram, in words.
    """

    def __init__(self, units: list[SignedUnit], documents: Mapping[Path, Path], length: int) -> None:
        self._units = units
        self._documents = documents
        self._shingles = Shingles(length)

    def fill(self, numbers_P: Numbers, ngrams_P: Numbers, hashes: Hashes, starts_P: Numbers) -> Numbers:
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
                found = self._shingles.of(text)
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
