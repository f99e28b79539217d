"""How many documents and bytes of text the sources will give, told by the beginnings of a few files before any job.

What is stored of a document is counted by storing the sample as the steps do, in the order of `id_hash`. Nothing is
taken off for what filters and deduplication will remove: these are the most that can come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.corpus.document_streams import KEPT_SCHEMA
from pipeline.corpus.documents import FINAL_SCHEMA, ROWS_PER_GROUP, id_hash
from pipeline.corpus.duplicates.key_groups import DOCUMENT_BYTES, KEY_BYTES
from pipeline.corpus.duplicates.signature_files import band_columns, signature_schema
from pipeline.corpus.settings import SignatureSettings
from pipeline.sources.byte_streams import DamagedFile
from pipeline.sources.raw_documents import FieldNames, RawDocument, make_raw_documents
from pipeline.sources.record_formats import read_records
from pipeline.sources.units import SourceUnits

FILES = 20  # of a source that are looked into, evenly chosen by their names
STORED_BYTES = 1 << 18  # of each, as it lies on disk, are read
NUMBER = 8  # bytes of a key of a band
LEAST_BYTES = DOCUMENT_BYTES + KEY_BYTES  # of a document of which there is no copy, where copies are found


@dataclass(frozen=True)
class Expected:
    """What a source, or several, will give; all but `files`, `raw_bytes` and the sizes of empty files is estimated.

    Attributes:
        sampled: the documents that it is told by.
        id_bytes: of all ids, as they are.
        stored_text_bytes: of all documents as a file of final documents stores them, without what every file has.
        stored_id_bytes: of all ids as Parquet stores them.
    """

    files: int = 0
    raw_bytes: int = 0
    units: int = 0
    sampled: int = 0
    documents: float = 0.0
    text_bytes: float = 0.0
    id_bytes: float = 0.0
    stored_text_bytes: float = 0.0
    stored_id_bytes: float = 0.0

    def __add__(self, other: Expected) -> Expected:
        return Expected(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def disk_bytes(self, settings: SignatureSettings) -> dict[str, float]:
        """Return the bytes of the folders of a corpus that have a row for each document."""
        keys = NUMBER * (2 + len(band_columns(settings))) * self.documents
        return {
            "filtered": self.stored_text_bytes - self.stored_id_bytes + self.units * _empty(FINAL_SCHEMA),
            "signatures": self.stored_id_bytes + keys + self.units * _empty(signature_schema(settings)),
            "deduplicated": self.stored_id_bytes + self.units * _empty(KEPT_SCHEMA),
            "final": self.stored_text_bytes + self.units * _empty(FINAL_SCHEMA),
        }


def documents_allowed(memory_bytes: int) -> int:
    """Return how many documents `deduplication.memory_bytes` allows, where none has a copy."""
    return memory_bytes // LEAST_BYTES


def memory_needed(documents: int) -> int:
    """Return the `deduplication.memory_bytes` that is advised for so many documents, as corpus.find_duplicates does."""
    return 2 * LEAST_BYTES * documents


def _stored(table: pa.Table) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=ROWS_PER_GROUP)
    return int(sink.getvalue().size)


def _empty(schema: pa.Schema) -> int:
    return _stored(schema.empty_table())


def _beginning(path: Path, name: str, place: str, keys: FieldNames, limit: int) -> tuple[list[RawDocument], int]:
    """Return the first documents of a file, and how many of its bytes on disk they take."""
    found: list[RawDocument] = []
    for document, record in make_raw_documents(read_records(path, name, keys, limit), place, keys):
        if record.position >= STORED_BYTES:
            return found, record.position
        if document.text is not None:
            found.append(document)
    return found, path.stat().st_size


def _as_final(source: str, documents: Iterable[RawDocument]) -> pa.Table:
    """Return documents with the columns of FINAL_SCHEMA, in their order; what a filter would tell differs in each."""
    rows = [
        {
            **{"id": one.id, "text": one.text, "language": "nl", "language_score": id_hash(one.id) / 2**64},
            **{"source": source, "license": None, "url": one.url, "title": one.title, "date": one.date, "flags": []},
            **{"cluster": one.id, "cluster_size": 1, "id_hash": id_hash(one.id)},
        }
        for one in documents
    ]
    return pa.Table.from_pylist(rows, schema=FINAL_SCHEMA).sort_by([("id_hash", "ascending"), ("id", "ascending")])


def expected(listed: SourceUnits) -> Expected | None:
    """Return what a source will give; None where it is a data set that is not fetched yet, or nothing of it is text.

    Raises:
        InputError: a file has no column for the text, or cannot be opened.
    """
    source, sizes = listed.source, listed.sizes
    if source.dataset is not None:
        return None
    names, keys = [*listed.files], source.field_names()
    documents: list[RawDocument] = []
    read_bytes = 0
    for name in names[:: -(-len(names) // FILES)]:
        try:
            found, taken = _beginning(listed.files[name], name, f"{source.name}/{name}", keys, source.document_bytes)
        except DamagedFile:
            continue
        documents, read_bytes = documents + found, read_bytes + taken
    if not documents:
        return None
    raw_bytes = sum(sizes.values())
    scale = raw_bytes / read_bytes
    table = _as_final(source.name, documents)
    ids = table.select(["id"])
    return Expected(
        files=len(names),
        raw_bytes=raw_bytes,
        units=len(listed.units),
        sampled=len(documents),
        documents=len(documents) * scale,
        text_bytes=sum(one.size for one in documents) * scale,
        id_bytes=sum(len(one.id.encode()) for one in documents) * scale,
        stored_text_bytes=(_stored(table) - _empty(FINAL_SCHEMA)) * scale,
        stored_id_bytes=(_stored(ids) - _empty(ids.schema)) * scale,
    )
