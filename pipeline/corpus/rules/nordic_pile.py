"""The datatrove block with the rules of the Nordic Pile (Öhman et al. 2023) that Gopher's do not have."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from datatrove.data import Document

from pipeline.corpus.rules.rule_block import Check, MeasureBlock
from pipeline.corpus.rules.settings import NordicPile

# What str.isdigit calls a digit, superscripts among them.
_OTHER_DIGITS = re.compile(r"[^\x00-\x7f]")


def _typical(values: npt.NDArray[np.int64]) -> float:
    """Return the mean of mean and median; 0 of nothing."""
    return float(values.mean() + np.median(values)) / 2 if values.size else 0.0


class NordicPileQuality(MeasureBlock[NordicPile]):
    """Removes a document of numbers, of next to nothing, or of lines that are hardly any."""

    name = "Nordic Pile quality"

    def checks(self, doc: Document, rules: NordicPile) -> Iterator[Check]:
        """Yield the checks of a document, the cheap ones first."""
        text, words = doc.text.strip(), self.words(doc)
        digits = sum(map(text.count, "0123456789")) + sum(map(str.isdigit, _OTHER_DIGITS.findall(text)))
        yield "digits", digits / max(1, len(text)), None, rules.digits
        characters_L = np.fromiter((len("".join(line.split())) for line in words.lines), dtype=np.int64)
        yield "too_few_characters", int(characters_L.sum()), rules.minimum_characters, None
        written_L = characters_L > 0
        yield "short_line_characters", _typical(characters_L[written_L]), rules.minimum_line_characters, None
        yield "short_line_words", _typical(words.words_L[written_L]), rules.minimum_line_words, None
