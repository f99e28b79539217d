"""Reads and writes documents and removed documents as Parquet, and defines their columns.

A file of documents is sorted by `id_hash`, then `id`. Its Parquet metadata names its unit and its counts, so that
later steps can check that no document was lost.
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

# Reasons for removing documents, besides those of filter rules and of the raw text reader.
OPT_OUT: Final = "opt_out"  # its rights holder opted out, or it is a copy of such a document
RESERVED_BY_PAGE: Final = "reserved_by_page"  # a header or meta tag of the page reserves rights
LICENSE_NOT_STATED: Final = "license_not_stated"  # the source names a field for licenses, and it is empty
LICENSE_NOT_UNDERSTOOD: Final = "license_not_understood"
LICENSE_NOT_ALLOWED: Final = "license_not_allowed"
LICENSE_DIFFERS: Final = "license_differs"  # from the license of its source, which names no field for licenses
HARMFUL: Final = "harmful"  # flagged by a list or classifier with `remove`
LANGUAGE_DIFFERS: Final = "language_differs"  # from the language of its source, as the document states it
URL_BLOCKED: Final = "url_blocked"
URL_NOT_ALLOWED: Final = "url_not_allowed"
LANGUAGE: Final = "language"
MIXED_LANGUAGE: Final = "mixed_language"
EMPTY: Final = "empty"  # no text is left to measure
LOREM_IPSUM: Final = "lorem_ipsum"
CURLY_BRACKET: Final = "curly_bracket"
TOO_FEW_SENTENCES: Final = "too_few_sentences"
EXACT_DUPLICATE: Final = "exact_duplicate"
NEAR_DUPLICATE: Final = "near_duplicate"
DUPLICATE_PARAGRAPHS: Final = "duplicate_paragraphs"  # all its paragraphs occur in other documents
REPEATED_PASSAGES: Final = "repeated_passages"  # words in a row that an earlier document has
BOILERPLATE_LINES: Final = "boilerplate_lines"  # that occur in many documents of one domain
CONTAMINATED: Final = "contaminated"
LICENSE_REASONS = (LICENSE_NOT_STATED, LICENSE_NOT_UNDERSTOOD, LICENSE_NOT_ALLOWED, LICENSE_DIFFERS)
RIGHTS_REASONS = (OPT_OUT, RESERVED_BY_PAGE, *LICENSE_REASONS)
NO_YEAR = "not stated"  # the group of documents without a year
LENGTHS_PER_DOUBLING = 2  # bins of document lengths, on a logarithmic scale
STATED_REASONS = (LANGUAGE_DIFFERS, URL_BLOCKED, URL_NOT_ALLOWED)  # what a source states, not the text


def make_non_nullable_fields(**columns: pa.DataType) -> list[pa.Field]:
    """Return non-nullable columns, by name."""
    return [pa.field(name, kind, nullable=False) for name, kind in columns.items()]


_STRING = pa.string()
DOCUMENT_SCHEMA = pa.schema(
    [
        *make_non_nullable_fields(
            id=_STRING, text=_STRING, language=_STRING, language_score=pa.float64(), source=_STRING
        ),
        pa.field("license", _STRING),  # the document's own; null: the license of its source
        *(pa.field(name, _STRING) for name in ("url", "title", "date")),
        *make_non_nullable_fields(flags=pa.list_(_STRING), id_hash=pa.uint64()),
    ]
)
# Deduplication adds the id of the first document of the cluster, and the number of copies that a document represents,
# itself included. `id_hash` stays last: readers skip row groups by its statistics.
DEDUPLICATED_SCHEMA = pa.schema(
    [*[*DOCUMENT_SCHEMA][:-1], *make_non_nullable_fields(cluster=_STRING, cluster_size=pa.int64(), id_hash=pa.uint64())]
)
# Adds the scores of corpus.scores and corpus.perplexity.
FINAL_SCHEMA = pa.schema(
    [
        *[*DEDUPLICATED_SCHEMA][:-1],
        *(pa.field(name, pa.float64()) for name in ("quality", "perplexity")),
        *make_non_nullable_fields(id_hash=pa.uint64()),
    ]
)
REMOVED_SCHEMA = pa.schema(
    [
        *make_non_nullable_fields(id=_STRING, source=_STRING, stage=_STRING, reason=_STRING),
        pa.field("value", _STRING),
        *make_non_nullable_fields(bytes=pa.int64()),
        pa.field("language", _STRING),
    ]
)
ROWS_PER_GROUP = 1000
HASH_RANGES = 64
MAXIMUM_BUFFERED_CHARACTERS = 1 << 26
LAST_HASH = 2**64 - 1
SOURCE_LICENSE = ""  # key of counts of documents without their own license, which have the license of their source


def _digest(document_id: str) -> bytes:
    return hashlib.sha256(document_id.encode()).digest()


def id_hash(document_id: str) -> int:
    """Return the first 8 bytes, big-endian, of the sha256 of an id."""
    return int.from_bytes(_digest(document_id)[:8], "big")


def is_validation_cluster(cluster: str, fraction: float) -> bool:
    """Return whether a cluster is in the held-out `fraction`, by the second 8 bytes of the sha256 of its id.

    All documents of a cluster get the same answer, so no held-out text has a near duplicate in the training split.
    """
    return int.from_bytes(_digest(cluster)[8:16], "big") / 2**64 < fraction


def read_batches(
    paths: Iterable[Path], hash_range: tuple[int, int] = (0, LAST_HASH), columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the documents of the files as record batches of at most ROWS_PER_GROUP rows, in order.

    Args:
        hash_range: the smallest and the largest `id_hash` to include; other row groups are not read.
        columns: the columns to return; None returns all.
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
    """Yield the documents of the files as dictionaries, in order; see `read_batches` for the arguments."""
    for batch in read_batches(paths, hash_range, columns):
        yield from batch.to_pylist()


def read_row_groups(path: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rows of a file, a row group at a time."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=columns)


def read_file_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a Parquet file of this package, with its number of rows as `rows`."""
    metadata = pq.read_metadata(path)
    return {**json.loads(metadata.metadata[b"polder"]), "rows": metadata.num_rows}


