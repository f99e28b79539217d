"""Reads raw files as streams of records: JSON lines, Parquet and plain text, plain or compressed by gzip or zstd."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from pipeline.errors import InputError

CHUNK_BYTES = 1 << 20
FORMATS = ".jsonl, .ndjson, .txt and .md, each also with .gz or .zst, and .parquet"


@dataclass(frozen=True)
class Record:
    """One line of a file, or what stands for a line: a row of Parquet, a whole file of plain text.

    `number` counts from 1, `size` is in bytes, `fields` is None where the record is broken, `reason` then says how.
    """

    number: int
    size: int
    fields: dict[str, Any] | None
    reason: str | None = None


def read_records(path: Path, name: str, keys: list[str]) -> Iterator[Record]:
    """Yield the records of a file whose format is told by its name; blank lines are none.

    Args:
        keys: the fields that are wanted, the first of them the text.

    Raises:
        InputError: the format is not known, or the file is damaged.
    """
    stem, compression = name, ""
    if name.endswith((".gz", ".zst")):
        stem, _, compression = name.rpartition(".")
    try:
        if stem.endswith((".jsonl", ".ndjson")):
            yield from _json_lines(_lines(_chunks(path, compression)))
        elif stem.endswith((".txt", ".md")):
            yield from _plain_text(b"".join(_chunks(path, compression)), keys[0])
        elif stem.endswith(".parquet") and not compression:
            yield from _parquet(path, keys)
        else:
            raise InputError(f"{path}: the format is not known by its name: use one of {FORMATS}")
    except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise InputError(f"{path} is truncated or damaged ({error}): fetch the file again") from None
    except pa.ArrowInvalid:
        raise InputError(f"{path} is truncated or not a Parquet file: fetch the file again") from None


def _chunks(path: Path, compression: str) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file in pieces."""
    with path.open("rb") as stream:
        if compression == "zst":
            yield from _zstd_chunks(stream)
            return
        source: Any = gzip.GzipFile(fileobj=stream) if compression == "gz" else stream
        while chunk := source.read(CHUNK_BYTES):
            yield chunk


def _zstd_chunks(stream: io.BufferedReader) -> Iterator[bytes]:
    """Yield the content of all zstd frames; the library's own reader takes a truncated frame for a whole one."""
    decompressor, complete = zstandard.ZstdDecompressor().decompressobj(), True
    while data := stream.read(CHUNK_BYTES):
        while data:
            if complete:
                decompressor = zstandard.ZstdDecompressor().decompressobj()
            yield decompressor.decompress(data)
            complete, data = decompressor.eof, decompressor.unused_data
    if not complete:
        raise EOFError("the last zstd frame has no end")


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream, without their line feeds."""
    pieces: list[bytes] = []
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        pieces.append(first)
        for other in others:
            yield b"".join(pieces)
            pieces = [other]
    yield b"".join(pieces)


def _json_lines(lines: Iterator[bytes]) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        size = len(line)
        try:
            fields = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError:
            yield Record(number, size, None, "invalid_utf8")
        except (ValueError, RecursionError):
            yield Record(number, size, None, "broken_json")
        else:
            if isinstance(fields, dict):
                yield Record(number, size, fields)
            else:
                yield Record(number, size, None, "not_an_object")


def _plain_text(content: bytes, text_key: str) -> Iterator[Record]:
    if content.strip():
        try:
            yield Record(1, len(content), {text_key: content.decode("utf-8-sig")})
        except UnicodeDecodeError:
            yield Record(1, len(content), None, "invalid_utf8")


def _parquet(path: Path, keys: list[str]) -> Iterator[Record]:
    with pq.ParquetFile(path) as file:
        present = file.schema_arrow.names
        if keys[0] not in present:
            raise InputError(f"{path} has no column {keys[0]!r}: set text_key of the source to one of {present}")
        number = 0
        for batch in file.iter_batches(1000, columns=[key for key in keys if key in present]):
            text = batch.column(keys[0])
            if pa.types.is_string(text.type) or pa.types.is_large_string(text.type):
                text = text.cast(pa.large_binary())  # Parquet does not promise that a string is UTF-8
            others = {key: batch.column(key) for key in batch.schema.names if key != keys[0]}
            for row in range(batch.num_rows):
                number += 1
                value = text[row].as_py()
                try:
                    fields = {key: column[row].as_py() for key, column in others.items()}
                    fields[keys[0]] = value.decode() if isinstance(value, bytes) else value
                except UnicodeDecodeError:
                    yield Record(number, len(value or b""), None, "invalid_utf8")
                else:
                    yield Record(number, len(value) if isinstance(value, bytes) else 0, fields)
