"""The datatrove block that removes repetitive documents: Gopher's repetition rules (Rae et al. 2021, table A1)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from datatrove.data import Document

from pipeline.corpus.rules.rule_block import Check, MeasureBlock
from pipeline.corpus.rules.settings import Repetition
from pipeline.corpus.text.chunks import Integers, Numbers
from pipeline.corpus.text.compiled import compiled


def split_at(text: str, breaks: str) -> list[str]:
    """Return the parts of a text between stretches of at least so many line feeds, as a regular expression would."""
    if f"{breaks}\n" in text:
        return re.split(rf"{breaks}\n*", text)
    return text.split(breaks)


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


@compiled
def _first_places(numbers_W: Integers, places: Integers, first_W: Integers, counts_W: Integers) -> int:
    """Find the places, of those given in order, at which the same pair of numbers stands that stood before.

    Sets for each place the first one with its pair, and for each such first place how many have that pair; returns how
    many places have a pair that stands at another one as well, and moves these to the front of `places`.
    """
    size = 1
    while size < 2 * len(places):
        size *= 2
    slots = np.full(size, -1, dtype=np.int32)
    for place in places:
        one, other = numbers_W[place], numbers_W[place + 1]
        mixed = (np.uint64(one) << np.uint64(32) | np.uint64(other)) * np.uint64(0x9E3779B97F4A7C15)
        slot = np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(size - 1))
        while slots[slot] >= 0 and (numbers_W[slots[slot]] != one or numbers_W[slots[slot] + 1] != other):
            slot = (slot + 1) & (size - 1)
        if slots[slot] < 0:
            slots[slot] = place
            counts_W[place] = 0
        first_W[place] = slots[slot]
        counts_W[slots[slot]] += 1
    kept = 0
    for place in places:
        if counts_W[first_W[place]] > 1:
            places[kept] = place
            kept += 1
    return kept


@compiled
def repeated_n_grams(numbers_W: Numbers, lengths_W: Numbers, largest: int) -> tuple[Numbers, Numbers]:
    """Return the characters of the commonest n-gram and of the n-grams that occurred before, for n up to `largest`.

    The first counts all occurrences of the commonest, the first among equals, spaces included. The second counts the
    n-grams that occurred before, read from left to right without overlap. Both have n = 2 at index 2; for n above the
    number of words they are 0. An n-gram that occurs twice has within it two shorter ones that do, so that ever fewer
    places are looked at.
    """
    size = len(numbers_W)
    top, repeated = np.zeros(largest + 1, dtype=np.int64), np.zeros(largest + 1, dtype=np.int64)
    ends = np.zeros(size + 1, dtype=np.int64)
    for word in range(size):
        ends[word + 1] = ends[word] + lengths_W[word]
    shorter = numbers_W.astype(np.int32)  # the first place of the n-gram one shorter at each place
    first_W, counts_W = np.zeros(size, dtype=np.int32), np.zeros(size, dtype=np.int32)
    places = np.arange(max(0, size - 1)).astype(np.int32)
    visited_W = np.zeros(size, dtype=np.int32)  # the n for which the n-gram that stands here first was read
    for n in range(2, min(largest, size) + 1):
        kept = _first_places(shorter, places, first_W, counts_W)
        places = places[:kept]
        count, commonest = 1, 0
        for place in places:
            if first_W[place] == place and counts_W[place] > count:
                count, commonest = int(counts_W[place]), int(place)
        top[n] = (ends[commonest + n] - ends[commonest] + n - 1) * count
        free = 0
        for place in places:
            if place < free:
                continue
            if visited_W[first_W[place]] == n:
                free = int(place) + n
                repeated[n] += ends[free] - ends[place]
            else:
                visited_W[first_W[place]] = n
        follows = 0
        for index in range(kept - 1):
            if places[index + 1] == places[index] + 1:
                places[follows] = places[index]
                follows += 1
        shorter, first_W = first_W, shorter
        places = places[:follows]
    return top, repeated


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
        paragraphs = split_at(text.strip(), "\n\n")
        number, characters = duplicates(paragraphs)
        yield "duplicate_paragraphs", number / len(paragraphs), None, rules.duplicate_paragraphs
        yield "duplicate_paragraph_characters", characters / len(text), None, rules.duplicate_paragraph_characters
        lines = split_at(text, "\n")
        number, characters = duplicates(lines)
        yield "duplicate_lines", number / len(lines), None, rules.duplicate_lines
        yield "duplicate_line_characters", characters / len(text), None, rules.duplicate_line_characters
        words = self.words(doc)
        size, longest = len(words.numbers_W), max([1, *rules.top_n_grams, *rules.duplicate_n_grams])
        top, repeated = repeated_n_grams(words.numbers_W, words.lengths_W, longest)
        for n, largest in rules.top_n_grams.items():
            if n <= size:
                yield f"top_{n}_gram", int(top[n]) / len(text), None, largest
        for n, largest in rules.duplicate_n_grams.items():
            if n <= size:
                yield f"duplicate_{n}_grams", int(repeated[n]) / len(text), None, largest
