"""Reads tables, which are Parquet files and the files and streams of Arrow IPC (Feather), batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.sources.decompression import DamagedFile, ExpansionLimit, raise_disk_error
from pipeline.sources.raw_documents import (
    FieldNames,
    RawRecord,
    format_column_names,
    oversized_record,
    unsupported_type_message,
)

BATCH_BYTES = 1 << 24
BATCH_ROWS = 1000
_ARROW_FILE, _FEATHER_1, _END_OF_STREAM = b"ARROW1\0\0", b"FEA1", b"\xff\xff\xff\xff\0\0\0\0"
_TEXTS = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
)
_WITH_TEXT = (*_TEXTS, pa.types.is_null, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


class _ParquetTable:
    """A Parquet file; a batch has at most BATCH_ROWS rows and about BATCH_BYTES."""

    def __init__(self, path: Path, shared: str | None) -> None:
        self.schema = pq.read_schema(path)
        is_text = shared in self.schema.names and pa.types.is_string(self.schema.field(shared).type)
        self._file = pq.ParquetFile(path, read_dictionary=[shared] if is_text else [], buffer_size=1 << 20)

    def close(self) -> None:
        self._file.close()

    def batches(self, columns: list[str]) -> Iterator[tuple[pa.RecordBatch, int]]:
        position = 0
        for group in range(self._file.num_row_groups):
            described = self._file.metadata.row_group(group)
            row_bytes = max(described.total_byte_size // max(described.num_rows, 1), 1)
            size = sum(described.column(i).total_compressed_size for i in range(described.num_columns))
            rows, done = min(max(BATCH_BYTES // row_bytes, 1), BATCH_ROWS), 0
            for batch in self._file.iter_batches(rows, row_groups=[group], columns=columns):
                yield batch, position + size * done // described.num_rows
                done += batch.num_rows
            position += size


class _ArrowTable:
    """An Arrow IPC file or stream, whose batches are in memory one at a time, in slices of BATCH_ROWS rows."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, path.stat().st_size
        with path.open("rb") as raw:
            head = raw.read(len(_ARROW_FILE))
            raw.seek(max(self._size - len(_END_OF_STREAM), 0))
            end = raw.read()
        if head.startswith(_FEATHER_1):
            raise InputError(f"{path} is a file of Feather 1: write it again with pyarrow.feather.write_feather")
        self._is_file = head == _ARROW_FILE
        if not self._is_file and end != _END_OF_STREAM:
            sentence = f"{path} has no end, so it is truncated, or no Arrow file: fetch the file again"
            raise DamagedFile(sentence, "truncated")
        self._file = pa.OSFile(str(path))
        self._open = pa.ipc.open_file if self._is_file else pa.ipc.open_stream
        self.schema = self._open(self._file).schema

    def close(self) -> None:
        self._file.close()

    def batches(self, columns: list[str]) -> Iterator[tuple[pa.RecordBatch, int]]:
        self._file.seek(0)
        chosen = {key if key in self.schema.names else key.partition(".")[0] for key in columns}
        options = pa.ipc.IpcReadOptions(included_fields=[self.schema.get_field_index(name) for name in chosen])
        reader = self._open(self._file, options=options)
        position = 0
        for batch, end in self._batches_of_file(reader) if self._is_file else self._batches_of_stream(reader):
            for column in batch.columns:
                _validate(column)
            for row in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(row, BATCH_ROWS), position + (end - position) * row // batch.num_rows
            position = end

    def _batches_of_file(self, reader: Any) -> Iterator[tuple[pa.RecordBatch, int]]:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number), self._size * (number + 1) // reader.num_record_batches

    def _batches_of_stream(self, reader: Any) -> Iterator[tuple[pa.RecordBatch, int]]:
        for batch in reader:
            yield batch, self._file.tell()


def _validate(column: pa.Array) -> None:
    """Check the offsets of a column, which have no checksum; a string that is no UTF-8 concerns its row alone.

    Raises:
        pa.ArrowInvalid: the offsets point outside of the data.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise


@contextmanager
def open_table(path: Path, shared: str | None = None) -> Iterator[_ParquetTable | _ArrowTable]:
    """Open a Parquet or Arrow file, with `schema` and `batches(columns)`, which yields batches and their positions.

    A position is about the number of bytes of the file before the batch.

    Args:
        shared: a column that keeps the dictionary encoding of Parquet, so that shared texts are in memory once.

    Raises:
        DamagedFile: the file is truncated or of another format.
        InputError: it cannot be read, or two columns have one name.
    """
    is_parquet = path.suffix == ".parquet"
    try:
        table = _ParquetTable(path, shared) if is_parquet else _ArrowTable(path)
        names = table.schema.names
        if len(set(names)) < len(names):
            raise InputError(f"{path} has two columns of one name ({max(names, key=names.count)}): rename one")
        try:
            yield table
        finally:
            table.close()
    except (pa.ArrowException, OSError) as error:
        raise_disk_error(path, error)
        kind = "a Parquet" if is_parquet else "an Arrow"
        raise DamagedFile(f"{path} is truncated or not {kind} file: fetch the file again", "damaged") from None


def read_table(path: Path, keys: FieldNames, limit: int) -> Iterator[RawRecord]:
    """Yield the rows of a table.

    Args:
        limit: the largest text to keep in memory, in bytes.

    Raises:
        DamagedFile: the file is truncated or damaged.
        InputError: the file has no text column, or a column that opt-out lists refer to has an unsupported type.
    """
    expansion = ExpansionLimit(path)
    number = 0
    with open_table(path, shared=keys.text) as table:
        present = table.schema.names
        if keys.text not in present:
            raise InputError(
                f"{path} has no column {keys.text!r}: set text_key of the source to one of "
                f"{format_column_names(present)}"
            )
        columns = keys_with_columns(table.schema, keys.all_fields)
        check_column_types(path, table.schema, [keys.id, keys.url, keys.holder])
        for batch, position in table.batches(columns):
            for record in _read_rows(batch, columns, keys, limit, number, position):
                expansion.add(record.size)
                yield record
            number += batch.num_rows


def keys_with_columns(schema: pa.Schema, wanted: list[str]) -> list[str]:
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
    for key in keys_with_columns(schema, keys):
        kind: Any = _get_type(schema, key)
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not any(is_kind(value) for is_kind in _WITH_TEXT) and not isinstance(value, pa.UuidType):
            raise InputError(unsupported_type_message(str(path), key, str(kind)))


def get_column(batch: pa.RecordBatch, key: str) -> pa.Array:
    """Return the column of a key from `keys_with_columns`, shape (rows,)."""
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
