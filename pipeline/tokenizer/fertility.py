"""Measures the fertility and other metrics of a tokenizer, by language (see docs/results/tokenizer.md).

Uses documents that the tokenizer was not trained on: in each language those with the smallest `id_hash`, up to
`measured_bytes`. A language without held-out documents is measured on others and marked `"held_out": false`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import InputError
from pipeline.corpus.documents import is_validation_cluster
from pipeline.tokenizer.batch_encoder import BatchEncoder
from pipeline.tokenizer.document_sample import DocumentSample, draw_sample
from pipeline.tokenizer.encoder import build_vocabulary_byte_table, load_encoder
from pipeline.tokenizer.settings import FertilitySettings

WORD = re.compile(r"\w+")
TEXTS_PER_BATCH = 256
RENYI_ORDER = 2.5
MAXIMUM_HELD_OUT = 20_000  # about this many documents are searched, also for rare languages
Counts = Counter[str]
"""Documents, words, whole words, tokens and bytes."""


def run(
    settings: FertilitySettings, *, tokenizer: Path, documents: list[Path], parallel: list[Path], fertility: Path
) -> dict[str, Any]:
    """Encode a sample of the held-out documents and write fertility.json; return the numbers of documents and tokens.

    Args:
        parallel: files of the languages of `settings.parallel`, one sentence per line.
    """
    encoder = load_encoder(tokenizer)
    batch_encoder = BatchEncoder(encoder)
    lengths = np.diff(build_vocabulary_byte_table(encoder)[1])
    languages: dict[str, dict[str, Any]] = {}
    in_all = np.zeros(encoder.vocabulary_size, dtype=np.int64)
    for held_out, texts in _draw_samples(settings, documents):
        counts: dict[str, Counts] = {}
        times: dict[str, npt.NDArray[np.int64]] = {}
        for language, counted, tokens in _encode_texts(batch_encoder, lengths, texts):
            counts.setdefault(language, Counter()).update(counted)
            np.add.at(times.setdefault(language, np.zeros(encoder.vocabulary_size, dtype=np.int64)), tokens, 1)
        for language, counted in counts.items():
            languages[language] = _fertility_metrics(counted, times[language]) | {"held_out": held_out}
            in_all += times[language]
    for language, measured in languages.items():
        print(f"fertility: {language} {measured['tokens']} tokens for {measured['words']} words", flush=True)
    result = {
        "tokenizer_sha256": encoder.sha256,
        "vocabulary_size": encoder.vocabulary_size,
        "measured_bytes": settings.measured_bytes,
        "renyi_efficiency": renyi_efficiency(in_all),
        "languages": dict(sorted(languages.items())),
        "parallel": _measure_parity(batch_encoder, dict(zip(settings.parallel, parallel, strict=True))),
    }
    fertility.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return {name: sum(measured[name] for measured in languages.values()) for name in ("documents", "tokens")}


def _fertility_metrics(counted: Counts, times: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Return the counts and metrics of a language; `times` are the occurrences of each token."""
    words, tokens = counted["words"], counted["tokens"]
    return {name: counted[name] for name in ("documents", "words", "whole_words", "tokens", "bytes")} | {
        "tokens_per_word": tokens / words if words else None,
        "bytes_per_token": counted["bytes"] / tokens if tokens else None,
        "whole_word_share": counted["whole_words"] / words if words else None,
        "renyi_efficiency": renyi_efficiency(times),
    }


def renyi_efficiency(times: npt.NDArray[np.int64]) -> float | None:
    """Return the Rényi efficiency of order 2.5 of token occurrences: ln(Σ p^α) ÷ (1 - α) ÷ ln |V|; None without tokens.

    Zouhar et al. 2023, https://aclanthology.org/2023.acl-long.284.
    """
    if not times.sum():
        return None
    shares = times[times > 0] / times.sum()
    return float(np.log(np.sum(shares**RENYI_ORDER)) / (1 - RENYI_ORDER) / np.log(len(times)))


def _draw_samples(
    settings: FertilitySettings, documents: list[Path]
) -> Iterator[tuple[bool, Iterator[tuple[str, str]]]]:
    """Yield whether texts are held out, and pairs of language and text; first the held-out ones."""
    fraction = settings.validation_fraction
    most = MAXIMUM_HELD_OUT / fraction if fraction else MAXIMUM_HELD_OUT
    drawn = partial(
        draw_sample, documents, sample_bytes=settings.measured_bytes, each_language=True, most_documents=most
    )
    held_out = drawn(lambda cluster, _: is_validation_cluster(cluster, fraction))
    yield True, _sampled_texts(held_out, documents)
    held_out_languages = set(held_out.rows["language"].to_pylist())
    if held_out_languages != held_out.languages:
        yield False, _sampled_texts(drawn(lambda _, language: language not in held_out_languages), documents)


def _sampled_texts(sample: DocumentSample, documents: list[Path]) -> Iterator[tuple[str, str]]:
    return ((document["language"], document["text"]) for document in sample.texts(documents))


def _encode_texts(
    encoder: BatchEncoder, lengths: npt.NDArray[np.int64], texts: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, Counts, npt.NDArray[np.int64]]]:
    """Yield the language, counts and tokens of each text; `lengths` are the bytes of each token."""
    rest = iter(texts)
    while batch := list(islice(rest, TEXTS_PER_BATCH)):
        encoded = encoder.encode([text for _, text in batch])
        for (language, text), ids in zip(batch, encoded, strict=True):
            tokens = ids.astype(np.int64)
            words, whole_words = _count_whole_words(text, np.cumsum(lengths[tokens]))
            sizes = {"tokens": len(tokens), "bytes": len(text.encode())}
            yield language, Counter({"documents": 1, "words": words, "whole_words": whole_words} | sizes), tokens


def _count_whole_words(text: str, ends: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Return the number of words and of whole words of a text; `ends` are the ends of its tokens in bytes.

    A word is whole if the first token that ends in it ends at the end of the word.
    """
    spans = np.array([word.span() for word in WORD.finditer(text)], dtype=np.int64).reshape(-1, 2)
    letters = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    widths = 1 + (letters >= 0x80).astype(np.int64) + (letters >= 0x800) + (letters >= 0x10000)
    begins, stops = np.append(0, np.cumsum(widths))[spans].T
    return len(spans), int(np.sum(ends[np.searchsorted(ends, begins, side="right")] == stops)) if len(spans) else 0


def _measure_parity(encoder: BatchEncoder, files: dict[str, Path]) -> dict[str, Any] | None:
    """Return lines, bytes and tokens of parallel sentences by language, and tokens relative to the least."""
    if not files:
        return None
    texts = {language: _read_sentences(path) for language, path in files.items()}
    sizes = {language: len(lines) for language, lines in texts.items()}
    if len(set(sizes.values())) > 1 or not min(sizes.values()):
        counts = ", ".join(f"{files[language]} has {count}" for language, count in sizes.items())
        raise InputError(f"parallel files need the same number of lines, one per sentence, but {counts}: align them")
    tokens = {language: sum(map(len, encoder.encode(lines))) for language, lines in texts.items()}
    least = min(tokens.values())
    return {
        "lines": min(sizes.values()),
        "bytes": {language: sum(len(line.encode()) for line in lines) for language, lines in texts.items()},
        "tokens": tokens,
        "premium": {language: count / least for language, count in tokens.items()},
    }


def _read_sentences(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 at byte {error.start}: save it as UTF-8, a sentence per line") from None
