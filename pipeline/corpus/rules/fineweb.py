"""The datatrove block that removes lists and remnants of pages: FineWeb's rules on lines (Penedo et al. 2024)."""

from __future__ import annotations

from functools import cached_property

from datatrove.data import Document
from datatrove.utils.text import TERMINAL_PUNCTUATION

from pipeline.corpus.removal import EMPTY
from pipeline.corpus.rules.repetition import duplicates
from pipeline.corpus.rules.rule_block import Judged, MeasureBlock, Rule
from pipeline.corpus.rules.settings import FineWeb


class Page(Judged[FineWeb]):
    """What FineWeb's rules measure."""

    @cached_property
    def lines(self) -> list[str]:
        """The lines that are not blank."""
        return [line for line in self.text.split("\n") if line.strip()]

    @cached_property
    def breaks(self) -> int:
        """The number of line breaks."""
        return self.text.count("\n")

    def punctuated_lines(self) -> float:
        """Return the share of lines that end a sentence."""
        return sum(line[-1] in TERMINAL_PUNCTUATION for line in self.lines) / len(self.lines)

    def short_lines(self) -> float:
        """Return the share of short lines."""
        return sum(len(line) <= self.rules.short_line_length for line in self.lines) / len(self.lines)

    def repeated_line_characters(self) -> float:
        """Return the share of characters in lines that occurred before."""
        return duplicates(self.lines)[1] / (len(self.text) - self.breaks)

    def new_lines(self) -> float:
        """Return the number of line breaks per word."""
        return self.breaks / max(1, len(self.words.numbers_W))


class FineWebQuality(MeasureBlock[FineWeb]):
    """Removes a document whose lines are not those of running text.

    Decides as datatrove's FineWebQualityFilter does at the same thresholds and words.
    """

    name = "FineWeb quality"
    section = "fineweb"
    judged = Page
    declared = (
        Rule("punctuated_lines", Page.punctuated_lines, least="punctuated_lines"),
        Rule("short_lines", Page.short_lines, most="short_lines"),
        Rule("repeated_line_characters", Page.repeated_line_characters, most="duplicate_line_characters"),
        Rule("new_lines", Page.new_lines, most="new_lines"),
    )

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """Return whether the document is kept, or False and the reason."""
        return super().filter(doc) if doc.text.strip() else (False, EMPTY)
