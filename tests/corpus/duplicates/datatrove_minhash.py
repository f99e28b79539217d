"""datatrove's MinHash block with this package's words, for comparisons in tests and benchmarks."""

from __future__ import annotations

from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
from datatrove.utils.word_tokenizers import WordTokenizer

from pipeline.corpus.settings import SignatureSettings
from pipeline.corpus.text.word_splitting import word_tokenize


def configuration(settings: SignatureSettings) -> MinhashConfig:
    """Return the equivalent configuration of datatrove."""
    return MinhashConfig(
        n_grams=settings.ngram, num_buckets=settings.bands, hashes_per_bucket=settings.rows, seed=settings.seed
    )


class PlainWords(WordTokenizer):  # type: ignore[misc]
    """Replace datatrove's words by those of this package."""

    def word_tokenize(self, text: str) -> list[str]:
        return word_tokenize(text)

    def sent_tokenize(self, text: str) -> list[str]:
        return [text]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


def datatrove_block(folder: str, settings: SignatureSettings) -> MinhashDedupSignature:
    """Return datatrove's block, which writes its signatures into a folder."""
    block = MinhashDedupSignature(folder, configuration(settings))
    block.word_tokenizer = PlainWords()
    return block
