"""Computes the signatures of one unit for deduplication: the hash and the MinHash band keys of each document."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.core.url_hosts import extract_host
from pipeline.corpus.documents import read_documents, read_file_metadata
from pipeline.corpus.duplicates.minhash import MinhashSigner
from pipeline.corpus.duplicates.passage_hashes import hash_all_word_passages
from pipeline.corpus.duplicates.signature_files import (
    CONTENT,
    SignatureWriter,
    band_columns,
    content_hash,
    line_keys,
    paragraph_keys,
)
from pipeline.corpus.settings import SignatureSettings


def write_document_signatures(
    documents: Iterable[tuple[str, str, str | None]], path: Path, settings: SignatureSettings, unit: dict[str, Any]
) -> None:
    """Write the id, length, hash and band keys of documents to a file.

    Args:
        documents: id, text and URL of each.
        unit: the `source` and `unit` of the documents.
    """
    writer = SignatureWriter(path, settings, unit)
    minhash, columns = MinhashSigner(settings), band_columns(settings)
    for document_id, text, url in documents:
        characters, sha256 = content_hash(text)
        halves = (int.from_bytes(sha256[:8], "big"), int.from_bytes(sha256[8:16], "big"))
        row = {"id": document_id, "characters": characters, **dict(zip(CONTENT, halves, strict=True))}
        if settings.minhash:
            row["ngrams"], keys = minhash.band_keys(text)
            row |= dict(zip(columns, keys, strict=True))
        if settings.paragraphs:
            row["paragraphs"] = paragraph_keys(text, settings.paragraph_characters)
        if settings.line_characters is not None:
            domain = extract_host(url).removeprefix("www.") or f"source {unit['source']}"
            row["lines"] = line_keys(text, domain, settings.line_characters)
        if settings.passage_words is not None:
            row["passages"] = hash_all_word_passages(text, settings.passage_words).anchors_A
        writer.add(row)
    writer.close()


def run(settings: SignatureSettings, *, documents: Path, signatures: Path) -> dict[str, Any]:
    """Write one row per document, in order; return the number of documents."""
    metadata = read_file_metadata(documents)
    columns = ["id", "text", "url"]
    texts = ((row["id"], row["text"], row["url"]) for row in read_documents([documents], columns=columns))
    write_document_signatures(texts, signatures, settings, metadata)
    print(f"{metadata['rows']} documents signed", flush=True)
    return {"documents": metadata["rows"]}
