"""Datatrove blocks with the rules of C4, FineWeb and the Nordic Pile for web pages.

C4's rules (Raffel et al. 2020, section 2.2) drop lines, then check the remaining text. FineWeb's (Penedo et al. 2024)
remove lists and fragments of pages. The Nordic Pile's (Öhman et al. 2023) are those that Gopher's do not include.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cached_property

import numpy as np
import numpy.typing as npt
from datatrove.data import Document
from datatrove.utils.text import TERMINAL_PUNCTUATION

from pipeline.corpus.documents import CURLY_BRACKET, EMPTY, LOREM_IPSUM, TOO_FEW_SENTENCES
from pipeline.corpus.rules.gopher import count_duplicates
from pipeline.corpus.rules.rule_block import DocumentMeasures, FilterRule, MeasureBlock, RuleBlock, record_removal
from pipeline.corpus.rules.settings import C4, FineWeb, NordicPile
from pipeline.corpus.text.word_splitting import split_words, store_words_in_cache

_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
_TERMINAL = (".", "?", "!", '"', "'")


def _phrases_in_text(text: str, rules: C4) -> dict[str, list[str]]:
    lower = (_CITATION.sub("", text) if rules.citations else text).lower()
    listed = {
        LOREM_IPSUM: ["lorem ipsum"] * rules.lorem_ipsum,
        "javascript": ["javascript"] * rules.javascript,
        CURLY_BRACKET: ["{"] * rules.curly_bracket,
        "policy": rules.policy_phrases * rules.policy,
    }
    phrases_by_reason = {
        reason: [phrase for phrase in phrases if phrase in lower] for reason, phrases in listed.items()
    }
    return {reason: phrases for reason, phrases in phrases_by_reason.items() if phrases}


def _line_failure(line: str, words: int, rules: C4, phrases: dict[str, list[str]]) -> str | None:
    """Return why a line fails, in datatrove's order of reasons; None if it passes."""
    longest = rules.maximum_word_length
    if longest is not None and len(line) > longest and any(len(word) > longest for word in line.split()):
        return "long_word"
    if rules.citations and "[" in line:
        line = _CITATION.sub("", line)
    if rules.terminal_punctuation and (not line.endswith(_TERMINAL) or line.endswith("...")):
        return "no_terminal_punctuation"
    if rules.minimum_words_per_line is not None and words < rules.minimum_words_per_line:
        return "too_few_words"
    if phrases:
        lower = line.lower()
        for reason, listed in phrases.items():
            if any(phrase in lower for phrase in listed):
                return reason
    return None


class C4Quality(RuleBlock[C4]):
    """Drops lines that are no sentences, and removes documents with too little text left.

    Equals datatrove's C4QualityFilter for the same thresholds and sentences. `dropped_lines` in the metadata counts the
    dropped lines by reason.
    """

    name = "C4 quality"
    section = "c4"

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        language = doc.metadata["language"]
        rules = self.rules[language]
        if rules is None:
            return True
        splitter = self.splitters.get(language, "plain")
        words = split_words(doc.text, splitter, language)
        lines = [line.strip() for line in words.lines]
        kept_L = np.zeros(len(lines), dtype=bool)
        phrases = _phrases_in_text(doc.text, rules)
        dropped: Counter[str] = Counter()
        for place, (line, number) in enumerate(zip(lines, words.pretokens_L.tolist(), strict=True)):
            failure = _line_failure(line, number, rules, phrases)
            if failure in (LOREM_IPSUM, CURLY_BRACKET):
                return record_removal(doc, str(failure), f"line {place + 1}")
            if failure is None:
                kept_L[place] = True
            else:
                dropped[failure] += 1
        sentences = int(words.count_sentences_L()[kept_L].sum())
        if rules.minimum_sentences is not None and sentences < rules.minimum_sentences:
            return record_removal(doc, TOO_FEW_SENTENCES, sentences)
        if rules.drop_lines:
            doc.metadata["dropped_lines"] = dict(dropped)
            for reason, count in dropped.items():
                self.stat_update(f"dropped_line_{reason}", value=count)
            kept = [line for line, chosen in zip(lines, kept_L.tolist(), strict=True) if chosen]
            text = "\n".join(kept)
            doc.text = (_CITATION.sub("", text) if rules.citations else text).strip()
            if doc.text == text:  # no line was changed, so the words of the lines are still valid
                store_words_in_cache(text, words.select_lines(kept, kept_L), splitter, language)
        return True


