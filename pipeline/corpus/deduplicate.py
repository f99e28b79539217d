"""Removes duplicate documents of one unit, and repeated paragraphs, lines and passages from those that remain."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datatrove.data import Document

from pipeline.core.errors import InputError
from pipeline.corpus.document_streams import KEPT_SCHEMA, SPANS, read_aligned, remove_listed_parts
from pipeline.corpus.documents import DocumentWriter, read_file_metadata, write_removed
from pipeline.corpus.removed_documents import create_removed_text_writer
from pipeline.corpus.settings import DeduplicateSettings


def _read_duplicates(duplicates: Path, documents: Path, known: dict[str, Any]) -> pa.Table:
    made_from = read_file_metadata(duplicates)
    if [made_from[key] for key in ("source", "unit", "documents")] != [known["source"], known["unit"], known["rows"]]:
        raise InputError(f"{duplicates} is not made from {documents}: rerun corpus.signatures for that unit")
    return pq.read_table(duplicates)


def run(
    settings: DeduplicateSettings,
    *,
    documents: Path,
    duplicates: Path,
    deduplicated: Path,
    removed: Path,
    private: Path | None = None,
) -> dict[str, Any]:
    """Write the ids of kept documents, and the removed documents; return their counts, by reason.

    Args:
        private: file for removed documents with their masked texts, written if `keep_removed` is set.

    Raises:
        InputError: the duplicates belong to other documents.
    """
    texts = create_removed_text_writer(settings, private)
    metadata = read_file_metadata(documents)
    copies = _read_duplicates(duplicates, documents, metadata)
    unit: dict[str, Any] = {"source": metadata["source"], "unit": metadata["unit"], "stage": "deduplicate"}
    rows: list[dict[str, Any]] = []
    bytes_cut = 0
    cut_by_reason: defaultdict[str, Counter[str]] = defaultdict(Counter)
    part_names = [name for name in ("cut", "spans") if name in copies.column_names]
    schema = KEPT_SCHEMA.append(pa.field("spans", SPANS)) if "spans" in part_names else KEPT_SCHEMA
    with DocumentWriter(deduplicated, schema) as writer:
        for table, duplicates_of in read_aligned(documents, copies):
            shortened, cut_sizes = remove_listed_parts(table, duplicates_of)
            lengths, sizes = (pc.binary_length(each["text"]) for each in (shortened, table))
            nothing_left = pc.and_(pc.equal(lengths, 0), pc.greater(sizes, 0))
            largest = {row: max(sizes_of, key=sizes_of.__getitem__) for row, sizes_of in cut_sizes.items() if sizes_of}
            cut_reasons = pa.array([largest.get(row) for row in range(table.num_rows)], pa.string())
            reasons = pc.if_else(nothing_left, cut_reasons, duplicates_of["reason"])
            is_kept = reasons.is_null()
            for row, by_reason in cut_sizes.items():
                for reason, size in by_reason.items() if is_kept[row].as_py() else ():
                    cut_by_reason[reason].update(documents=1, bytes=size)
            added = {
                "cluster": pc.if_else(pc.equal(duplicates_of["cluster"], table["id"]), None, duplicates_of["cluster"]),
                "cluster_size": pc.fill_null(duplicates_of["cluster_size"], 1),
            }
            for name in part_names:  # without the documents that keep the parts: they do not change the text
                added[name] = pa.array(
                    [parts or None for parts in duplicates_of[name].to_pylist()], schema.field(name).type
                )
            for name, column in added.items():
                shortened = shortened.append_column(schema.field(name), column)
            writer.write(shortened.filter(is_kept))
            bytes_cut += (pc.sum(sizes.filter(is_kept)).as_py() or 0) - (pc.sum(lengths.filter(is_kept)).as_py() or 0)
            removal = pa.table({"id": table["id"], "reason": reasons, "value": duplicates_of["value"], "bytes": sizes})
            is_removed = pc.invert(is_kept)
            of_unit = {key: unit[key] for key in ("source", "stage")}
            for row, document in zip(
                removal.filter(is_removed).to_pylist(), table.filter(is_removed).to_pylist(), strict=True
            ):
                rows.append(row | of_unit)
                if texts is not None:
                    texts.add(rows[-1], Document(text=document["text"], id=document["id"], metadata=document))
        counts = {"documents_in": metadata["documents"], "bytes_in": metadata["bytes"], "bytes_cut": bytes_cut}
        if cut_by_reason:
            counts["cut"] = {reason: dict(sizes) for reason, sizes in sorted(cut_by_reason.items())}
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
