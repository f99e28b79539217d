"""Finds the n-grams of evaluation items in texts, and decides which documents contain an item.

An n-gram in many documents is a common n-gram and does not count, as in GPT-3's decontamination (Brown et al. 2020,
appendix C: more than 10 documents). Matches in sources that cannot contain items estimate the rate of chance matches.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.corpus.decontamination.item_ngrams import Numbers
from pipeline.corpus.decontamination.settings import ContaminationThresholds
from pipeline.corpus.text.word_hashes import Hashes, Places, extend_ngrams, hash_ngrams, hash_text_words

_FILTER_SLOTS_PER_PREFIX = 16  # hash table slots per n-gram: one in 16 other word sequences passes
CONTEXT_WORDS = 50  # before and after a short text, to search for another text of its item


class ItemSearch:
    """Searches texts for n-grams of evaluation items, given as a table of `hash_items`."""

    def __init__(self, table: pa.Table) -> None:
        described = json.loads(table.schema.metadata[b"polder"])
        self._lengths = range(described["minimum_words"], described["ngram"] + 1)
        self._hashes = table["hash"].to_numpy()
        self._words = table["words"].to_numpy()
        self._contexts = table["context"]
        self._needs_context = pc.list_value_length(table["context"]).to_numpy() > 0
        self._prefixes = np.unique(table["prefix"].to_numpy())
        slots = 1 << max(10, (len(self._prefixes) * _FILTER_SLOTS_PER_PREFIX).bit_length())
        self._mask = np.uint64(slots - 1)
        self._sieve = np.zeros(slots, dtype=bool)
        self._sieve[self._prefixes & self._mask] = True

    def _find_ngrams(self, words: Hashes, bounds: Places) -> Iterator[Numbers]:
        """Yield (document, row, position) of all n-grams in documents, shape (matches, 3).

        Positions are filtered by the hash of the shortest n-gram; the hash then grows word by word to each length.
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
                hashes = extend_ngrams(hashes, words[places + length - 1], length - 1)
            first = np.searchsorted(self._hashes, hashes)
            sizes = np.searchsorted(self._hashes, hashes, side="right") - first
            within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            columns = np.repeat(documents, sizes), np.repeat(first, sizes) + within, np.repeat(places, sizes)
            yield np.stack(columns, axis=1)

    def _has_context(self, words: Hashes, bounds: Places, ngram_hits: Numbers) -> npt.NDArray[np.bool_]:
        near = np.zeros(len(ngram_hits), dtype=bool)
        for number, (document, row, place) in enumerate(ngram_hits.tolist()):
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

    def find_matches(self, texts: list[str]) -> Numbers:
        """Return (index of the text, row of the n-gram) of all n-grams in texts, sorted, shape (matches, 2)."""
        if not len(self._hashes):
            return np.empty((0, 2), dtype=np.int64)
        words, bounds = hash_text_words(texts)
        ngram_hits = np.concatenate(list(self._find_ngrams(words, bounds)))
        open_to_doubt = np.flatnonzero(self._needs_context[ngram_hits[:, 1]])
        counts = np.ones(len(ngram_hits), dtype=bool)
        counts[open_to_doubt] = self._has_context(words, bounds, ngram_hits[open_to_doubt])
        return np.unique(ngram_hits[counts][:, :2], axis=0)


ItemHit = tuple[int, str, str, int, int]


