"""Computes what the deduplication compares: of each document of a unit its hash and the keys of its MinHash bands."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from pipeline.corpus.copies.minhash import MinhashSignature
from pipeline.corpus.copies.signature_files import CONTENT, SignatureWriter, band_columns, content_hash, paragraph_keys
from pipeline.corpus.documents import read_documents, read_metadata
from pipeline.corpus.local_executor import run_blocks
from pipeline.corpus.settings import SignaturesSettings


class ReadTexts(PipelineStep):  # type: ignore[misc]
    """Reads id and text of documents from Parquet, in their order."""

    type = "📖 - READER"
    name = "Documents"

    def __init__(self, documents: Path) -> None:
        super().__init__()
        self.documents = documents

    def run(self, data: Iterator[Document] | None = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield the documents."""
        for row in read_documents([self.documents], columns=["id", "text"]):
            self.stat_update("total")
            yield Document(text=row["text"], id=row["id"])


class SignDocuments(PipelineStep):  # type: ignore[misc]
    """Writes id, length, hash and keys of each document as one file."""

    type = "🫂 - DEDUP"
    name = "Signatures"

    def __init__(self, signatures: Path, settings: SignaturesSettings, unit: dict[str, Any]) -> None:
        super().__init__()
        self.signatures = signatures
        self.settings = settings
        self.unit = unit

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> None:
        """Sign the documents."""
        settings, columns = self.settings, band_columns(self.settings)
        writer = SignatureWriter(self.signatures, settings, self.unit)
        with tempfile.TemporaryDirectory() as folder:
            minhash = MinhashSignature(Path(folder), settings)
            for document in data:
                with self.track_time():
                    characters, sha256 = content_hash(document.text)
                    halves = (int.from_bytes(sha256[:8], "big"), int.from_bytes(sha256[8:16], "big"))
                    row = {"id": document.id, "characters": characters, **dict(zip(CONTENT, halves, strict=True))}
                    if settings.minhash:
                        row["ngrams"], keys = minhash.keys(document.text)
                        row |= dict(zip(columns, keys, strict=True))
                    if settings.paragraphs:
                        row["paragraphs"] = paragraph_keys(document.text, settings.paragraph_characters)
                    writer.add(row)
                    self.stat_update("total")
        writer.close()


def run(settings: SignaturesSettings, *, documents: Path, signatures: Path) -> dict[str, Any]:
    """Write one row for each of the documents, in their order."""
    known = read_metadata(documents)
    run_blocks([ReadTexts(documents), SignDocuments(signatures, settings, known)])
    print(f"{known['rows']} documents signed", flush=True)
    return {"documents": known["rows"]}
