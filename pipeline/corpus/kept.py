"""What the deduplication keeps of the documents of a unit: no text is written for it, each reader takes out the rest.

The file `deduplicated/SOURCE.UNIT.parquet` names the documents that stay, in the order of the filtered ones, and which
of their paragraphs are cut. Its metadata counts them as they are then.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.corpus.copies.paragraphs import without
from pipeline.corpus.documents import DEDUPLICATED_SCHEMA, read_metadata

KEPT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("cluster", pa.string()),  # null: the document itself
        pa.field("cluster_size", pa.int64(), nullable=False),
        pa.field("cut", pa.list_(pa.int64())),  # null: none
    ]
)


def beside(documents: Path, told: pa.Table, columns: list[str] | None = None) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield each row group of a file of documents, and of `told` the rows of the same ids: nulls where it has none.

    Args:
        told: rows of some of the documents, in the same order, with their `id`.
        columns: of the documents, `id` among them; all where it is None.

    Raises:
        InputError: it tells of other documents.
    """
    found = 0
    with pq.ParquetFile(documents) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=columns).replace_schema_metadata(None)
            next_ones = told.slice(found, table.num_rows)
            places = pc.index_in(table["id"], next_ones["id"])
            found += len(places) - places.null_count
            yield table, next_ones.take(places)
    if found != len(told):
        raise InputError(f"what is told of the documents of {documents} is told of others: rerun corpus.signatures")


def without_paragraphs(table: pa.Table, cut: pa.ChunkedArray) -> pa.Table:
    """Return documents, shape (rows,), without those of their paragraphs that are listed by their places in `cut`."""
    listed = {row: set(places) for row, places in enumerate(cut.to_pylist()) if places}
    if not listed:
        return table
    texts = table["text"].to_pylist()
    for row, places in listed.items():
        texts[row] = without(texts[row], places)
    return table.set_column(table.schema.get_field_index("text"), "text", pa.array(texts, pa.string()))


def schema_of(documents: Path, columns: list[str] | None = None) -> pa.Schema:
    """Return the columns of the documents that stay: those of the filtered ones as they are read, and the added ones.

    Of what is read from Parquet the elements of a list have another name than in DEDUPLICATED_SCHEMA, and final files
    say so.
    """
    stored = pq.read_schema(documents)
    named = [
        stored.field(name) if name in stored.names else DEDUPLICATED_SCHEMA.field(name)
        for name in DEDUPLICATED_SCHEMA.names
    ]
    return pa.schema([field for field in named if columns is None or field.name in columns])


def read_kept(documents: Path, deduplicated: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Yield the documents of a unit that stay, a row group at a time, as they are then.

    Args:
        columns: those of DEDUPLICATED_SCHEMA that are wanted; all where it is None.

    Raises:
        InputError: the two files are not of the same documents.
    """
    schema = schema_of(documents, columns)
    known, kept = read_metadata(documents), read_metadata(deduplicated)
    if [kept[key] for key in ("source", "unit", "documents_in")] != [known["source"], known["unit"], known["rows"]]:
        raise InputError(f"{deduplicated} is not made from {documents}: rerun corpus.deduplicate for that unit")
    stored = [name for name in schema.names if name not in ("cluster", "cluster_size")]
    for table, told in beside(documents, pq.read_table(deduplicated), list(dict.fromkeys(["id", *stored]))):
        whole = without_paragraphs(table, told["cut"])
        whole = whole.append_column("cluster", pc.coalesce(told["cluster"], table["id"]))
        whole = whole.append_column("cluster_size", told["cluster_size"])
        yield whole.filter(told["id"].is_valid()).select(schema.names).cast(schema)
