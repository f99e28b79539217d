"""The datatrove block that removes what is not ordinary prose: Gopher's quality rules (Rae et al. 2021, A.1.1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pipeline.corpus.rules.rule_block import Judged, MeasureBlock, Rule
from pipeline.corpus.rules.settings import Quality
from pipeline.corpus.text.words import LETTER, MARKS


class Prose(Judged[Quality]):
    """What Gopher's quality rules measure; a word is one of all words where it is not said that marks are none."""

    @cached_property
    def plain_W(self) -> npt.NDArray[np.bool_]:
        """Whether each word is more than punctuation."""
        plain_W: npt.NDArray[np.bool_] = self.words.kinds_W & MARKS == 0
        return plain_W

    @cached_property
    def size(self) -> int:
        """The number of words, punctuation included; 1 where there are none."""
        return max(1, len(self.words.kinds_W))

    @cached_property
    def lines(self) -> list[str]:
        """The lines, at least one."""
        return self.words.lines or [""]

    @cached_property
    def number(self) -> int:
        """The number of words that are not punctuation."""
        return int(self.plain_W.sum())

    @cached_property
    def mean_length(self) -> float:
        """The mean number of characters of the words that are not punctuation."""
        return int(self.words.lengths_W[self.plain_W].sum()) / max(1, self.number)

    @cached_property
    def ellipsis_marks(self) -> int:
        """The number of ellipses."""
        return self.text.count("...") + self.text.count("…")

    @cached_property
    def alphabetic(self) -> int:
        """The number of words with a letter."""
        return int((self.words.kinds_W & LETTER != 0).sum())

    def plain_words(self) -> int:
        """Return the number of words that are not punctuation."""
        return self.number

    def mean_word_length(self) -> float:
        """Return the mean number of characters of the words that are not punctuation."""
        return self.mean_length

    def hash_signs(self) -> float:
        """Return the number of hash signs per word."""
        return self.text.count("#") / self.size

    def ellipses(self) -> float:
        """Return the number of ellipses per word."""
        return self.ellipsis_marks / self.size

    def code_characters(self) -> float:
        """Return the share of braces, angle brackets and semicolons in the characters that are not white space."""
        blank = sum(map(self.text.count, " \n\t"))
        return sum(map(self.text.count, "{}<>;")) / max(1, len(self.text) - blank)

    def _share_of_lines(self, marks: int, largest: float | None, has_mark: Callable[[str], bool]) -> float:
        """Return the share of lines that have a mark; that of the marks, which is no less, where it is small enough."""
        share = marks / len(self.lines)
        if largest is not None and share <= largest:
            return share
        return sum(map(has_mark, self.lines)) / len(self.lines)

    def bullet_lines(self) -> float:
        """Return the share of lines that begin with a bullet."""
        marks = self.text.count("•") + self.text.count("-")
        return self._share_of_lines(marks, self.rules.bullet_lines, lambda line: line.lstrip().startswith(("•", "-")))

    def ellipsis_lines(self) -> float:
        """Return the share of lines that end in an ellipsis."""
        return self._share_of_lines(
            self.ellipsis_marks, self.rules.ellipsis_lines, lambda line: line.rstrip().endswith(("...", "…"))
        )

    def alphabetic_words(self) -> float:
        """Return the share of words with a letter."""
        return self.alphabetic / self.size

    def stop_words(self) -> int:
        """Return the number of stop words."""
        count = self.words.occurrences if self.rules.repeated_stop_words else self.words.different
        return count(set(self.rules.stop_words))

    def stop_word_share(self) -> float:
        """Return the share of the words with a letter that are stop words."""
        written = {form for word in self.rules.stop_words for form in (word, word.capitalize(), word.upper())}
        return self.words.occurrences(written) / max(1, self.alphabetic)


class GopherQuality(MeasureBlock[Quality]):
    """Removes a document that is not ordinary prose.

    Decides as datatrove's GopherQualityFilter does at the same thresholds and words.
    """

    name = "Gopher quality"
    section = "quality"
    judged = Prose
    declared = (
        Rule("too_few_words", Prose.plain_words, least="minimum_words"),
        Rule("too_many_words", Prose.plain_words, most="maximum_words"),
        Rule("short_words", Prose.mean_word_length, least="minimum_mean_word_length"),
        Rule("long_words", Prose.mean_word_length, most="maximum_mean_word_length"),
        Rule("hash_signs", Prose.hash_signs, most="symbol_ratio"),
        Rule("ellipses", Prose.ellipses, most="symbol_ratio"),
        Rule("code_characters", Prose.code_characters, most="code_characters"),
        Rule("bullet_lines", Prose.bullet_lines, most="bullet_lines"),
        Rule("ellipsis_lines", Prose.ellipsis_lines, most="ellipsis_lines"),
        Rule("few_alphabetic_words", Prose.alphabetic_words, least="alphabetic_words"),
        Rule("few_stop_words", Prose.stop_words, least="minimum_stop_words"),
        Rule("small_stop_word_share", Prose.stop_word_share, least="stop_word_share"),
    )
