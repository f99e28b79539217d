"""MinHash as datatrove does it, with this package's words and bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
from datatrove.utils.word_tokenizers import WordTokenizer

from pipeline.corpus.settings import Deduplication
from pipeline.corpus.words import word_tokenize

SHINGLES_AT_ONCE = 4096


def configuration(settings: Deduplication) -> MinhashConfig:
    """Return datatrove's configuration of the same meaning."""
    return MinhashConfig(
        n_grams=settings.ngram,
        num_buckets=settings.buckets,
        hashes_per_bucket=settings.hashes_per_bucket,
        seed=settings.seed,
    )


class PlainWords(WordTokenizer):  # type: ignore[misc]
    """Gives datatrove the words of this package."""

    def word_tokenize(self, text: str) -> list[str]:
        """Return the words of a text."""
        return word_tokenize(text)

    def sent_tokenize(self, text: str) -> list[str]:
        """Return the text as one sentence; signatures do not ask for sentences."""
        return [text]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Return the bounds of that one sentence."""
        return [(0, len(text))]


class MinhashSignature(MinhashDedupSignature):  # type: ignore[misc]
    """Computes the same signatures as its parent, a few thousand shingles at a time."""

    name = "MinHash signatures"

    def __init__(self, output_folder: Path, settings: Deduplication) -> None:
        super().__init__(str(output_folder), configuration(settings))
        self.word_tokenizer = PlainWords()

    def get_signature(self, shingles: npt.NDArray[np.uint64]) -> list[list[int]]:
        """Return, for shingles of shape (N, 1), the smallest values of each hash, by bucket."""
        parts = range(0, len(shingles), SHINGLES_AT_ONCE)
        whole = super().get_signature
        pieces: list[Any] = [whole(shingles[start : start + SHINGLES_AT_ONCE]) for start in parts]
        smallest: list[list[int]] = np.min(np.array(pieces, dtype=np.uint64), axis=0).tolist()
        return smallest
