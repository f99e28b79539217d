"""The page's own words in another language: one table per language, from each English sentence to its translation.

Templates and modules hold the English. What comes from records is said as it is, in every language.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

TABLES = {"nl": "page_nl.json"}  # English needs none
_KNOWN = re.compile(r"\b(?:not measured|not known|measured|estimated|stated|to)\b")


@dataclass(frozen=True, eq=False)
class Language:
    """A language of the page: its code and its table, which is empty for English."""

    code: str
    sentences: dict[str, str] = field(default_factory=dict)

    def told(self, sentence: str) -> str:
        """Return a sentence in this language, or as it is where the table has none."""
        return self.sentences.get(sentence, sentence)

    def told_many(self, one: str, several: str, amount: int) -> str:
        """Return the sentence that fits a number: for one, or for several."""
        return self.told(one if amount == 1 else several)

    def known(self, text: str) -> str:
        """Return an amount of energy with the words between its numbers and the label of how it is known told."""
        return _KNOWN.sub(lambda found: self.told(found[0]), text)


@cache
def language(code: str) -> Language:
    """Return a language by its code, one and the same each time."""
    name = TABLES.get(code)
    return Language(code, json.loads((Path(__file__).parent / name).read_text(encoding="utf-8")) if name else {})
