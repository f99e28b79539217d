"""Computes what the deduplication compares: the hash of each document of a unit and its MinHash signatures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from pipeline.corpus.documents import read_documents
from pipeline.corpus.execute import execute
from pipeline.corpus.minhash import MinhashSignature
from pipeline.corpus.settings import SignaturesSettings

INDEX = "documents.parquet"
INDEX_SCHEMA = pa.schema([("id", pa.string()), ("characters", pa.int64()), ("sha256", pa.binary(32))])


def content_hash(text: str) -> tuple[int, bytes]:
    """Return characters and sha256 of a text in which case and white space make no difference."""
    plain = " ".join(text.casefold().split())
    return len(plain), hashlib.sha256(plain.encode()).digest()


class IndexDocuments(PipelineStep):  # type: ignore[misc]
    """Reads documents from Parquet, and writes id, length and hash of each, in their order."""

    type = "📖 - READER"
    name = "Documents and their hashes"

    def __init__(self, documents: Path, index: Path) -> None:
        super().__init__()
        self.documents = documents
        self.index = index

    def run(self, data: Iterator[Document] | None = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield the documents, id and text."""
        rows = []
        for row in read_documents([self.documents], columns=["id", "text"]):
            with self.track_time():
                characters, sha256 = content_hash(row["text"])
                rows.append({"id": row["id"], "characters": characters, "sha256": sha256})
                self.stat_update("total")
            yield Document(text=row["text"], id=row["id"])
        pq.write_table(pa.Table.from_pylist(rows, schema=INDEX_SCHEMA), self.index, compression="zstd")


def run(settings: SignaturesSettings, *, documents: Path, signatures: Path) -> dict[str, Any]:
    """Write the directory `signatures`: the hashes of the documents, and a folder for each bucket of MinHash."""
    signatures.mkdir(parents=True)
    blocks: list[PipelineStep] = [IndexDocuments(documents, signatures / INDEX)]
    if settings.deduplication.minhash:
        blocks.append(MinhashSignature(signatures, settings.deduplication))
    execute(blocks)
    number = pq.read_metadata(signatures / INDEX).num_rows
    print(f"{number} documents signed", flush=True)
    return {"documents": number}
