"""Removes the duplicates from one unit, which makes its final documents."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datatrove.data import Document

from pipeline.corpus.documents import DOCUMENT_SCHEMA, DocumentWriter, read_metadata, write_removed
from pipeline.corpus.removed_texts import removed_texts
from pipeline.corpus.settings import FinaliseSettings


def run(
    settings: FinaliseSettings,
    *,
    documents: Path,
    duplicates: Path,
    final: Path,
    removed: Path,
    private: Path | None = None,
) -> dict[str, Any]:
    """Write the documents that are no duplicates, and the removed ones; return their numbers, by reason.

    The removed ones with their masked texts go to the file `private` where `keep_removed` asks for it.
    """
    texts = removed_texts(settings.keep_removed, settings.samples, private)
    copies = pq.read_table(duplicates)
    known = read_metadata(documents)
    unit: dict[str, Any] = {"source": known["source"], "unit": known["unit"], "stage": "deduplicate"}
    rows: list[dict[str, Any]] = []
    with pq.ParquetFile(documents) as file, DocumentWriter(final) as writer:
        writer.metadata |= {**unit, "documents_in": known["documents"], "bytes_in": known["bytes"]}
        for group in range(file.num_row_groups):
            table = file.read_row_group(group).cast(DOCUMENT_SCHEMA)
            places = pc.index_in(table["id"], copies["id"])
            writer.write(table.filter(pc.is_null(places)))
            gone = table.filter(pc.is_valid(places))
            why = copies.take(pc.drop_null(places))
            sizes = pa.chunked_array(pc.binary_length(gone["text"]))
            columns = (gone["id"], why["reason"], why["value"], sizes)
            for document_id, reason, value, size in zip(*(column.to_pylist() for column in columns), strict=True):
                rows.append(
                    {
                        "id": document_id,
                        "source": unit["source"],
                        "stage": "deduplicate",
                        "reason": reason,
                        "value": value,
                        "bytes": size,
                    }
                )
            if texts is not None:
                for row, document in zip(rows[len(rows) - gone.num_rows :], gone.to_pylist(), strict=True):
                    texts.add(row, Document(text=document["text"], id=document["id"], metadata=document))
    kept_texts: dict[str, Any] = {}
    if texts is not None:
        kept_texts = {"removed_texts": texts.close()}
        unit["samples"] = texts.samples()
    write_removed(removed, rows, unit)
    print(f"{unit['source']}.{unit['unit']}: {len(rows)} duplicates removed", flush=True)
    return {
        "documents_in": known["documents"],
        "bytes_in": known["bytes"],
        "documents_out": writer.metadata["documents"],
        "bytes_out": writer.metadata["bytes"],
        "removed": dict(sorted(Counter(row["reason"] for row in rows).items())),
        **kept_texts,
    }
