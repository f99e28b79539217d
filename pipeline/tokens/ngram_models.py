"""Unigram and bigram models of the training tokens: baselines for validation losses and task scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import InputError
from pipeline.tokens.token_reader import TokenReader

Integers = npt.NDArray[np.int64]

COUNTED_TOKENS = 20_000_000  # of the training text; more do not change the frequencies of common tokens
PAIR_WEIGHT = 0.7  # weight of the bigram in the interpolation with the unigram (Jelinek-Mercer)

ScoredTokens = tuple[Sequence[int], Sequence[int]]
"""The context tokens, and the tokens to score."""


class NgramLosses(NamedTuple):
    """The mean losses of both models on one text, in nats per token."""

    unigram: float
    bigram: float


class NgramModels:
    """A unigram and a bigram model of a share of the training split that covers every source and language.

    Args:
        scored: the tokens to score, which limit the counted pairs; None counts all pairs (0.6 GB).

    Raises:
        InputError: a token is outside the vocabulary of the index.
    """

    def __init__(self, index: Path, scored: Iterable[ScoredTokens] | None = None) -> None:
        reader = TokenReader(index, "train")
        size = self._size = reader.vocabulary_size
        pairs = {pair for before, tokens in scored or () for pair in _adjacent_pairs(before, tokens)}
        highest = max((max(pair) for pair in pairs), default=0)
        if highest >= size:
            raise InputError(f"{index} has a vocabulary of {size}, the model's tokens reach {highest}: it is another's")
        self._counts = np.zeros(size, dtype=np.int64)
        self._followed = np.zeros(size, dtype=np.int64)  # occurrences of each token before another one
        self._pairs = np.array(sorted(before * size + token for before, token in pairs), dtype=np.int64)
        self._pair_counts = np.zeros(len(self._pairs), dtype=np.int64)
        share = min(1.0, COUNTED_TOKENS / max(reader.tokens, 1))
        pair_codes = [self._pairs]
        for _, view in reader.batch_views:
            tokens = reader.check_vocabulary(view[: math.ceil(share * len(view))]).astype(np.int64)
            self._counts += np.bincount(tokens, minlength=size)
            self._followed += np.bincount(tokens[:-1], minlength=size)
            codes = tokens[:-1] * size + tokens[1:]
            if scored is None:
                pair_codes.append(codes)
            else:
                place, is_known = self._find_pairs(codes)
                self._pair_counts += np.bincount(place[is_known], minlength=len(self._pairs))
        if scored is None:
            self._pairs, self._pair_counts = np.unique(np.concatenate(pair_codes), return_counts=True)
        self.tokens, self.training_tokens = int(self._counts.sum()), reader.tokens

    def compute_mean_losses(self, text: Iterable[tuple[Integers, Integers]]) -> NgramLosses:
        """Return the mean losses of a text, given as chunks of previous tokens and tokens."""
        unigram, bigram, total = 0.0, 0.0, 0
        for before, tokens in text:
            codes, times = np.unique(before * self._size + tokens, return_counts=True)
            unigram -= float((times * np.log(self._probabilities(codes % self._size))).sum())
            bigram -= float((times * np.log(self._pair_probabilities(codes))).sum())
            total += len(tokens)
        return NgramLosses(unigram / total, bigram / total)

    def score_unigram(self, scored: ScoredTokens) -> float:
        """Return the unigram log-probability of the tokens in nats, with add-one smoothing."""
        return float(np.log(self._probabilities(scored[1])).sum())

    def score_bigram(self, scored: ScoredTokens) -> float:
        """Return the bigram log-probability of the tokens in nats."""
        codes = np.array([before * self._size + token for before, token in _adjacent_pairs(*scored)], dtype=np.int64)
        return float(np.log(self._pair_probabilities(codes)).sum())

    def _probabilities(self, tokens: Sequence[int] | Integers) -> npt.NDArray[np.float64]:
        return (self._counts[np.asarray(tokens, dtype=np.int64)] + 1) / (self.tokens + self._size)

    def _pair_probabilities(self, codes: Integers) -> npt.NDArray[np.float64]:
        """Return the probability of the second token of each encoded pair; unigram if nothing follows the first."""
        before, token = np.divmod(codes, self._size)
        followed = self._followed[before]
        probability = np.where(followed > 0, 1 - PAIR_WEIGHT, 1.0) * self._probabilities(token)
        place, is_known = self._find_pairs(codes)
        times = self._pair_counts[place[is_known]]
        probability[is_known] += PAIR_WEIGHT * times / np.maximum(followed[is_known], 1)
        return probability

    def _find_pairs(self, codes: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Return the index of each pair among the counted ones, and whether it is there."""
        place = np.searchsorted(self._pairs, codes)
        is_known = place < len(self._pairs)
        is_known[is_known] = self._pairs[place[is_known]] == codes[is_known]
        return place, is_known


def _adjacent_pairs(before: Sequence[int], tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Return each token with the previous one; without context, the first token follows itself."""
    row = [*(before[-1:] or tokens[:1]), *tokens]
    return list(pairwise(row))