def encode_parquet_metadata(metadata: dict[str, Any]) -> dict[str, str]:
    return {"polder": json.dumps(metadata, sort_keys=True)}


def write_table(path: Path, table: pa.Table, metadata: dict[str, Any]) -> None:
    """Write a table with its metadata to a Parquet file."""
    pq.write_table(table.replace_schema_metadata(encode_parquet_metadata(metadata)), path, compression="zstd")


class DocumentWriter:
    """Writes sorted rows, and counts documents and bytes in total, by language and by license, and flags.

    Documents without their own license are counted under SOURCE_LICENSE.

    Args:
        schema: the columns to write; the counted columns may be missing.
    """

    def __init__(self, path: Path, schema: pa.Schema = DOCUMENT_SCHEMA) -> None:
        self.metadata: dict[str, Any] = {"documents": 0, "bytes": 0, "languages": {}, "licenses": {}, "flags": {}}
        self._writer = pq.ParquetWriter(path, schema, compression="zstd")

    def __enter__(self) -> DocumentWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.add_key_value_metadata(encode_parquet_metadata(self.metadata))
        self._writer.close()

    def write(self, table: pa.Table) -> None:
        """Write one row group, shape (rows,), with the columns of the schema and the counted columns."""
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
    """Collects the documents of one unit and writes them sorted.

    Beyond MAXIMUM_BUFFERED_CHARACTERS, documents go to temporary files, one per range of `id_hash`. This bounds memory
    to the buffer and one range.
    """

    def __init__(self) -> None:
        self._rows: list[list[dict[str, Any]]] = [[] for _ in range(HASH_RANGES)]
        self._bytes = 0
        self._files: dict[int, tuple[IO[bytes], pa.RecordBatchStreamWriter]] = {}

    def add(self, row: dict[str, Any]) -> None:
        """Add one document: the columns of DOCUMENT_SCHEMA without `id_hash`; `flags` may be missing."""
        hash_value = id_hash(row["id"])
        self._rows[hash_value * HASH_RANGES >> 64].append({"flags": [], **row, "id_hash": hash_value})
        self._bytes += len(row["text"])
        if self._bytes >= MAXIMUM_BUFFERED_CHARACTERS:
            for number, rows in enumerate(self._rows):
                self._range_writer(number).write_batch(pa.RecordBatch.from_pylist(rows, schema=DOCUMENT_SCHEMA))
                rows.clear()
            self._bytes = 0

    def _range_writer(self, number: int) -> pa.RecordBatchStreamWriter:
        if number not in self._files:
            file = tempfile.TemporaryFile()  # noqa: SIM115  closed after it is read
            self._files[number] = file, pa.ipc.new_stream(file, DOCUMENT_SCHEMA)
        return self._files[number][1]

    def _take_range(self, number: int) -> pa.Table:
        """Return the documents of one range, sorted, and drop them from memory."""
        table = pa.Table.from_pylist(self._rows[number], schema=DOCUMENT_SCHEMA)
        self._rows[number] = []
        if number in self._files:
            file, writer = self._files.pop(number)
            writer.close()
            file.seek(0)
            with file, pa.ipc.open_stream(file) as stream:
                table = pa.concat_tables([stream.read_all(), table])
        return table.sort_by([("id_hash", "ascending"), ("id", "ascending")])

    def write(self, path: Path, metadata: dict[str, Any]) -> dict[str, Any]:
        """Write all added documents, sorted by `id_hash` and `id`; return the metadata of the file."""
        with DocumentWriter(path) as writer:
            writer.metadata |= metadata
            rest = DOCUMENT_SCHEMA.empty_table()
            for number in range(HASH_RANGES):
                rest = pa.concat_tables([rest, self._take_range(number)])
                while rest.num_rows >= ROWS_PER_GROUP or (number == HASH_RANGES - 1 and rest.num_rows):
                    writer.write(rest.slice(0, ROWS_PER_GROUP).combine_chunks())
                    rest = rest.slice(ROWS_PER_GROUP)
        return writer.metadata


def write_removed(path: Path, rows: list[dict[str, Any]], metadata: dict[str, Any]) -> None:
    """Write removed documents, dictionaries with the columns of REMOVED_SCHEMA, sorted by `id`."""
    ordered = sorted(rows, key=lambda row: str(row["id"]))
    write_table(path, pa.Table.from_pylist(ordered, schema=REMOVED_SCHEMA), metadata)
