"""Documents and removed documents as Parquet: their columns, their order, and how they are read and written.

A file of documents is sorted by `id_hash`, then `id`, and carries in its Parquet metadata which unit it is and what it
counts, so that later steps can check that no document was lost.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# The reasons for which documents are removed that are neither a measure's nor a reader's.
OPT_OUT: Final = "opt_out"  # its holder reserved it, or it is a copy of what a holder reserved
LICENSE_NOT_STATED: Final = "license_not_stated"  # of its own, where the source names the field for it
LICENSE_NOT_UNDERSTOOD: Final = "license_not_understood"
LICENSE_NOT_ALLOWED: Final = "license_not_allowed"
LICENSE_DIFFERS: Final = "license_differs"  # from that of its source, which names no field for it
HARMFUL: Final = "harmful"  # a list or classifier flagged it that removes what it flags
LANGUAGE: Final = "language"
MIXED_LANGUAGE: Final = "mixed_language"
EMPTY: Final = "empty"  # no text is left that could be measured
LOREM_IPSUM: Final = "lorem_ipsum"
CURLY_BRACKET: Final = "curly_bracket"
TOO_FEW_SENTENCES: Final = "too_few_sentences"
EXACT_DUPLICATE: Final = "exact_duplicate"
NEAR_DUPLICATE: Final = "near_duplicate"
DUPLICATE_PARAGRAPHS: Final = "duplicate_paragraphs"  # of the deduplication: all of them occurred in other documents
CONTAMINATED: Final = "contaminated"
LICENSE_REASONS = (LICENSE_NOT_STATED, LICENSE_NOT_UNDERSTOOD, LICENSE_NOT_ALLOWED, LICENSE_DIFFERS)
RIGHTS_REASONS = (OPT_OUT, *LICENSE_REASONS)


def required_fields(**columns: pa.DataType) -> list[pa.Field]:
    """Return columns in which no value is null, by name."""
    return [pa.field(name, kind, nullable=False) for name, kind in columns.items()]


_STRING = pa.string()
DOCUMENT_SCHEMA = pa.schema(
    [
        *required_fields(id=_STRING, text=_STRING, language=_STRING, language_score=pa.float64(), source=_STRING),
        pa.field("license", _STRING),  # what the document says of itself; null: that of its source
        *(pa.field(name, _STRING) for name in ("url", "title", "date")),
        *required_fields(flags=pa.list_(_STRING), id_hash=pa.uint64()),
    ]
)
# What the deduplication adds: the id of the first document of those that are near each other, and how many copies a
# document stands for, itself included. `id_hash` stays last: its statistics tell a reader which row groups to skip.
DEDUPLICATED_SCHEMA = pa.schema(
    [*[*DOCUMENT_SCHEMA][:-1], *required_fields(cluster=_STRING, cluster_size=pa.int64(), id_hash=pa.uint64())]
)
# And what corpus.scores tells of a document, where the corpus asks for it.
FINAL_SCHEMA = pa.schema(
    [
        *[*DEDUPLICATED_SCHEMA][:-1],
        *(pa.field(name, pa.float64()) for name in ("quality", "perplexity")),
        *required_fields(id_hash=pa.uint64()),
    ]
)
REMOVED_SCHEMA = pa.schema(
    [
        *required_fields(id=_STRING, source=_STRING, stage=_STRING, reason=_STRING),
        pa.field("value", _STRING),
        *required_fields(bytes=pa.int64()),
        pa.field("language", _STRING),
    ]
)
ROWS_PER_GROUP = 1000
HASH_RANGES = 64
MAXIMUM_BUFFERED_CHARACTERS = 1 << 26
LAST_HASH = 2**64 - 1
SOURCE_LICENSE = ""  # counts documents without a licence of their own, which have that of their source


def _digest(document_id: str) -> bytes:
    return hashlib.sha256(document_id.encode()).digest()


def id_hash(document_id: str) -> int:
    """Return the first 8 bytes, big-endian, of the sha256 of an id."""
    return int.from_bytes(_digest(document_id)[:8], "big")


def is_validation_cluster(cluster: str, fraction: float) -> bool:
    """Return whether a cluster belongs to the held-out `fraction`, by the second 8 bytes of the sha256 of its id.

    So do all documents of it, that no text that is held out has a near copy among the others.
    """
    return int.from_bytes(_digest(cluster)[8:16], "big") / 2**64 < fraction


def read_batches(
    paths: Iterable[Path], hash_range: tuple[int, int] = (0, LAST_HASH), columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the documents of the files as record batches of at most ROWS_PER_GROUP rows, in their order.

    Args:
        hash_range: the least and the greatest `id_hash` that is wanted; row groups outside it are not read.
        columns: the columns that are wanted; all where it is None.
    """
    least, greatest = hash_range
    for path in paths:
        with pq.ParquetFile(path) as file:
            wanted = [*columns, "id_hash"] if columns is not None and "id_hash" not in columns else columns
            for group in range(file.num_row_groups):
                bounds = file.metadata.row_group(group).column(file.metadata.num_columns - 1).statistics
                if bounds is not None and bounds.has_min_max and (bounds.max < least or bounds.min > greatest):
                    continue
                for batch in file.iter_batches(ROWS_PER_GROUP, row_groups=[group], columns=wanted):
                    low, high = pa.scalar(least, pa.uint64()), pa.scalar(greatest, pa.uint64())
                    inside = batch.filter((pc.field("id_hash") >= low) & (pc.field("id_hash") <= high))
                    yield inside if columns is None else inside.select(columns)


