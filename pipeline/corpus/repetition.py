"""The datatrove block that removes repetitive documents: Gopher's repetition rules (Rae et al. 2021, table A1)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from datatrove.data import Document

from pipeline.corpus.rule_block import Check, MeasureBlock
from pipeline.corpus.rules import Repetition
from pipeline.corpus.words import Numbers, Words

_PARAGRAPHS = re.compile(r"\n{2,}")
_LINES = re.compile(r"\n+")


def duplicates(parts: list[str]) -> tuple[int, int]:
    """Return how many parts occurred before, and their characters."""
    if len(set(parts)) == len(parts):
        return 0, 0
    seen: set[str] = set()
    number = characters = 0
    for part in parts:
        if part in seen:
            number += 1
            characters += len(part)
        else:
            seen.add(part)
    return number, characters


@dataclass(frozen=True)
class Repeated:
    """The R places at which an n-gram stands that the text has more than once, in order, and the group of each.

    Equal n-grams are one group; `counts_G` and `first_G` are the number and the first place of its members.
    """

    places_R: Numbers
    groups_R: Numbers
    counts_G: Numbers
    first_G: Numbers


def _repeated(keys: Numbers, places: Numbers, key_bound: int) -> Repeated:
    """Group places, which are in order, by keys, which are less than `key_bound`."""
    size = len(places)
    bits = size.bit_length()
    if key_bound << bits < 2**63:  # key and place in one number: sorting numbers is faster than sorting an index
        packed = np.sort(keys << bits | np.arange(size))
        keys, order = packed >> bits, packed & (1 << bits) - 1
    else:
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
    begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if size else np.zeros(0, dtype=np.int64)
    counts = np.diff(np.append(begins, size))
    again = counts > 1
    chosen = order[np.repeat(again, counts)]
    group_of = np.repeat(np.arange(int(again.sum())), counts[again])
    back = np.argsort(chosen)
    return Repeated(places[chosen[back]], group_of[back], counts[again], places[order[begins[again]]])


class NGrams:
    """The n-grams of a text of W words that occur more than once, for growing n.

    An n-gram that occurs twice has within it two shorter ones that do, so that ever fewer places are looked at.
    """

    def __init__(self, words: Words) -> None:
        self.size = len(words.numbers_W)
        self.lengths_W = words.lengths_W
        self._ends = np.concatenate([[0], np.cumsum(self.lengths_W)])
        numbers_W = words.numbers_W
        pairs = numbers_W[:-1] * words.bound + numbers_W[1:]
        self._by_length = {2: _repeated(pairs, np.arange(len(pairs)), words.bound**2)}

    def repeated(self, n: int) -> Repeated:
        """Return where the n-grams stand that occur more than once; n is at least 2."""
        if n not in self._by_length:
            shorter = self.repeated(n - 1)
            follows = np.flatnonzero(np.diff(shorter.places_R) == 1)
            bound = len(shorter.counts_G)
            keys = shorter.groups_R[follows] * bound + shorter.groups_R[follows + 1]
            self._by_length[n] = _repeated(keys, shorter.places_R[follows], bound**2)
        return self._by_length[n]

    def top_characters(self, n: int) -> int:
        """Return the characters of all occurrences of the commonest n-gram, spaces included, the first among equals."""
        found = self.repeated(n)
        count = int(found.counts_G.max(initial=1))
        place = int(found.first_G[found.counts_G == count].min()) if count > 1 else 0
        return (int(self._ends[place + n] - self._ends[place]) + n - 1) * count

    def repeated_bound(self, n: int) -> int:
        """Return the characters of the words in n-grams that occurred before: no less than `repeated_characters`."""
        found = self.repeated(n)
        change = np.zeros(self.size + 1, dtype=np.int64)
        again = np.ones(len(found.places_R), dtype=bool)
        again[np.searchsorted(found.places_R, found.first_G)] = False
        places = found.places_R[again]
        np.add.at(change, places, 1)
        np.add.at(change, places + n, -1)
        return int(self.lengths_W[np.cumsum(change[:-1]) > 0].sum())

    def repeated_characters(self, n: int) -> int:
        """Return the characters of the n-grams that occurred before, read from left to right without overlap."""
        found = self.repeated(n)
        seen: set[int] = set()
        characters = free = 0
        for place, group in zip(found.places_R.tolist(), found.groups_R.tolist(), strict=True):
            if place < free:
                continue
            if group in seen:
                free = place + n
                characters += int(self._ends[free] - self._ends[place])
            else:
                seen.add(group)
        return characters


class GopherRepetition(MeasureBlock[Repetition]):
    """Removes a document in which too much is said twice.

    Decides as datatrove's GopherRepetitionFilter does at the same thresholds and words, except that n-grams are equal
    only where each of their words is.
    """

    name = "Gopher repetition"

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """Return whether the document is kept, or False and the reason."""
        return super().filter(doc) if doc.text else (False, "empty")

    def checks(self, doc: Document, rules: Repetition) -> Iterator[Check]:
        """Yield the checks of a document, the cheap ones first."""
        text = doc.text
        paragraphs = _PARAGRAPHS.split(text.strip())
        number, characters = duplicates(paragraphs)
        yield "duplicate_paragraphs", number / len(paragraphs), None, rules.duplicate_paragraphs
        yield "duplicate_paragraph_characters", characters / len(text), None, rules.duplicate_paragraph_characters
        lines = _LINES.split(text)
        number, characters = duplicates(lines)
        yield "duplicate_lines", number / len(lines), None, rules.duplicate_lines
        yield "duplicate_line_characters", characters / len(text), None, rules.duplicate_line_characters
        n_grams = NGrams(self.words(doc))
        for n, largest in rules.top_n_grams.items():
            if n <= n_grams.size:
                yield f"top_{n}_gram", n_grams.top_characters(n) / len(text), None, largest
        lengths = [n for n in rules.duplicate_n_grams if n <= n_grams.size]
        bound = n_grams.repeated_bound(lengths[0]) / len(text) if lengths else 0
        for n in lengths:
            largest = rules.duplicate_n_grams[n]
            if bound > largest:
                yield f"duplicate_{n}_grams", n_grams.repeated_characters(n) / len(text), None, largest
