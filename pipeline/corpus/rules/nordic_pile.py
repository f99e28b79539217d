"""The datatrove block with the rules of the Nordic Pile (Öhman et al. 2023) that Gopher's do not have."""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pipeline.corpus.rules.rule_block import Judged, MeasureBlock, Rule
from pipeline.corpus.rules.settings import NordicPile

# What str.isdigit calls a digit, superscripts among them.
_OTHER_DIGITS = re.compile(r"[^\x00-\x7f]")


def _typical(values: npt.NDArray[np.int64]) -> float:
    """Return the mean of mean and median; 0 of nothing."""
    return float(values.mean() + np.median(values)) / 2 if values.size else 0.0


class Characters(Judged[NordicPile]):
    """What the rules of the Nordic Pile measure: digits, characters that are not white space, and lines."""

    @cached_property
    def characters_L(self) -> npt.NDArray[np.int64]:
        """The number of characters of each line that are not white space."""
        return np.fromiter((len("".join(line.split())) for line in self.words.lines), dtype=np.int64)

    def digits(self) -> float:
        """Return the share of characters that are digits."""
        text = self.text.strip()
        digits = sum(map(text.count, "0123456789")) + sum(map(str.isdigit, _OTHER_DIGITS.findall(text)))
        return digits / max(1, len(text))

    def characters(self) -> int:
        """Return the number of characters that are not white space."""
        return int(self.characters_L.sum())

    def line_characters(self) -> float:
        """Return the number of characters of a line, the mean of mean and median over the lines that are not blank."""
        return _typical(self.characters_L[self.characters_L > 0])

    def line_words(self) -> float:
        """Return the number of words of a line, the mean of mean and median over the lines that are not blank."""
        return _typical(self.words.words_L[self.characters_L > 0])


class NordicPileQuality(MeasureBlock[NordicPile]):
    """Removes a document of numbers, of next to nothing, or of lines that are hardly any."""

    name = "Nordic Pile quality"
    section = "nordic_pile"
    judged = Characters
    declared = (
        Rule("digits", Characters.digits, most="digits"),
        Rule("too_few_characters", Characters.characters, least="minimum_characters"),
        Rule("short_line_characters", Characters.line_characters, least="minimum_line_characters"),
        Rule("short_line_words", Characters.line_words, least="minimum_line_words"),
    )
