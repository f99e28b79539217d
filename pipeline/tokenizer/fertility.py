"""Measures, per language, how many tokens the tokenizer spends on a word and how many bytes a token holds.

Fertility, the tokens per word, is the measure of Rust et al. 2021, https://aclanthology.org/2021.acl-long.243. A word
is a maximal run of letters, digits and underscores. Only documents that the tokenizer was not trained on count; a
language that has none of those is measured on all its documents and marked `"held_out": false`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.corpus.documents import is_validation, read_documents
from pipeline.tokenizer.encoder import Encoder, load_encoder
from pipeline.tokenizer.settings import FertilitySettings

WORD = re.compile(r"\w+")
TEXTS_PER_BATCH = 256


def run(settings: FertilitySettings, *, tokenizer: Path, documents: list[Path], fertility: Path) -> dict[str, Any]:
    """Encodes the held-out documents and writes fertility.json; returns the number of documents and tokens."""
    encoder = load_encoder(tokenizer)
    held_out = _languages_held_out(documents, settings.validation_fraction)
    chosen = (
        (document["language"], document["text"])
        for document in read_documents(sorted(documents))
        if not held_out[document["language"]] or is_validation(document["cluster"], settings.validation_fraction)
    )
    languages = _measure(encoder, chosen)
    for language, measured in languages.items():
        words, tokens = measured["words"], measured["tokens"]
        measured["tokens_per_word"] = tokens / words if words else None
        measured["bytes_per_token"] = measured["bytes"] / tokens if tokens else None
        measured["held_out"] = held_out[language]
        print(f"fertility: {language} {tokens} tokens for {words} words", flush=True)
    result = {
        "tokenizer_sha256": encoder.sha256,
        "vocabulary_size": encoder.vocabulary_size,
        "languages": dict(sorted(languages.items())),
    }
    fertility.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return {name: sum(measured[name] for measured in languages.values()) for name in ("documents", "tokens")}


def _languages_held_out(paths: list[Path], fraction: float) -> dict[str, bool]:
    """For each language whether one of its documents is held out; reads no text."""
    held_out: dict[str, bool] = {}
    for document in read_documents(paths, columns=["cluster", "language"]):
        language = document["language"]
        held_out[language] = held_out.get(language, False) or is_validation(document["cluster"], fraction)
    return held_out


def _measure(encoder: Encoder, texts: Iterator[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Documents, words, tokens and bytes per language of (language, text) pairs."""
    languages: dict[str, dict[str, Any]] = {}
    while batch := list(islice(texts, TEXTS_PER_BATCH)):
        encoded = encoder.encode([text for _, text in batch])
        for (language, text), tokens in zip(batch, encoded, strict=True):
            measured = languages.setdefault(language, {"documents": 0, "words": 0, "tokens": 0, "bytes": 0})
            measured["documents"] += 1
            measured["words"] += sum(1 for _ in WORD.finditer(text))
            measured["tokens"] += len(tokens)
            measured["bytes"] += len(text.encode())
    return languages
