"""The datatrove block that removes lists and remnants of pages: FineWeb's rules on lines (Penedo et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterator

from datatrove.data import Document
from datatrove.utils.text import TERMINAL_PUNCTUATION

from pipeline.corpus.rules.repetition import duplicates
from pipeline.corpus.rules.rule_block import Check, MeasureBlock
from pipeline.corpus.rules.settings import FineWeb


class FineWebQuality(MeasureBlock[FineWeb]):
    """Removes a document whose lines are not those of running text.

    Decides as datatrove's FineWebQualityFilter does at the same thresholds and words.
    """

    name = "FineWeb quality"

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """Return whether the document is kept, or False and the reason."""
        return super().filter(doc) if doc.text.strip() else (False, "empty")

    def checks(self, doc: Document, rules: FineWeb) -> Iterator[Check]:
        """Yield the checks of a document, the cheap ones first."""
        text = doc.text
        lines = [line for line in text.split("\n") if line.strip()]
        punctuated = sum(line[-1] in TERMINAL_PUNCTUATION for line in lines)
        yield "punctuated_lines", punctuated / len(lines), rules.punctuated_lines, None
        short = sum(len(line) <= rules.short_line_length for line in lines)
        yield "short_lines", short / len(lines), None, rules.short_lines
        breaks = text.count("\n")
        share = duplicates(lines)[1] / (len(text) - breaks)
        yield "repeated_line_characters", share, None, rules.duplicate_line_characters
        yield "new_lines", breaks / max(1, len(self.words(doc).numbers_W)), None, rules.new_lines
