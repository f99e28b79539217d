"""Splits a text into words, once, for all blocks that look at words."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

# A word with its inner apostrophes and hyphens and the one mark that follows it, or a run of marks. Were every comma a
# word, the rule on words without a letter would remove dialogue, verse and two in five articles of an encyclopaedia.
_WORD = re.compile(r"\w+(?:['’-]\w+)*[^\w\s]?|[^\w\s]+")


@dataclass(frozen=True)
class Words:
    """The words of a text of W words, V of them different.

    `words` lists them in order, `counts` how often each different one occurs, `numbers_W` the place of each word in
    `counts`, and `lengths_W` their characters.
    """

    words: list[str]
    counts: Counter[str]
    numbers_W: npt.NDArray[np.int64]
    lengths_W: npt.NDArray[np.int64]


def word_tokenize(text: str) -> list[str]:
    """Return the words and runs of punctuation of a text, in order."""
    return _WORD.findall(text)


@lru_cache(maxsize=1)
def split(text: str) -> Words:
    """Return the words of a text; asked again for the same text, the same object."""
    words = word_tokenize(text)
    counts = Counter(words)
    number = {word: place for place, word in enumerate(counts)}
    numbers_W = np.fromiter((number[word] for word in words), dtype=np.int64, count=len(words))
    lengths_V = np.fromiter(map(len, counts), dtype=np.int64, count=len(counts))
    return Words(words, counts, numbers_W, lengths_V[numbers_W])