def read_documents(
    paths: Iterable[Path], hash_range: tuple[int, int] = (0, LAST_HASH), columns: list[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the documents of the files as mappings, in the order of the files and of their rows; as `read_batches`."""
    for batch in read_batches(paths, hash_range, columns):
        yield from batch.to_pylist()


def read_row_groups(path: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rows of a file, a row group at a time."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=columns)


def read_metadata(path: Path) -> dict[str, Any]:
    """Return what a file says about itself, with its number of rows as `rows`."""
    metadata = pq.read_metadata(path)
    return {**json.loads(metadata.metadata[b"polder"]), "rows": metadata.num_rows}


def parquet_metadata(metadata: dict[str, Any]) -> dict[str, str]:
    """Return what a file says about itself as it is in the metadata of Parquet."""
    return {"polder": json.dumps(metadata, sort_keys=True)}


def write_table(path: Path, table: pa.Table, metadata: dict[str, Any]) -> None:
    """Write rows, and what the file says about itself."""
    pq.write_table(table.replace_schema_metadata(parquet_metadata(metadata)), path, compression="zstd")


class DocumentWriter:
    """Writes rows that are already in order; counts documents and bytes in all, by language, by licence, and flags.

    Documents without a licence of their own are counted under OF_SOURCE: no file of documents names that of a source.

    Args:
        schema: the columns that are written; what is counted need not be among them.
    """

    def __init__(self, path: Path, schema: pa.Schema = DOCUMENT_SCHEMA) -> None:
        self.metadata: dict[str, Any] = {"documents": 0, "bytes": 0, "languages": {}, "licenses": {}, "flags": {}}
        self._writer = pq.ParquetWriter(path, schema, compression="zstd")

    def __enter__(self) -> DocumentWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.add_key_value_metadata(parquet_metadata(self.metadata))
        self._writer.close()

    def write(self, table: pa.Table) -> None:
        """Write one row group, shape (rows,), of the columns of the schema and those that are counted."""
        if table.num_rows == 0:
            return
        sizes = pc.binary_length(table["text"])
        for column, counted in (("language", "languages"), ("license", "licenses")):
            grouped = pa.table({"name": table[column], "bytes": sizes}).group_by("name")
            for row in grouped.aggregate([([], "count_all"), ("bytes", "sum")]).to_pylist():
                counts = self.metadata[counted].setdefault(row["name"] or SOURCE_LICENSE, {"documents": 0, "bytes": 0})
                counts["documents"] += row["count_all"]
                counts["bytes"] += row["bytes_sum"]
        for entry in pc.value_counts(pc.list_flatten(table["flags"])).to_pylist():
            self.metadata["flags"][entry["values"]] = self.metadata["flags"].get(entry["values"], 0) + entry["counts"]
        self.metadata["documents"] += table.num_rows
        self.metadata["bytes"] += pc.sum(sizes).as_py()
        self._writer.write_table(table.select(self._writer.schema.names))


class DocumentCollector:
    """Holds the documents of one unit until they are written in order.

    What does not fit into BYTES_HELD goes to temporary files, each for a range of `id_hash`, so that a unit takes no
    more memory than that and one range.
    """

    def __init__(self) -> None:
        self._rows: list[list[dict[str, Any]]] = [[] for _ in range(HASH_RANGES)]
        self._bytes = 0
        self._files: dict[int, tuple[IO[bytes], pa.RecordBatchStreamWriter]] = {}

    def add(self, row: dict[str, Any]) -> None:
        """Add one document, a mapping of the columns of DOCUMENT_SCHEMA without `id_hash` and, if empty, `flags`."""
        hash_value = id_hash(row["id"])
        self._rows[hash_value * HASH_RANGES >> 64].append({"flags": [], **row, "id_hash": hash_value})
        self._bytes += len(row["text"])
        if self._bytes >= MAXIMUM_BUFFERED_CHARACTERS:
            for number, rows in enumerate(self._rows):
                self._writer(number).write_batch(pa.RecordBatch.from_pylist(rows, schema=DOCUMENT_SCHEMA))
                rows.clear()
            self._bytes = 0

    def _writer(self, number: int) -> pa.RecordBatchStreamWriter:
        if number not in self._files:
            file = tempfile.TemporaryFile()  # noqa: SIM115  it lives until it is read
            self._files[number] = file, pa.ipc.new_stream(file, DOCUMENT_SCHEMA)
        return self._files[number][1]

    def _range(self, number: int) -> pa.Table:
        """Return the documents of one range in order, and forget them."""
        table = pa.Table.from_pylist(self._rows[number], schema=DOCUMENT_SCHEMA)
        self._rows[number] = []
        if number in self._files:
            file, writer = self._files.pop(number)
            writer.close()
            file.seek(0)
            with file, pa.ipc.open_stream(file) as held:
                table = pa.concat_tables([held.read_all(), table])
        return table.sort_by([("id_hash", "ascending"), ("id", "ascending")])

    def write(self, path: Path, metadata: dict[str, Any]) -> dict[str, Any]:
        """Write what was added, sorted by `id_hash` and `id`; return the metadata of the file."""
        with DocumentWriter(path) as writer:
            writer.metadata |= metadata
            rest = DOCUMENT_SCHEMA.empty_table()
            for number in range(HASH_RANGES):
                rest = pa.concat_tables([rest, self._range(number)])
                while rest.num_rows >= ROWS_PER_GROUP or (number == HASH_RANGES - 1 and rest.num_rows):
                    writer.write(rest.slice(0, ROWS_PER_GROUP).combine_chunks())
                    rest = rest.slice(ROWS_PER_GROUP)
        return writer.metadata


def write_removed(path: Path, rows: list[dict[str, Any]], metadata: dict[str, Any]) -> None:
    """Write removed documents, mappings of the columns of REMOVED_SCHEMA, sorted by `id`."""
    ordered = sorted(rows, key=lambda row: str(row["id"]))
    write_table(path, pa.Table.from_pylist(ordered, schema=REMOVED_SCHEMA), metadata)
