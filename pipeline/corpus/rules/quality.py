"""The datatrove block that removes what is not ordinary prose: Gopher's quality rules (Rae et al. 2021, A.1.1)."""

from __future__ import annotations

from collections.abc import Iterator

from datatrove.data import Document

from pipeline.corpus.rules.rule_block import Check, MeasureBlock
from pipeline.corpus.rules.settings import Quality
from pipeline.corpus.text.words import LETTER, MARKS


class GopherQuality(MeasureBlock[Quality]):
    """Removes a document that is not ordinary prose.

    Decides as datatrove's GopherQualityFilter does at the same thresholds and words.
    """

    name = "Gopher quality"

    def checks(self, doc: Document, rules: Quality) -> Iterator[Check]:
        """Yield the checks of a document, the cheap ones first."""
        text, words = doc.text, self.words(doc)
        kinds_W = words.kinds_W
        size = max(1, len(kinds_W))
        plain_W = kinds_W & MARKS == 0
        number = int(plain_W.sum())
        yield "too_few_words", number, rules.minimum_words, None
        yield "too_many_words", number, None, rules.maximum_words
        mean_length = int(words.lengths_W[plain_W].sum()) / max(1, number)
        yield "short_words", mean_length, rules.minimum_mean_word_length, None
        yield "long_words", mean_length, None, rules.maximum_mean_word_length
        yield "hash_signs", text.count("#") / size, None, rules.symbol_ratio
        ellipses = text.count("...") + text.count("…")
        yield "ellipses", ellipses / size, None, rules.symbol_ratio
        # A share of lines is counted where there are enough marks for it to be too large.
        lines = words.lines or [""]
        bullets, most = text.count("•") + text.count("-"), rules.bullet_lines
        if most is not None and bullets / len(lines) > most:
            bullets = sum(line.lstrip().startswith(("•", "-")) for line in lines)
            yield "bullet_lines", bullets / len(lines), None, most
        if rules.ellipsis_lines is not None and ellipses / len(lines) > rules.ellipsis_lines:
            ellipses = sum(line.rstrip().endswith(("...", "…")) for line in lines)
            yield "ellipsis_lines", ellipses / len(lines), None, rules.ellipsis_lines
        yield "few_alphabetic_words", int((kinds_W & LETTER != 0).sum()) / size, rules.alphabetic_words, None
        count = words.occurrences if rules.repeated_stop_words else words.different
        yield "few_stop_words", count(set(rules.stop_words)), rules.minimum_stop_words, None
