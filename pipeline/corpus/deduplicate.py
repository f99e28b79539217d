"""Removes the duplicates and the repeated paragraphs from one unit."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datatrove.data import Document

from pipeline.corpus.copies.paragraphs import without
from pipeline.corpus.documents import FINAL_SCHEMA, DocumentWriter, read_metadata, write_removed
from pipeline.corpus.removal import DUPLICATE_PARAGRAPHS
from pipeline.corpus.removed_texts import removed_texts
from pipeline.corpus.settings import DeduplicateSettings
from pipeline.ground.errors import InputError


def _foreign(duplicates: Path, documents: Path) -> str:
    return f"{duplicates} is not made from {documents}: rerun corpus.signatures for that unit"


def _copies(duplicates: Path, documents: Path, known: dict[str, Any]) -> pa.Table:
    """Return what the deduplication says about a unit."""
    with pq.ParquetFile(duplicates) as file:
        if json.loads(file.metadata.metadata[b"polder"]) != {
            "source": known["source"],
            "unit": known["unit"],
            "documents": known["rows"],
        }:
            raise InputError(_foreign(duplicates, documents))
        return file.read()


def _cut(table: pa.Table, told: pa.Table) -> tuple[list[str | None], pa.Table]:
    """Return why each document is removed, None where it stays, and the documents without repeated paragraphs."""
    reasons = told["reason"].to_pylist()
    cut = {row: set(places) for row, places in enumerate(told["cut"].to_pylist()) if places}
    if not cut:
        return reasons, table
    texts = table["text"].to_pylist()
    for row, places in cut.items():
        texts[row] = without(texts[row], places)
        if not texts[row]:
            reasons[row] = DUPLICATE_PARAGRAPHS
    return reasons, table.set_column(table.schema.get_field_index("text"), "text", pa.array(texts, pa.string()))


def run(
    settings: DeduplicateSettings,
    *,
    documents: Path,
    duplicates: Path,
    deduplicated: Path,
    removed: Path,
    private: Path | None = None,
) -> dict[str, Any]:
    """Write the documents that are no duplicates, and the removed ones; return their numbers, by reason.

    The removed ones with their masked texts go to the file `private` where `keep_removed` asks for it.

    Raises:
        InputError: the duplicates are not those of the documents.
    """
    texts = removed_texts(settings.keep_removed, settings.samples, private, settings.own_sample_licenses)
    known = read_metadata(documents)
    copies = _copies(duplicates, documents, known)
    unit: dict[str, Any] = {"source": known["source"], "unit": known["unit"], "stage": "deduplicate"}
    rows: list[dict[str, Any]] = []
    found = bytes_cut = 0
    with pq.ParquetFile(documents) as file, DocumentWriter(deduplicated, FINAL_SCHEMA) as writer:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            next_ones = copies.slice(found, table.num_rows)  # they are in the same order
            places = pc.index_in(table["id"], next_ones["id"])
            found += len(places) - places.null_count
            told = next_ones.take(places)
            reasons, cut = _cut(table, told)
            stays = pa.array([reason is None for reason in reasons], pa.bool_())
            sizes = pc.binary_length(table["text"])
            cut = cut.append_column("cluster", pc.coalesce(told["cluster"], cut["id"]))
            cut = cut.append_column("cluster_size", pc.fill_null(told["cluster_size"], 1))
            kept = cut.select(FINAL_SCHEMA.names).filter(stays).cast(FINAL_SCHEMA)
            writer.write(kept)
            bytes_cut += (pc.sum(sizes.filter(stays)).as_py() or 0) - (
                pc.sum(pc.binary_length(kept["text"])).as_py() or 0
            )
            columns = (table["id"], told["value"], sizes)
            for reason, document_id, value, size in zip(reasons, *(c.to_pylist() for c in columns), strict=True):
                if reason is not None:
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
                gone = table.filter(pc.invert(stays))
                for row, document in zip(rows[len(rows) - gone.num_rows :], gone.to_pylist(), strict=True):
                    texts.add(row, Document(text=document["text"], id=document["id"], metadata=document))
        if found != len(copies):
            raise InputError(_foreign(duplicates, documents))
        counts = {"documents_in": known["documents"], "bytes_in": known["bytes"], "bytes_cut": bytes_cut}
        writer.metadata |= {**unit, **counts}
    kept_texts: dict[str, Any] = {}
    if texts is not None:
        kept_texts = {"removed_texts": texts.close()}
        unit["samples"] = texts.samples()
    write_removed(removed, rows, unit)
    print(f"{unit['source']}.{unit['unit']}: {len(rows)} duplicates removed", flush=True)
    return {
        **counts,
        "documents_out": writer.metadata["documents"],
        "bytes_out": writer.metadata["bytes"],
        "removed": dict(sorted(Counter(row["reason"] for row in rows).items())),
        **kept_texts,
    }
