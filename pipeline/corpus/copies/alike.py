"""Which of the texts that MinHash joins are kept: one goes where it is like one that is kept, and stays where not.

How alike two texts are is their Jaccard similarity: of the different n-grams of either, the share that both have.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import InputError
from pipeline.corpus.copies.shingles import Hashes
from pipeline.corpus.copies.signed import Numbers
from pipeline.corpus.text.compiled import compiled

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
