"""Datatrove blocks with Gopher's rules on quality (Rae et al. 2021, A.1.1) and repetition (table A1)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt
from datatrove.data import Document

from pipeline.corpus.documents import EMPTY
from pipeline.corpus.rules.rule_block import DocumentMeasures, FilterRule, MeasureBlock
from pipeline.corpus.rules.settings import Quality, Repetition
from pipeline.corpus.text.cached_numba_compilation import cached_njit
from pipeline.corpus.text.pretoken_ids import Integers, Numbers
from pipeline.corpus.text.word_splitting import LETTER, MARKS

RUNNING_WORDS, RUNNING_STOP_WORD_SHARE = 5, 0.15
"""The least number of words of a line of running text, and the least share of stop words in them."""
_LONGEST_CODE_LINE = 300
_WORD = re.compile(r"[^\W\d_]+")
_CODE_LINE = re.compile(
    r"""
    (?:[ ]{4}|\t)\s*[^\s|>*+\d!?A-Z-]                  # a block of code: no item, row of a table or sentence
    | \s*(?:-[ ])?["']?[\w$.@/-]+["']?\s*:(?:\s|$)      # a field of YAML or JSON
    | \s*(?:\#|//|/\*|<|@|"{3}|from\s\S+\simport\s)   # a comment, a heading, a tag or an import
    | .*(?:[{}(\[=;]$ | \w\( | ["']\s*: | ["'][,\])]+$ | \s[-+=!<>:|&]*=[>=]*\s | ->)
    """,
    re.VERBOSE,
)


class ProseMeasures(DocumentMeasures[Quality]):
    """Measures of Gopher's quality rules; words include punctuation unless stated otherwise."""

    @cached_property
    def is_word_W(self) -> npt.NDArray[np.bool_]:
        """Whether each word is not only punctuation."""
        return np.asarray(self.words.word_property_bits_W & MARKS == 0)

    @cached_property
    def total_word_count(self) -> int:
        """The number of words, including punctuation; at least 1."""
        return max(1, len(self.words.word_property_bits_W))

    @cached_property
    def lines(self) -> list[str]:
        """The lines, at least one."""
        return self.words.lines or [""]

    @cached_property
    def ellipsis_count(self) -> int:
        """The number of ellipses."""
        return self.text.count("...") + self.text.count("…")

    @cached_property
    def alphabetic_word_count(self) -> int:
        """The number of words with a letter."""
        return int((self.words.word_property_bits_W & LETTER != 0).sum())

    def word_count(self) -> int:
        """Return the number of words that are not punctuation."""
        return int(self.is_word_W.sum())

    def mean_word_length(self) -> float:
        """Return the mean number of characters of the words that are not punctuation."""
        return int(self.words.lengths_W[self.is_word_W].sum()) / max(1, self.word_count())

    def hash_signs_per_word(self) -> float:
        """Return the number of hash signs per word."""
        return self.text.count("#") / self.total_word_count

    def ellipses_per_word(self) -> float:
        """Return the number of ellipses per word."""
        return self.ellipsis_count / self.total_word_count

    def code_character_share(self) -> float:
        """Return the share of braces, angle brackets and semicolons in the characters that are not white space."""
        blank = sum(map(self.text.count, " \n\t"))
        return sum(map(self.text.count, "{}<>;")) / max(1, len(self.text) - blank)

    def _share_of_lines(self, marks: int, largest: float | None, has_mark: Callable[[str], bool]) -> float:
        """Return the share of lines with a mark, or its upper bound, marks per line, if that is below the threshold."""
        share = marks / len(self.lines)
        if largest is not None and share <= largest:
            return share
        return sum(map(has_mark, self.lines)) / len(self.lines)

    def bullet_line_share(self) -> float:
        """Return the share of lines that begin with a bullet."""
        marks = self.text.count("•") + self.text.count("-")
        return self._share_of_lines(marks, self.rules.bullet_lines, lambda line: line.lstrip().startswith(("•", "-")))

    def ellipsis_line_share(self) -> float:
        """Return the share of lines that end in an ellipsis."""
        return self._share_of_lines(
            self.ellipsis_count, self.rules.ellipsis_lines, lambda line: line.rstrip().endswith(("...", "…"))
        )

    def alphabetic_word_share(self) -> float:
        """Return the share of words with a letter."""
        return self.alphabetic_word_count / self.total_word_count

    def stop_word_count(self) -> int:
        """Return the number of stop words."""
        count = self.words.count_occurrences if self.rules.repeated_stop_words else self.words.count_distinct_matches
        return count(set(self.rules.stop_words))

    def stop_word_share(self) -> float:
        """Return the share of the words with a letter that are stop words."""
        written = {form for word in self.rules.stop_words for form in (word, word.capitalize(), word.upper())}
        return self.words.count_occurrences(written) / max(1, self.alphabetic_word_count)

    def running_word_share(self) -> float:
        """Return the share of the words that are in lines of running text: not of code, fields, menus or links."""
        stop_words = frozenset(self.rules.stop_words)
        total = running = 0
        for line in self.lines:
            line = line.rstrip(" \\")  # a backslash breaks a line of Markdown
            words = _WORD.findall(line.lower())
            total += len(words)
            stop_word_count = sum(word in stop_words for word in words)
            if len(words) >= RUNNING_WORDS and stop_word_count >= RUNNING_STOP_WORD_SHARE * len(words):
                running += len(words) * (len(line) > _LONGEST_CODE_LINE or not _CODE_LINE.match(line))
        return running / max(1, total)


class GopherQuality(MeasureBlock[Quality]):
    """Removes documents that are not ordinary prose.

    Equals datatrove's GopherQualityFilter for the same thresholds and words.
    """

    name = "Gopher quality"
    section = "quality"
    measures = ProseMeasures
    filter_rules = (
        FilterRule("too_few_words", ProseMeasures.word_count, least="minimum_words"),
        FilterRule("too_many_words", ProseMeasures.word_count, most="maximum_words"),
        FilterRule("short_words", ProseMeasures.mean_word_length, least="minimum_mean_word_length"),
        FilterRule("long_words", ProseMeasures.mean_word_length, most="maximum_mean_word_length"),
        FilterRule("hash_signs", ProseMeasures.hash_signs_per_word, most="symbol_ratio"),
        FilterRule("ellipses", ProseMeasures.ellipses_per_word, most="symbol_ratio"),
        FilterRule("code_characters", ProseMeasures.code_character_share, most="code_characters"),
        FilterRule("bullet_lines", ProseMeasures.bullet_line_share, most="bullet_lines"),
        FilterRule("ellipsis_lines", ProseMeasures.ellipsis_line_share, most="ellipsis_lines"),
        FilterRule("few_alphabetic_words", ProseMeasures.alphabetic_word_share, least="alphabetic_words"),
        FilterRule("few_stop_words", ProseMeasures.stop_word_count, least="minimum_stop_words"),
        FilterRule("small_stop_word_share", ProseMeasures.stop_word_share, least="stop_word_share"),
        FilterRule("little_running_text", ProseMeasures.running_word_share, least="running_words"),
    )


def split_at_breaks(text: str, breaks: str) -> list[str]:
    """Return the parts of a text between runs of line feeds at least as long as `breaks`."""
    if f"{breaks}\n" in text:
        return re.split(rf"{breaks}\n*", text)
    return text.split(breaks)


def count_duplicates(parts: list[str]) -> tuple[int, int]:
    """Return the number of parts that occurred before, and their characters."""
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


@cached_njit
def _find_repeated_pairs(numbers_W: Integers, places: Integers, first_W: Integers, counts_W: Integers) -> int:
    """Find positions with a pair of numbers that also occurs at another position.

    Sets in `first_W` the first position with the pair of each position, and in `counts_W` the occurrences of the pair
    at that first position. Moves the positions with a repeated pair to the front of `places`, and returns their number.
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


@cached_njit
def measure_ngram_repetition(
    numbers_W: Numbers, lengths_W: Numbers, largest: int, within: int
) -> tuple[Numbers, Numbers]:
    """Return the characters of the most common n-gram and of repeated n-grams, for n from 2 to `largest`.

    The first array counts all occurrences of the most common n-gram, the first among equals, including spaces. The
    second counts n-grams that also began at most `within` words before, from left to right without overlap. Index n of
    an array is the length n; values for n above the number of words are 0. A repeated n-gram contains two repeated
    shorter ones, so each length checks fewer positions.
    """
    size = len(numbers_W)
    top, repeated = np.zeros(largest + 1, dtype=np.int64), np.zeros(largest + 1, dtype=np.int64)
    ends = np.zeros(size + 1, dtype=np.int64)
    for word in range(size):
        ends[word + 1] = ends[word] + lengths_W[word]
    shorter = numbers_W.astype(np.int32)  # the first position of the (n-1)-gram at each position
    first_W, counts_W = np.zeros(size, dtype=np.int32), np.zeros(size, dtype=np.int32)
    places = np.arange(max(0, size - 1)).astype(np.int32)
    # At the first position of an n-gram, the last position where it was read, plus n times the size of the text.
    read_W = np.zeros(size, dtype=np.int64)
    for n in range(2, min(largest, size) + 1):
        kept = _find_repeated_pairs(shorter, places, first_W, counts_W)
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
            before = read_W[first_W[place]] - n * size
            read_W[first_W[place]] = n * size + place
            if before >= 0 and place - before <= within:
                free = int(place) + n
                repeated[n] += ends[free] - ends[place]
        follows = 0
        for index in range(kept - 1):
            if places[index + 1] == places[index] + 1:
                places[follows] = places[index]
                follows += 1
        shorter, first_W = first_W, shorter
        places = places[:follows]
    return top, repeated


class RepetitionMeasures(DocumentMeasures[Repetition]):
    """Measures of Gopher's repetition rules: shares of a document that occurred before in it."""

    @cached_property
    def duplicate_paragraph_counts(self) -> tuple[int, int, int]:
        """The number of paragraphs, of those that occurred before, and of the characters of these."""
        paragraphs = split_at_breaks(self.text.strip(), "\n\n")
        return len(paragraphs), *count_duplicates(paragraphs)

    @cached_property
    def duplicate_line_counts(self) -> tuple[int, int, int]:
        """The number of lines, of those that occurred before, and of the characters of these."""
        lines = split_at_breaks(self.text, "\n")
        return len(lines), *count_duplicates(lines)

    @cached_property
    def ngram_repetition_character_counts(self) -> tuple[Numbers, Numbers]:
        """The characters of the most common n-gram and of repeated n-grams, for each n of a rule."""
        longest = max([1, *self.rules.top_n_grams, *self.rules.duplicate_n_grams])
        within = self.rules.within_words or len(self.words.numbers_W)
        return measure_ngram_repetition(self.words.numbers_W, self.words.lengths_W, longest, within)

    def duplicate_paragraph_share(self) -> float:
        """Return the share of paragraphs that occurred before."""
        total, number, _ = self.duplicate_paragraph_counts
        return number / total

    def duplicate_paragraph_character_share(self) -> float:
        """Return the share of characters in paragraphs that occurred before."""
        return self.duplicate_paragraph_counts[2] / len(self.text)

    def duplicate_line_share(self) -> float:
        """Return the share of lines that occurred before."""
        total, number, _ = self.duplicate_line_counts
        return number / total

    def duplicate_line_character_share(self) -> float:
        """Return the share of characters in lines that occurred before."""
        return self.duplicate_line_counts[2] / len(self.text)

    def top_n_gram_character_share(self, n: int) -> float:
        """Return the share of characters in all occurrences of the commonest n-gram."""
        return int(self.ngram_repetition_character_counts[0][n]) / len(self.text)

    def duplicate_n_gram_character_share(self, n: int) -> float:
        """Return the share of characters in n-grams that occurred before."""
        return int(self.ngram_repetition_character_counts[1][n]) / len(self.text)


class GopherRepetition(MeasureBlock[Repetition]):
    """Removes documents with too much repetition.

    Equals datatrove's GopherRepetitionFilter for the same thresholds and words, except that n-grams are equal only if
    all their words are.
    """

    name = "Gopher repetition"
    section = "repetition"
    measures = RepetitionMeasures
    filter_rules = (
        FilterRule("duplicate_paragraphs", RepetitionMeasures.duplicate_paragraph_share, most="duplicate_paragraphs"),
        FilterRule(
            "duplicate_paragraph_characters",
            RepetitionMeasures.duplicate_paragraph_character_share,
            most="duplicate_paragraph_characters",
        ),
        FilterRule("duplicate_lines", RepetitionMeasures.duplicate_line_share, most="duplicate_lines"),
        FilterRule(
            "duplicate_line_characters",
            RepetitionMeasures.duplicate_line_character_share,
            most="duplicate_line_characters",
        ),
        FilterRule("top_{n}_gram", RepetitionMeasures.top_n_gram_character_share, most="top_n_grams"),
        FilterRule(
            "duplicate_{n}_grams", RepetitionMeasures.duplicate_n_gram_character_share, most="duplicate_n_grams"
        ),
    )

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        return super().filter(doc) if doc.text else (False, EMPTY)
