"""Finds the n-grams of evaluation items in texts, and decides which documents hold an item.

An n-gram that stands in many documents is a phrase, as in GPT-3's own decontamination (Brown et al. 2020, appendix C:
those in more than 10 documents do not count). What is found in sources that cannot hold the items is chance.
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

from pipeline.corpus.items.item_ngrams import Numbers
from pipeline.corpus.items.settings import ContaminationThresholds
from pipeline.corpus.text.word_hashes import Hashes, Places, extend_ngrams, hash_ngrams, hash_texts

_FILTER_SLOTS_PER_PREFIX = 16  # slots of the sieve for each n-gram: one in 16 other runs of words passes it
CONTEXT_WORDS = 50  # before and behind a short text, in which another text of its item has to stand


class ItemSearch:
    """The n-grams of evaluation items, to be found in texts: a table as `hash_items` makes it."""

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
                hashes = extend_ngrams(hashes, words[places + length - 1], length - 1)
            first = np.searchsorted(self._hashes, hashes)
            sizes = np.searchsorted(self._hashes, hashes, side="right") - first
            within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            columns = np.repeat(documents, sizes), np.repeat(first, sizes) + within, np.repeat(places, sizes)
            yield np.stack(columns, axis=1)

    def _has_context(self, words: Hashes, bounds: Places, found: Numbers) -> npt.NDArray[np.bool_]:
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

    def find_matches(self, texts: list[str]) -> Numbers:
        """Return (number of the text, row of the n-gram) of all n-grams that texts hold, sorted, shape (matches, 2)."""
        if not len(self._hashes):
            return np.empty((0, 2), dtype=np.int64)
        words, bounds = hash_texts(texts)
        found = np.concatenate(list(self._find_ngrams(words, bounds)))
        open_to_doubt = np.flatnonzero(self._needs_context[found[:, 1]])
        counts = np.ones(len(found), dtype=bool)
        counts[open_to_doubt] = self._has_context(words, bounds, found[open_to_doubt])
        return np.unique(found[counts][:, :2], axis=0)


ItemHit = tuple[int, str, str, int, int]


class ContaminationDecision:
    """Which items stand in which documents: first all matches are counted, then those of each unit are judged."""

    def __init__(self, table: pa.Table, settings: ContaminationThresholds) -> None:
        described = json.loads(table.schema.metadata[b"polder"])
        self._settings = settings
        self._texts = table["text"].to_numpy()
        self._ngrams = table["ngrams"].to_numpy()
        self._needed = np.maximum(1, np.ceil(settings.minimum_overlap * self._ngrams - 1e-9))
        self._names = table.select(["task", "item"])
        self._documents = np.zeros(table.num_rows, dtype=np.int64)
        self._tasks: dict[str, dict[str, int]] = described["tasks"]
        self._found: defaultdict[str, set[str]] = defaultdict(set)
        self._phrases: defaultdict[str, set[str]] = defaultdict(set)
        self._by_source: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._by_chance: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._bytes: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}

    def count_documents(self, matches: Numbers) -> None:
        """Count in how many documents each n-gram stands; every document comes once.

        Args:
            matches: (document, row of the n-gram), each pair once, shape (matches, 2).
        """
        self._documents += np.bincount(matches[:, 1], minlength=len(self._documents))

    def note_items(self, source: str, matches: Numbers) -> None:
        """Note the items that documents of a source which can hold items have n-grams of, phrases included.

        `judge` does so of the matches that it gets; who gives it no phrases calls this before.
        """
        if source not in self._settings.cannot_hold_items:
            for _, task, item in self._best_texts(matches):
                self._phrases[task].add(item)

    def is_common_ngram(self, rows: Numbers) -> Any:
        """Return which n-grams were counted in too many documents to mark one, shape (rows,)."""
        return self._documents[rows] > self._settings.maximum_documents

    def _best_texts(self, matches: Numbers) -> dict[tuple[int, str, str], tuple[int, int]]:
        """Return (n-grams found, n-grams) by document, task and item: of that text of which most were found."""
        keys, first, found = np.unique(
            np.stack([matches[:, 0], self._texts[matches[:, 1]]], axis=1), axis=0, return_index=True, return_counts=True
        )
        row = matches[first, 1]
        enough = found >= self._needed[row]
        names = self._names.take(pa.array(row[enough]))
        best: dict[tuple[int, str, str], tuple[int, int]] = {}
        for document, task, item, number, size in zip(
            keys[enough, 0].tolist(),
            names["task"].to_pylist(),
            names["item"].to_pylist(),
            found[enough].tolist(),
            self._ngrams[row[enough]].tolist(),
            strict=True,
        ):
            best[document, task, item] = max(best.get((document, task, item), (0, 0)), (number, size))
        return best

    def find_contaminated(
        self, source: str, sizes: dict[str, int], languages: list[str], matches: Numbers
    ) -> list[ItemHit]:
        """Return (document, task, item, n-grams found, n-grams) of the items in a unit, sorted, after all are counted.

        Args:
            source: of the unit; where it cannot hold items there are none.
            sizes: the bytes of the unit's documents by language.
            languages: of the document of each match.
            matches: as `count` takes them.
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
            self._found[task].add(item)
        for _, task in {hit[:2] for hit in hits}:
            self._by_source[task][source] += 1
        return hits

    def _estimate_chance(self, task: str, searched: int) -> dict[str, Any] | None:
        """Return what was found by chance, and how many of the items found elsewhere are chance at the same rate.

        Only languages in which there is text that cannot hold items tell something: `bytes_told` is what is in these.
        """
        if not self._settings.cannot_hold_items:
            return None
        known = {language: size for language, size in self._bytes[True].items() if size}
        found = {language: len(self._by_chance[task, language]) for language in known}
        elsewhere = self._bytes[False]
        expected = sum(found[language] * elsewhere[language] / size for language, size in known.items())
        return {
            "found": sum(found.values()),
            "bytes": sum(known.values()),
            "expected": round(min(expected, searched), 2),
            "bytes_told": sum(elsewhere[language] for language in known),
        }

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return for each task: its items, those searched for, those found, and the documents that they stand in.

        `found_items` are the names of those found, in the order of their numbers; of `phrases`, too many documents hold
        what was found; `by_chance` is None where no source is known to hold no items.
        """
        return {
            task: {
                **counts,
                "found": len(self._found[task]),
                "found_items": sorted(self._found[task], key=lambda name: (len(name), name)),
                "phrases": len(self._phrases[task] - self._found[task]),
                "documents": self._by_source[task].total(),
                "sources": dict(sorted(self._by_source[task].items())),
                "by_chance": self._estimate_chance(task, counts["searched"]),
            }
            for task, counts in sorted(self._tasks.items())
        }