class WebPageMeasures(DocumentMeasures[FineWeb]):
    """Measures of FineWeb's rules."""

    @cached_property
    def nonblank_lines(self) -> list[str]:
        """The lines that are not blank."""
        return [line for line in self.text.split("\n") if line.strip()]

    @cached_property
    def line_break_count(self) -> int:
        """The number of line breaks."""
        return self.text.count("\n")

    def punctuated_line_share(self) -> float:
        """Return the share of lines that end a sentence."""
        return sum(line[-1] in TERMINAL_PUNCTUATION for line in self.nonblank_lines) / len(self.nonblank_lines)

    def short_line_share(self) -> float:
        """Return the share of short lines."""
        return sum(len(line) <= self.rules.short_line_length for line in self.nonblank_lines) / len(self.nonblank_lines)

    def repeated_line_character_share(self) -> float:
        """Return the share of characters in lines that occurred before."""
        return count_duplicates(self.nonblank_lines)[1] / (len(self.text) - self.line_break_count)

    def line_breaks_per_word(self) -> float:
        """Return the number of line breaks per word."""
        return self.line_break_count / max(1, len(self.words.numbers_W))


class FineWebQuality(MeasureBlock[FineWeb]):
    """Removes documents with lines that are not running text.

    Equals datatrove's FineWebQualityFilter for the same thresholds and words.
    """

    name = "FineWeb quality"
    section = "fineweb"
    measures = WebPageMeasures
    filter_rules = (
        FilterRule("punctuated_lines", WebPageMeasures.punctuated_line_share, least="punctuated_lines"),
        FilterRule("short_lines", WebPageMeasures.short_line_share, most="short_lines"),
        FilterRule(
            "repeated_line_characters", WebPageMeasures.repeated_line_character_share, most="duplicate_line_characters"
        ),
        FilterRule("new_lines", WebPageMeasures.line_breaks_per_word, most="new_lines"),
    )

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        return super().filter(doc) if doc.text.strip() else (False, EMPTY)


# Digits of str.isdigit beyond ASCII, such as superscripts.
_OTHER_DIGITS = re.compile(r"[^\x00-\x7f]")


def _mean_of_mean_and_median(values: npt.NDArray[np.int64]) -> float:
    """Return the mean of mean and median; 0 without values."""
    return float(values.mean() + np.median(values)) / 2 if values.size else 0.0


class CharacterMeasures(DocumentMeasures[NordicPile]):
    """Measures of the Nordic Pile's rules: digits, characters that are not white space, and lines."""

    @cached_property
    def characters_L(self) -> npt.NDArray[np.int64]:
        """The number of characters of each line that are not white space."""
        return np.fromiter((len("".join(line.split())) for line in self.words.lines), dtype=np.int64)

    def digit_share(self) -> float:
        """Return the share of characters that are digits."""
        text = self.text.strip()
        digits = sum(map(text.count, "0123456789")) + sum(map(str.isdigit, _OTHER_DIGITS.findall(text)))
        return digits / max(1, len(text))

    def non_whitespace_character_count(self) -> int:
        """Return the number of characters that are not white space."""
        return int(self.characters_L.sum())

    def typical_line_length(self) -> float:
        """Return the number of characters of a line, the mean of mean and median over the lines that are not blank."""
        return _mean_of_mean_and_median(self.characters_L[self.characters_L > 0])

    def typical_words_per_line(self) -> float:
        """Return the number of words of a line, the mean of mean and median over the lines that are not blank."""
        return _mean_of_mean_and_median(self.words.words_L[self.characters_L > 0])


class NordicPileQuality(MeasureBlock[NordicPile]):
    """Removes documents of digits, very short documents, and documents with very short lines."""

    name = "Nordic Pile quality"
    section = "nordic_pile"
    measures = CharacterMeasures
    filter_rules = (
        FilterRule("digits", CharacterMeasures.digit_share, most="digits"),
        FilterRule("too_few_characters", CharacterMeasures.non_whitespace_character_count, least="minimum_characters"),
        FilterRule("short_line_characters", CharacterMeasures.typical_line_length, least="minimum_line_characters"),
        FilterRule("short_line_words", CharacterMeasures.typical_words_per_line, least="minimum_line_words"),
    )
