"""MinHash as datatrove does it, with this package's words: the same numbers, sooner, in bounded memory."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
from datatrove.utils.text import NUMBERS_PATTERN, PUNCTUATION, PUNCTUATION_TRANS
from datatrove.utils.word_tokenizers import WordTokenizer

from pipeline.corpus.settings import Signatures
from pipeline.corpus.words import word_tokenize

SHINGLES_AT_ONCE = 256  # of 112 hashes: what stays in a core's cache
_LARGEST = np.iinfo(np.uint64).max
_MERSENNE_PRIME = np.uint64((1 << 61) - 1)
_SPACE = re.compile(rf"[\s{re.escape(PUNCTUATION)}]+")
_BEYOND_LATIN = re.compile("[\u0300-\U0010ffff]+")  # no mark that combines is below


def configuration(settings: Signatures) -> MinhashConfig:
    """Return datatrove's configuration of the same meaning."""
    return MinhashConfig(
        n_grams=settings.ngram,
        num_buckets=settings.buckets,
        hashes_per_bucket=settings.hashes_per_bucket,
        seed=settings.seed,
    )


def simplify(text: str) -> str:
    """Return what datatrove's `simplify_text` returns: lower case, numbers 0, no punctuation, no diacritics."""
    simple = NUMBERS_PATTERN.sub("0", text.lower())
    if simple.isascii():
        return " ".join(simple.translate(PUNCTUATION_TRANS).split())
    simple = _SPACE.sub(" ", simple).strip()
    return _BEYOND_LATIN.sub(_without_marks, unicodedata.normalize("NFD", simple)).strip()


def _without_marks(match: re.Match[str]) -> str:
    return "".join(character for character in match[0] if unicodedata.category(character) != "Mn")


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
        self._eightfold_2H1 = np.array(self.parameters).transpose(0, 2, 1) * np.uint64(8)
        self._lower_HS = np.empty((self.num_hashes, SHINGLES_AT_ONCE), dtype=np.uint64)

    def get_shingles(self, text: str) -> npt.NDArray[np.uint64]:
        """Return xxhash64 of each n-gram of the simplified text, shape (N, 1)."""
        words = self.word_tokenizer.word_tokenize(simplify(text))
        n_grams = map(" ".join, zip(*(words[start:] for start in range(self.config.n_grams)), strict=False))
        return np.array(list(map(xxhash.xxh64_intdigest, n_grams)), dtype=np.uint64).reshape(-1, 1)

    def smallest(self, shingles: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return, for shingles of shape (N, 1) with N > 0, the smallest value of each hash, shape (H,).

        A hash is x mod p with x = a · shingle + b mod 2^64 and p = 2^61 - 1, which is the sum of the upper 3 bits of x
        and the lower 61. So it is smallest where the lower bits are, and these, times 8, are 8a · shingle + 8b mod
        2^64. That another shingle's lower bits are less than 8 away, so that the upper ones might decide, happens in
        one of 10^13 documents of 300 words.
        """
        smallest = np.full(self.num_hashes, _LARGEST)
        for start in range(0, len(shingles), SHINGLES_AT_ONCE):
            part = shingles[start : start + SHINGLES_AT_ONCE, 0]
            lower = self._lower_HS[:, : len(part)]
            np.multiply(part, self._eightfold_2H1[0], out=lower)
            np.add(lower, self._eightfold_2H1[1], out=lower)
            factors, terms = self.parameters
            hashes = (part[lower.argmin(axis=1)] * factors[0] + terms[0]) % _MERSENNE_PRIME
            np.minimum(smallest, hashes, out=smallest)
        return smallest

    def get_signature(self, shingles: npt.NDArray[np.uint64]) -> list[list[int]]:
        """Return, for shingles of shape (N, 1), the smallest value of each hash, by bucket."""
        by_bucket: list[list[int]] = self.smallest(shingles).reshape(self.config.num_buckets, -1).tolist()
        return by_bucket

    def keys(self, text: str) -> list[int]:
        """Return one number for each bucket, 64 bits and not 0, that is equal where all hashes of the bucket are.

        Of a text that is shorter than one n-gram they are 0.
        """
        shingles = self.get_shingles(text)
        if len(shingles) == 0:
            return [0] * int(self.config.num_buckets)
        buckets = self.smallest(shingles).astype("<u8").reshape(self.config.num_buckets, -1)
        return [xxhash.xxh3_64_intdigest(bucket.tobytes()) or 1 for bucket in buckets]