class ContaminationDecision:
    """Decides which documents contain items: first count the matches of all units, then decide on each unit."""

    def __init__(self, table: pa.Table, settings: ContaminationThresholds) -> None:
        described = json.loads(table.schema.metadata[b"polder"])
        self._settings = settings
        self._texts = table["text"].to_numpy()
        self._ngrams = table["ngrams"].to_numpy()
        self._needed = np.maximum(1, np.ceil(settings.minimum_overlap * self._ngrams - 1e-9))
        self._names = table.select(["task", "item"])
        self._documents = np.zeros(table.num_rows, dtype=np.int64)
        self._tasks: dict[str, dict[str, int]] = described["tasks"]
        self._contaminated_items: defaultdict[str, set[str]] = defaultdict(set)
        self._items_with_common_n_grams: defaultdict[str, set[str]] = defaultdict(set)
        self._by_source: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._by_chance: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._bytes: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}

    def count_documents(self, matches: Numbers) -> None:
        """Count the documents of each n-gram; each document must be given once.

        Args:
            matches: (document, row of the n-gram), each pair once, shape (matches, 2).
        """
        self._documents += np.bincount(matches[:, 1], minlength=len(self._documents))

    def note_items(self, source: str, matches: Numbers) -> None:
        """Note the items with n-grams in a source that can contain items, including common n-grams.

        `find_contaminated` notes the matches that it gets; callers that drop common n-grams call this before.
        """
        if source not in self._settings.cannot_hold_items:
            for _, task, item in self._best_texts(matches):
                self._items_with_common_n_grams[task].add(item)

    def is_common_ngram(self, rows: Numbers) -> Any:
        """Return whether each n-gram is in more than `maximum_documents` documents, shape (rows,)."""
        return self._documents[rows] > self._settings.maximum_documents

    def _best_texts(self, matches: Numbers) -> dict[tuple[int, str, str], tuple[int, int]]:
        """Return (n-grams found, n-grams) by document, task and item, for the best matching text of the item."""
        keys, first, match_counts = np.unique(
            np.stack([matches[:, 0], self._texts[matches[:, 1]]], axis=1), axis=0, return_index=True, return_counts=True
        )
        row = matches[first, 1]
        enough = match_counts >= self._needed[row]
        names = self._names.take(pa.array(row[enough]))
        best: dict[tuple[int, str, str], tuple[int, int]] = {}
        for document, task, item, number, size in zip(
            keys[enough, 0].tolist(),
            names["task"].to_pylist(),
            names["item"].to_pylist(),
            match_counts[enough].tolist(),
            self._ngrams[row[enough]].tolist(),
            strict=True,
        ):
            best[document, task, item] = max(best.get((document, task, item), (0, 0)), (number, size))
        return best

    def find_contaminated(
        self, source: str, sizes: dict[str, int], languages: list[str], matches: Numbers
    ) -> list[ItemHit]:
        """Return (document, task, item, n-grams found, n-grams) of the items in a unit, sorted.

        Call `count_documents` for all units before.

        Args:
            source: the source of the unit; sources that cannot contain items have no hits.
            sizes: bytes of the unit's documents by language.
            languages: the language of the document of each match.
            matches: as for `count_documents`.
        """
        is_chance = source in self._settings.cannot_hold_items
        self._bytes[is_chance].update(sizes)
        of_document = dict(zip(matches[:, 0].tolist(), languages, strict=True))
        hits = sorted(
            (*key, *counts) for key, counts in self._best_texts(matches[~self.is_common_ngram(matches[:, 1])]).items()
        )
        if is_chance:
            for document, task, item, *_ in hits:
                self._by_chance[task, of_document[document]].add(item)
            return []
        self.note_items(source, matches)
        for _, task, item, *_ in hits:
            self._contaminated_items[task].add(item)
        for _, task in {hit[:2] for hit in hits}:
            self._by_source[task][source] += 1
        return hits

    def _estimate_chance(self, task: str, searched: int) -> dict[str, Any] | None:
        """Return the items found by chance, and the expected number of chance matches in other sources at this rate.

        The rate is known for languages with text that cannot contain items; `bytes_in_known_languages` counts the text
        in these.
        """
        if not self._settings.cannot_hold_items:
            return None
        chance_bytes = {language: size for language, size in self._bytes[True].items() if size}
        items_by_language = {language: len(self._by_chance[task, language]) for language in chance_bytes}
        elsewhere = self._bytes[False]
        expected = sum(
            items_by_language[language] * elsewhere[language] / size for language, size in chance_bytes.items()
        )
        return {
            "found": sum(items_by_language.values()),
            "bytes": sum(chance_bytes.values()),
            "expected": round(min(expected, searched), 2),
            "bytes_in_known_languages": sum(elsewhere[language] for language in chance_bytes),
        }

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return for each task the numbers of items, searched items, found items, and documents with items.

        `found_items` are the names of the found items, by number. `items_with_common_n_grams` counts items with common
        n-grams only. `by_chance` is None if no source is in `cannot_hold_items`.
        """
        return {
            task: {
                **counts,
                "found": len(self._contaminated_items[task]),
                "found_items": sorted(self._contaminated_items[task], key=lambda name: (len(name), name)),
                "items_with_common_n_grams": len(
                    self._items_with_common_n_grams[task] - self._contaminated_items[task]
                ),
                "documents": self._by_source[task].total(),
                "sources": dict(sorted(self._by_source[task].items())),
                "by_chance": self._estimate_chance(task, counts["searched"]),
            }
            for task, counts in sorted(self._tasks.items())
        }
