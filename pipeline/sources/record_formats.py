"""Reads raw files as streams of records: JSON lines, Parquet, text, Markdown, HTML and WARC, by file extension."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.sources.character_encodings import decode_utf
from pipeline.sources.decompression import (
    COMPRESSIONS,
    Chunk,
    DamagedFile,
    DecompressedChunks,
    ExpansionLimit,
    raise_disk_error,
    read_lines,
    read_whole,
)
from pipeline.sources.raw_documents import (
    COMMON_LICENSE_KEYS,
    FieldNames,
    RawRecord,
    get_field,
    oversized_record,
    unsupported_type_message,
)
from pipeline.sources.spdx_licenses import format_license_field

FORMATS = f".jsonl, .ndjson, .txt, .md, .html, .htm and .warc, each also with .{', .'.join(COMPRESSIONS)}, and .parquet"
BATCH_BYTES = 1 << 24
BATCH_ROWS = 1000
_TEXTS = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
)
_WITH_TEXT = (*_TEXTS, pa.types.is_null, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


def split_compression(name: str) -> tuple[str, str]:
    """Return a file name without the extension of its compression, and the compression, which may be empty."""
    stem, _, ending = name.rpartition(".")
    return (stem, ending) if stem and ending in COMPRESSIONS else (name, "")


def read_records(path: Path, name: str, keys: FieldNames, limit: int) -> Iterator[RawRecord]:
    """Yield the records of a file in the format of its extension; blank lines are skipped.

    Args:
        limit: the largest record to keep in memory, in bytes; a larger one becomes a record without text.

    Raises:
        DamagedFile: the file is truncated or damaged.
        InputError: the format is unknown, or the file has no text column.
    """
    stem, compression = split_compression(name)
    if stem.endswith(".parquet") and not compression:
        yield from _read_parquet(path, keys, limit)
        return
    pieces = DecompressedChunks(path, compression)
    if stem.endswith((".jsonl", ".ndjson")):
        records = _read_json_lines(iter(pieces), limit)
    elif stem.endswith((".txt", ".md")):
        records = _read_plain_text(iter(pieces), keys, limit)
    elif stem.endswith((".html", ".htm", ".warc")):
        from pipeline.sources import web_pages  # takes a second to import, and few sources need it

        read_web = web_pages.read_archive if stem.endswith(".warc") else web_pages.read_page
        records = read_web(iter(pieces), path, keys, limit)
    else:
        raise InputError(f"{path}: its extension is unknown: use one of {FORMATS}")
    number = 0
    for record in records:
        number = record.number
        yield record
    if pieces.trailing:
        yield RawRecord(number + 1, pieces.trailing, None, "trailing_bytes", position=path.stat().st_size)


def _read_json_lines(source: Iterator[Chunk], limit: int) -> Iterator[RawRecord]:
    for number, line, size, position in read_lines(source, limit):
        if line is None:
            yield oversized_record(number, size, position)
            continue
        if not line.strip():
            continue
        try:
            fields = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError:
            yield RawRecord(number, size, None, "invalid_utf8", position=position)
        except (ValueError, RecursionError):
            yield RawRecord(number, size, None, "broken_json", position=position)
        else:
            if isinstance(fields, dict):
                yield RawRecord(number, size, fields, position=position)
            else:
                yield RawRecord(number, size, None, "not_an_object", position=position)


def _read_plain_text(source: Iterator[Chunk], keys: FieldNames, limit: int) -> Iterator[RawRecord]:
    content, size = read_whole(source, limit)
    if content is None:
        yield oversized_record(1, size)
    elif content.strip():
        try:
            yield RawRecord(1, size, {keys.text: decode_utf(content)})
        except UnicodeDecodeError:
            yield RawRecord(1, size, None, "invalid_utf8")


def _read_parquet(path: Path, keys: FieldNames, limit: int) -> Iterator[RawRecord]:
    """Yield the rows; the text column keeps its dictionary encoding, so that shared texts are in memory once."""
    try:
        expansion = ExpansionLimit(path)
        schema = pq.read_schema(path)
        present = schema.names
        if keys.text not in present:
            raise InputError(f"{path} has no column {keys.text!r}: set text_key of the source to one of {present}")
        if len(set(present)) < len(present):
            raise InputError(f"{path} has two columns of one name ({max(present, key=present.count)}): rename one")
        shared = [keys.text] if pa.types.is_string(schema.field(keys.text).type) else []
        with pq.ParquetFile(path, read_dictionary=shared, buffer_size=1 << 20) as file:
            columns = present_keys(schema, keys.all_fields)
            check_column_types(path, schema, [keys.id, keys.url, keys.holder])
            number = position = 0
            for group in range(file.num_row_groups):
                described = file.metadata.row_group(group)
                row_bytes = max(described.total_byte_size // max(described.num_rows, 1), 1)
                size = sum(described.column(i).total_compressed_size for i in range(described.num_columns))
                rows, done = min(max(BATCH_BYTES // row_bytes, 1), BATCH_ROWS), 0
                for batch in file.iter_batches(rows, row_groups=[group], columns=columns):
                    place = position + size * done // described.num_rows
                    for record in _read_rows(batch, columns, keys, limit, number, place):
                        expansion.add(record.size)
                        yield record
                    number, done = number + batch.num_rows, done + batch.num_rows
                position += size
    except (pa.ArrowException, OSError) as error:
        raise_disk_error(path, error)
        raise DamagedFile(f"{path} is truncated or not a Parquet file: fetch the file again", "damaged") from None


def present_keys(schema: pa.Schema, wanted: list[str]) -> list[str]:
    """Return the keys that name a column or a field of a column."""
    return [key for key in wanted if _get_type(schema, key) is not None]


def _get_type(fields: pa.Schema | pa.StructType, key: str) -> pa.DataType | None:
    if key in fields.names:
        return fields.field(key).type
    head, _, rest = key.partition(".")
    kind = fields.field(head).type if rest and head in fields.names else None
    return _get_type(kind, rest) if kind is not None and pa.types.is_struct(kind) else None


def check_column_types(path: Path, schema: pa.Schema, keys: list[str]) -> None:
    """Check that the columns that opt-out lists refer to have a supported type.

    Raises:
        InputError: a column has another type.
    """
    for key in present_keys(schema, keys):
        kind: Any = _get_type(schema, key)
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not any(is_kind(value) for is_kind in _WITH_TEXT) and not isinstance(value, pa.UuidType):
            raise InputError(unsupported_type_message(str(path), key, str(kind)))


def get_column(batch: pa.RecordBatch, key: str) -> pa.Array:
    """Return the column of a key from `present_keys`, shape (rows,)."""
    if key in batch.schema.names:
        return batch.column(key)
    head, *rest = key.split(".")
    return pc.struct_field(batch.column(head), rest)


def to_python_value(cell: pa.Scalar) -> Any:
    """Return the Python value of an Arrow scalar; None for a time that Python cannot represent.

    Raises:
        UnicodeDecodeError: the value is a string with invalid UTF-8.
    """
    try:
        return cell.as_py()
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError):
        return None


def _read_rows(
    batch: pa.RecordBatch, columns: list[str], keys: FieldNames, limit: int, before: int, position: int
) -> Iterator[RawRecord]:
    text = batch.column(keys.text)
    indices = None
    if pa.types.is_dictionary(text.type):
        indices, text = text.indices.to_pylist(), text.dictionary
    if any(is_kind(text.type) for is_kind in _TEXTS):
        text = text.cast(pa.large_binary())  # Parquet does not promise that a string is UTF-8
    others = {key: get_column(batch, key) for key in columns if key != keys.text}
    for row in range(batch.num_rows):
        place = row if indices is None else indices[row]
        cell = pa.scalar(None) if place is None else text[place]
        size = cell.as_buffer().size if isinstance(cell, pa.LargeBinaryScalar) and cell.is_valid else 0
        if size > limit:
            yield oversized_record(before + row + 1, size, position)
            continue
        try:
            value = to_python_value(cell)
            fields = {key: to_python_value(column[row]) for key, column in others.items()}
            fields[keys.text] = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            yield RawRecord(before + row + 1, size, None, "invalid_utf8", position=position)
        else:
            yield RawRecord(before + row + 1, size, fields, position=position)


# A line without a match has no license field; \u may encode a letter of its name.
LICENSE_FIELD_PATTERN = re.compile(rb"licen[cs]e|\\u")


def _json_license_values(path: Path, compression: str, limit: int) -> Iterator[Any]:
    for _, line, _, _ in read_lines(iter(DecompressedChunks(path, compression)), limit):
        if line is None or not LICENSE_FIELD_PATTERN.search(line):
            continue
        with suppress(ValueError, RecursionError):  # the filter counts a broken line
            fields = json.loads(line.decode("utf-8-sig"))
            if isinstance(fields, dict):
                yield from (get_field(fields, key) for key in COMMON_LICENSE_KEYS)


def _parquet_license_values(path: Path) -> Iterator[Any]:
    with pq.ParquetFile(path) as file:
        present = present_keys(file.schema_arrow, [*COMMON_LICENSE_KEYS])
        for batch in file.iter_batches(columns=present) if present else ():
            for key in present:
                for cell in get_column(batch, key):
                    with suppress(UnicodeDecodeError):
                        yield to_python_value(cell)


def states_license(path: Path, name: str, limit: int) -> bool:
    """Return whether any row of a raw file states its license; reading stops at the first one.

    A damaged file states none: the filter skips it or stops.

    Args:
        name: the file name, which determines the format; a part of a file is Parquet.
        limit: the largest row that the filter reads, in bytes.
    """
    stem, compression = split_compression(name)
    if stem.endswith((".jsonl", ".ndjson")):
        values = _json_license_values(path, compression, limit)
    elif stem.endswith(".parquet") and not compression:
        values = _parquet_license_values(path)
    else:  # a text or a page has no fields
        return False
    with suppress(InputError, pa.ArrowException, OSError, KeyError):  # KeyError: two columns of one name
        return any(format_license_field(value) for value in values)
    return False
