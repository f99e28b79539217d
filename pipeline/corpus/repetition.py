"""The datatrove block that removes repetitive documents: Gopher's repetition rules (Rae et al. 2021, table A1)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.corpus.reader import RemovedDocuments
from pipeline.corpus.settings import Repetition
from pipeline.corpus.words import Words, split

_PARAGRAPHS = re.compile(r"\n{2,}")
_LINES = re.compile(r"\n+")


def _duplicates(parts: list[str]) -> tuple[int, int]:
    """Return how many parts occurred before, and their characters."""
    seen: set[str] = set()
    number = characters = 0
    for part in parts:
        if part in seen:
            number += 1
            characters += len(part)
        else:
            seen.add(part)
    return number, characters


class NGrams:
    """The n-grams of a text of W words for growing n, as arrays of whole numbers of which equal ones are equal."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self._by_length = {1: words.numbers_W}

    def numbers(self, n: int) -> npt.NDArray[np.int64]:
        """Return one number for each n-gram, shape (W - n + 1,); an n-gram is the one before it and one more word."""
        if n not in self._by_length:
            shorter = self.numbers(n - 1)
            pairs = shorter[:-1] * len(self.words.counts) + self.words.numbers_W[n - 1 :]
            self._by_length[n] = np.unique(pairs, return_inverse=True)[1]
        return self._by_length[n]

    def top_characters(self, n: int) -> int:
        """Return the characters of all occurrences of the commonest n-gram, spaces included, the first among equals."""
        _, first, counts = np.unique(self.numbers(n), return_index=True, return_counts=True)
        count = int(counts.max())
        place = int(first[counts == count].min())
        return count * (int(self.words.lengths_W[place : place + n].sum()) + n - 1)

    def repeated_bound(self, n: int) -> int:
        """Return the characters of words in n-grams that occurred before: no fewer than repeat for n or more words."""
        numbers = self.numbers(n)
        again = np.ones(len(numbers), dtype=bool)
        again[np.unique(numbers, return_index=True)[1]] = False
        covered = np.convolve(again, np.ones(n, dtype=np.int64)) > 0
        return int(self.words.lengths_W[covered].sum())

    def repeated_characters(self, n: int) -> int:
        """Return the characters of the n-grams that occurred before, read from left to right without overlap."""
        numbers: list[int] = self.numbers(n).tolist()
        ends = np.concatenate([[0], np.cumsum(self.words.lengths_W)]).tolist()
        seen: set[int] = set()
        characters = place = 0
        while place < len(numbers):
            if numbers[place] in seen:
                characters += ends[place + n] - ends[place]
                place += n
            else:
                seen.add(numbers[place])
                place += 1
        return characters


def _shares(text: str, rules: Repetition) -> Iterator[tuple[str, float, float | None]]:
    """Yield reason, share and largest allowed share of each rule, the cheap ones first."""
    paragraphs = _PARAGRAPHS.split(text.strip())
    number, characters = _duplicates(paragraphs)
    yield "duplicate_paragraphs", number / len(paragraphs), rules.duplicate_paragraphs
    yield "duplicate_paragraph_characters", characters / len(text), rules.duplicate_paragraph_characters
    lines = _LINES.split(text)
    number, characters = _duplicates(lines)
    yield "duplicate_lines", number / len(lines), rules.duplicate_lines
    yield "duplicate_line_characters", characters / len(text), rules.duplicate_line_characters
    n_grams = NGrams(split(text))
    size = len(n_grams.words.words)
    for n, largest in rules.top_n_grams.items():
        if n <= size:
            yield f"top_{n}_gram", n_grams.top_characters(n) / len(text), largest
    lengths = [n for n in rules.duplicate_n_grams if n <= size]
    if lengths:
        bound = n_grams.repeated_bound(lengths[0]) / len(text)
        for n in lengths:
            largest = rules.duplicate_n_grams[n]
            if bound > largest:
                yield f"duplicate_{n}_grams", n_grams.repeated_characters(n) / len(text), largest


class GopherRepetition(BaseFilter):  # type: ignore[misc]
    """Removes a document in which too much is said twice, by the rules of the language in its metadata.

    Decides as datatrove's GopherRepetitionFilter does at the same thresholds and words, except that n-grams are equal
    only where each of their words is.
    """

    name = "Gopher repetition"

    def __init__(self, rules: Mapping[str, Repetition], exclusion_writer: RemovedDocuments | None = None) -> None:
        super().__init__(exclusion_writer)
        self.rules = dict(rules)

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """Return whether the document is kept, or False and the reason."""
        if not doc.text:
            doc.metadata["filter_value"] = "0 characters"
            return False, "empty"
        for reason, share, largest in _shares(doc.text, self.rules[doc.metadata["language"]]):
            if largest is not None and share > largest:
                doc.metadata["filter_value"] = f"{share:.4f}"
                return False, reason
        return True
