"""Searches the documents of one unit for n-grams of evaluation items; corpus.find_items evaluates all units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.settings import Settings
from pipeline.corpus.decontamination.item_search import ItemSearch
from pipeline.corpus.document_streams import read_deduplicated_documents
from pipeline.corpus.documents import encode_parquet_metadata, make_non_nullable_fields, read_file_metadata

MATCH_SCHEMA = pa.schema(
    make_non_nullable_fields(id=pa.string(), document=pa.int64(), language=pa.string(), ngram=pa.int64())
)


def run(settings: Settings, *, documents: Path, deduplicated: Path, ngrams: Path, matches: Path) -> dict[str, Any]:
    """Write a row for each n-gram in each deduplicated document, in order; return their counts."""
    search = ItemSearch(pq.read_table(ngrams))
    metadata = read_file_metadata(deduplicated)
    unit = {key: metadata[key] for key in ("source", "unit", "documents", "languages")}
    with pq.ParquetWriter(matches, MATCH_SCHEMA, compression="zstd") as writer:
        first = match_count = 0
        for table in read_deduplicated_documents(documents, deduplicated, ["id", "text", "language"]):
            pairs = search.find_matches(table["text"].to_pylist())
            document_columns = table.select(["id", "language"]).take(pa.array(pairs[:, 0]))
            columns = {"document": pairs[:, 0] + first, "ngram": pairs[:, 1]}
            rows = pa.table({"id": document_columns["id"], "language": document_columns["language"], **columns})
            writer.write_table(rows.select(MATCH_SCHEMA.names).cast(MATCH_SCHEMA))
            first, match_count = first + table.num_rows, match_count + len(pairs)
        writer.add_key_value_metadata(encode_parquet_metadata(unit))
    print(f"{unit['source']}.{unit['unit']}: {match_count} times an n-gram in a document", flush=True)
    return {"documents": metadata["documents"], "matches": match_count}
