"""Finds the n-grams of evaluation items in texts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.corpus.items.ngrams import Numbers
from pipeline.corpus.text.word_hashes import Hashes, Places, extend, hash_ngrams, hash_texts

_SIEVE_PER_PREFIX = 16  # slots of the sieve for each n-gram: one in 16 other runs of words passes it
CONTEXT_WORDS = 50  # before and behind a short text, in which another text of its item has to stand


class Search:
    """The n-grams of evaluation items, to be found in texts: a table as `hash_items` makes it."""

    def __init__(self, table: pa.Table) -> None:
        described = json.loads(table.schema.metadata[b"polder"])
        self._lengths = range(described["minimum_words"], described["ngram"] + 1)
        self._hashes = table["hash"].to_numpy()
        self._words = table["words"].to_numpy()
        self._contexts = table["context"]
        self._needs_context = pc.list_value_length(table["context"]).to_numpy() > 0
        self._prefixes = np.unique(table["prefix"].to_numpy())
        slots = 1 << max(10, (len(self._prefixes) * _SIEVE_PER_PREFIX).bit_length())
        self._mask = np.uint64(slots - 1)
        self._sieve = np.zeros(slots, dtype=bool)
        self._sieve[self._prefixes & self._mask] = True

    def _found(self, words: Hashes, bounds: Places) -> Iterator[Numbers]:
        """Yield (document, row, place) of all n-grams that documents contain, shape (found, 3).

        Where the first words of no n-gram stand, none begins; the others grow word by word to every length.
        """
        shortest = self._lengths[0]
        hashes = hash_ngrams(words, shortest)
        places = np.flatnonzero(self._sieve[hashes & self._mask])
        hashes = hashes[places]
        for length in self._lengths:
            documents = np.searchsorted(bounds, places, side="right") - 1
            inside = places + length <= bounds[documents + 1]
            if length == shortest:
                at = np.minimum(np.searchsorted(self._prefixes, hashes), len(self._prefixes) - 1)
                inside &= self._prefixes[at] == hashes
            places, documents, hashes = places[inside], documents[inside], hashes[inside]
            if length > shortest:
                hashes = extend(hashes, words[places + length - 1], length - 1)
            first = np.searchsorted(self._hashes, hashes)
            sizes = np.searchsorted(self._hashes, hashes, side="right") - first
            within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            columns = np.repeat(documents, sizes), np.repeat(first, sizes) + within, np.repeat(places, sizes)
            yield np.stack(columns, axis=1)

    def _in_context(self, words: Hashes, bounds: Places, found: Numbers) -> npt.NDArray[np.bool_]:
        """Return of which found n-grams another text of their item stands near, in the same document."""
        near = np.zeros(len(found), dtype=bool)
        for number, (document, row, place) in enumerate(found.tolist()):
            end = place + self._words[row]
            before = words[max(place - CONTEXT_WORDS, bounds[document]) : place]
            behind = words[end : min(end + CONTEXT_WORDS, bounds[document + 1])]
            wanted = np.array(self._contexts[row].as_py(), dtype=np.uint64)
            near[number] = any(
                np.isin(hash_ngrams(part, length), wanted).any()
                for length in range(1, self._lengths[-1])
                for part in (before, behind)
            )
        return near

    def matches(self, texts: list[str]) -> Numbers:
        """Return (number of the text, row of the n-gram) of all n-grams that texts hold, sorted, shape (matches, 2)."""
        if not len(self._hashes):
            return np.empty((0, 2), dtype=np.int64)
        words, bounds = hash_texts(texts)
        found = np.concatenate(list(self._found(words, bounds)))
        open_to_doubt = np.flatnonzero(self._needs_context[found[:, 1]])
        counts = np.ones(len(found), dtype=bool)
        counts[open_to_doubt] = self._in_context(words, bounds, found[open_to_doubt])
        pairs: Numbers = np.unique(found[counts][:, :2], axis=0)
        return pairs
