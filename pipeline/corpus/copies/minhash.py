"""MinHash as datatrove does it, with this package's words: the same numbers, sooner, in bounded memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
from datatrove.utils.word_tokenizers import WordTokenizer

from pipeline.corpus.copies.shingles import Hashes, Shingles, smallest
from pipeline.corpus.settings import Signatures
from pipeline.corpus.text.words import word_tokenize


def configuration(settings: Signatures) -> MinhashConfig:
    """Return datatrove's configuration of the same meaning."""
    return MinhashConfig(
        n_grams=settings.ngram,
        num_buckets=settings.bands,
        hashes_per_bucket=settings.rows,
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
    """Takes the place of its parent: it writes the same files from the same words."""

    name = "MinHash signatures"

    def __init__(self, output_folder: Path, settings: Signatures) -> None:
        super().__init__(str(output_folder), configuration(settings))
        self.word_tokenizer = PlainWords()
        self._shingles = Shingles(settings.ngram)
        self._factors_H, self._terms_H = (parameters[0] for parameters in self.parameters)

    def get_shingles(self, text: str) -> npt.NDArray[np.uint64]:
        """Return xxhash64 of each n-gram of the simplified text, shape (N, 1)."""
        return self._shingles.of(text).reshape(-1, 1)

    def get_signature(self, shingles: npt.NDArray[np.uint64]) -> list[list[int]]:
        """Return, for shingles of shape (N, 1), the smallest value of each hash, by band."""
        by_band: list[list[int]] = self._smallest(shingles[:, 0]).tolist()
        return by_band

    def _smallest(self, shingles: Hashes) -> Hashes:
        return smallest(shingles, self._factors_H, self._terms_H).reshape(self.config.num_buckets, -1)

    def keys(self, text: str) -> tuple[int, list[int]]:
        """Return the number of n-grams, and one for each band, 64 bits and not 0, equal where all its hashes are.

        Of a text that is shorter than one n-gram all are 0.
        """
        shingles = self._shingles.of(text)
        if len(shingles) == 0:
            return 0, [0] * int(self.config.num_buckets)
        bands = self._smallest(shingles).astype("<u8")
        return len(shingles), [xxhash.xxh3_64_intdigest(band.tobytes()) or 1 for band in bands]
