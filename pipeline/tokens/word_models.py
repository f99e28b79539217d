"""Two models that know no language: how often each token stands in the training text, and how often after which.

Counted in a part of the training tokens that has every source and language in its share. What such a model reaches on a
task, the task does not ask.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.ground.errors import InputError
from pipeline.tokens.reader import TokenReader

COUNTED_TOKENS = 20_000_000  # of the training text: the counts of common tokens no longer change by more
PAIR_WEIGHT = 0.7  # of the frequency of the pair, beside that of the token alone (Jelinek-Mercer)

Scored = tuple[Sequence[int], Sequence[int]]
"""The tokens before, and the tokens whose probability is asked."""


class WordModels:
    """A unigram and a bigram model of the tokens of the training split, for the pairs that will be asked."""

    def __init__(self, index: Path, asked: Iterable[Scored]) -> None:
        reader = TokenReader(index, "train")
        size = self._size = reader.vocabulary_size
        pairs = {pair for before, tokens in asked for pair in _pairs(before, tokens)}
        highest = max((max(pair) for pair in pairs), default=0)
        if highest >= size:
            raise InputError(f"{index} has a vocabulary of {size}, the model's tokens reach {highest}: it is another's")
        self._pairs = np.array(sorted(before * size + token for before, token in pairs), dtype=np.int64)
        self._counts = np.zeros(size, dtype=np.int64)
        self._pair_counts = np.zeros(len(self._pairs), dtype=np.int64)
        share = min(1.0, COUNTED_TOKENS / max(reader.tokens, 1))
        for _, tokens in reader.views:
            self._count(reader.known(tokens[: math.ceil(share * len(tokens))]).astype(np.int64))
        self.tokens = int(self._counts.sum())

    def _count(self, tokens: npt.NDArray[np.int64]) -> None:
        self._counts += np.bincount(tokens, minlength=self._size)
        if len(self._pairs) and len(tokens) > 1:
            code = tokens[:-1] * self._size + tokens[1:]
            place = np.minimum(np.searchsorted(self._pairs, code), len(self._pairs) - 1)
            self._pair_counts += np.bincount(place[self._pairs[place] == code], minlength=len(self._pairs))

    def unigram_loss(self, counts: npt.NDArray[np.int64]) -> float:
        """Return the mean loss in nats of a text that has each token of the vocabulary so often."""
        logs = np.log(self._probabilities(np.arange(self._size)))
        return -float((counts * logs).sum() / counts.sum())

    def unigram(self, scored: Scored) -> float:
        """Return the log-probability in nats of the tokens, each for itself; one more is counted of each token."""
        return float(np.log(self._probabilities(scored[1])).sum())

    def bigram(self, scored: Scored) -> float:
        """Return the log-probability in nats of the tokens, each after the one before it."""
        probability = (1 - PAIR_WEIGHT) * self._probabilities(scored[1])
        for place, (before, token) in enumerate(_pairs(*scored)):
            if self._counts[before]:
                code = int(np.searchsorted(self._pairs, before * self._size + token))
                probability[place] += PAIR_WEIGHT * self._pair_counts[code] / self._counts[before]
        return float(np.log(probability).sum())

    def _probabilities(self, tokens: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return (self._counts[np.asarray(tokens, dtype=np.int64)] + 1) / (self.tokens + self._size)


def _pairs(before: Sequence[int], tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Return each token with the one before it; the first one of all stands after itself."""
    row = [*(before[-1:] or tokens[:1]), *tokens]
    return list(pairwise(row))
