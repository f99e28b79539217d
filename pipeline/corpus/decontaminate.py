"""Writes the final documents of one unit: the deduplicated documents without those that contain evaluation items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.corpus.document_streams import add_scores, kept_documents_schema, read_deduplicated_documents, read_scores
from pipeline.corpus.documents import CONTAMINATED, DocumentWriter, read_file_metadata, write_removed
from pipeline.corpus.settings import DecontaminateSettings

NO_FILES: list[Path] = []


def run(
    settings: DecontaminateSettings,
    *,
    documents: Path,
    deduplicated: Path,
    hits: Path,
    final: Path,
    removed: Path,
    scores: list[Path] = NO_FILES,
) -> dict[str, Any]:
    """Write the kept and the removed documents; return their counts.

    The value of a removed document is `TASK: ITEM`, the item with the most matched n-grams.

    Args:
        scores: files of scores of the unit's documents, if the corpus computes scores; those of classifiers last.

    Raises:
        InputError: the scores belong to other documents.
    """
    metadata = read_file_metadata(deduplicated)
    unit = {"source": metadata["source"], "unit": metadata["unit"], "stage": "decontaminate"}
    best: dict[str, tuple[int, str]] = {}
    for hit in pq.read_table(hits).to_pylist():
        if hit["found"] > best.get(hit["id"], (0, ""))[0]:
            best[hit["id"]] = hit["found"], f"{hit['task']}: {hit['item']}"
    scored = read_scores(scores, settings.classifiers)
    listed = pa.array(sorted(best), pa.string())
    rows: list[dict[str, Any]] = []
    columns = add_scores(kept_documents_schema(documents).empty_table(), scored).schema
    with DocumentWriter(final, columns) as writer:
        writer.metadata |= {**unit, "documents_in": metadata["documents"], "bytes_in": metadata["bytes"]}
        for table in read_deduplicated_documents(documents, deduplicated):
            is_contaminated = pc.is_in(table["id"], value_set=listed)
            removal = {"source": unit["source"], "stage": unit["stage"], "reason": CONTAMINATED}
            for row in table.filter(is_contaminated).select(["id", "text", "language"]).to_pylist():
                size = len(row.pop("text").encode())
                rows.append({**row, **removal, "value": best[row["id"]][1], "bytes": size})
            writer.write(add_scores(table.filter(pc.invert(is_contaminated)), scored))
    write_removed(removed, rows, unit)
    print(f"{unit['source']}.{unit['unit']}: {len(rows)} documents contain evaluation items", flush=True)
    return {
        "documents_in": metadata["documents"],
        "bytes_in": metadata["bytes"],
        "documents_out": writer.metadata["documents"],
        "bytes_out": writer.metadata["bytes"],
        "removed": {CONTAMINATED: len(rows)} if rows else {},
    }
