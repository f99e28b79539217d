"""Reads raw files as streams of records, in the format of their extension."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.sources.character_encodings import decode_utf
from pipeline.sources.decompression import (
    COMPRESSIONS,
    Chunk,
    DecompressedChunks,
    read_lines,
    read_whole,
)
from pipeline.sources.raw_documents import (
    COMMON_LICENSE_KEYS,
    FieldNames,
    RawRecord,
    format_column_names,
    get_field,
    oversized_record,
)
from pipeline.sources.spdx_license_parser import stringify_license_field
from pipeline.sources.table_formats import get_column, keys_with_columns, open_table, read_table, to_python_value

# By extension: how a file is read. Only a table is not also read compressed.
_FORMATS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".parquet", ".arrow", ".feather"), "table"),
    **dict.fromkeys((".txt", ".md"), "text"),
    **dict.fromkeys((".html", ".htm"), "page"),
    **dict.fromkeys((".warc", ".wet"), "archive"),
    ".wat": "metadata",
}
_COMPRESSIBLE = [ending for ending, kind in _FORMATS.items() if kind not in ("table", "metadata")]
EXTENSIONS = f"{', '.join(_COMPRESSIBLE)}, each also with .{', .'.join(COMPRESSIONS)}, .parquet, .arrow and .feather"


COLUMN_NAME = re.compile(r"[^\W\d][\w.-]{0,39}")


def split_format(path: Path | str, name: str) -> tuple[str, str]:
    """Return the format of a file and its compression, which may be empty, by its name.

    Raises:
        InputError: the extension is unknown, or of files without text.
    """
    stem, _, ending = name.rpartition(".")
    bare, compression = (stem, ending) if stem and ending in COMPRESSIONS else (name, "")
    kind = next((kind for ending, kind in _FORMATS.items() if bare.endswith(ending)), None)
    if kind == "metadata":
        raise InputError(
            f"{path} is a WAT file, which has links and headers of pages and no text: take the file of the same name "
            "in wet/ (.warc.wet.gz, the text) or in warc/ (.warc.gz, the pages)"
        )
    if kind is None or (kind == "table" and compression):
        raise InputError(f"{path}: its extension is unknown: use one of {EXTENSIONS}")
    return kind, compression


def read_records(path: Path, name: str, keys: FieldNames, limit: int) -> Iterator[RawRecord]:
    """Yield the records of a file in the format of its extension; blank lines are skipped.

    Args:
        limit: the largest record to keep in memory, in bytes; a larger one becomes a record without text.

    Raises:
        DamagedFile: the file is truncated or damaged.
        InputError: the format is unknown, or the file has no text column.
    """
    kind, compression = split_format(path, name)
    if kind == "table":
        yield from read_table(path, keys, limit)
        return
    pieces = DecompressedChunks(path, compression)
    if kind == "json":
        records = _read_json_lines(iter(pieces), path, limit)
    elif kind == "csv":
        records = read_csv(iter(pieces), path, limit, keys.text)
    elif kind == "text":
        records = _read_plain_text(iter(pieces), keys, limit)
    else:
        from pipeline.sources import web_pages  # takes a second to import, and few sources need it

        read_web = web_pages.read_archive if kind == "archive" else web_pages.read_page
        records = read_web(iter(pieces), path, keys, limit)
    number = 0
    for record in records:
        number = record.number
        yield record
    if pieces.trailing:
        yield RawRecord(number + 1, pieces.trailing, None, "trailing_bytes", position=path.stat().st_size)


def _read_json_lines(source: Iterator[Chunk], path: Path, limit: int) -> Iterator[RawRecord]:
    one_value = f"{path} is one JSON value, not one per line: write an object per line, a list with `jq -c '.[]'`"
    begin = [*islice(source, 1)]
    # A list on one line may be larger than the limit.
    if ".json" in path.suffixes and begin and begin[0][0].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        raise InputError(one_value)
    for number, line, size, position in read_lines(chain(begin, source), limit):
        if line is None:
            yield oversized_record(number, size, position)
            continue
        if not line.strip():
            continue
        if number == 1 and ".json" in path.suffixes and line.strip() == b"{":
            raise InputError(one_value)
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


class _OversizedRow(Exception):
    """A row of CSV is larger than the limit."""


class _CsvLines:
    """The lines of a CSV file for `csv.reader`, which takes several for a row with line breaks in quotation marks.

    Memory is bounded by the limit: a larger row raises _OversizedRow once and is skipped to its closing mark.

    Attributes:
        count, size: the lines and bytes of the row since `reset_row_counters`.
        position: of the last chunk that was read, in bytes.
    """

    def __init__(self, source: Iterator[Chunk], limit: int) -> None:
        self._lines = self._split_lines(source, limit)
        self._limit = limit
        self.count = self.size = self.position = 0

    def reset_row_counters(self) -> None:
        self.count = self.size = 0

    def __iter__(self) -> _CsvLines:
        return self

    def __next__(self) -> str:
        line, marks = self._take_line()
        if line is not None and self.size <= self._limit:
            return line.decode("utf-8", "surrogateescape")
        is_quoted = self.count > 1 and marks % 2 == 0  # the reader asks for a further line inside of marks alone
        with suppress(StopIteration):
            while is_quoted:
                is_quoted = self._take_line()[1] % 2 == 0
        raise _OversizedRow

    def _take_line(self) -> tuple[bytes | None, int]:
        line, size, marks, self.position = next(self._lines)
        self.count += 1
        self.size += size
        return line, marks

    @staticmethod
    def _split_lines(source: Iterator[Chunk], limit: int) -> Iterator[tuple[bytes | None, int, int, int]]:
        """Yield (line with its break or None beyond `limit`, bytes, quotation marks, position of its last chunk)."""
        pieces: list[bytes] = []
        size = marks = position = 0
        for chunk, position in source:
            *lines, rest = chunk.split(b"\n")
            for piece in [*(line + b"\n" for line in lines), *([rest] if rest else [])]:
                size += len(piece)
                marks += piece.count(b'"')
                if size > limit:
                    pieces.clear()
                else:
                    pieces.append(piece)
                if piece.endswith(b"\n"):
                    yield (b"".join(pieces) if size <= limit else None), size, marks, position
                    pieces, size, marks = [], 0, 0
        if size:
            yield (b"".join(pieces) if size <= limit else None), size, marks, position


def _check_columns(path: Path, names: list[str], text_key: str | None) -> None:
    """Check a header; its names are shown only if all are single words, for a file without one has a row of text there.

    Raises:
        InputError: it lacks the text column, or has two of one name.
    """
    if len(set(names)) < len(names):
        first = next(place for place, name in enumerate(names) if names.count(name) > 1)
        second = names.index(names[first], first + 1)
        raise InputError(f"{path} has one name for the columns {first + 1} and {second + 1}: rename one")
    if text_key is not None and names and text_key not in names:
        near = next((name for name in names if name.casefold() == text_key.casefold()), None)
        there = f", but {near!r}" if near else ""
        are_names = all(map(COLUMN_NAME.fullmatch, names))
        columns = f" ({format_column_names(names)})" if are_names else ""
        raise InputError(
            f"{path} has no column {text_key!r}{there} among its {len(names)}{columns}: set text_key of the source to "
            "the column with the texts, or write the names of the columns into the first line"
        )


def read_csv(source: Iterator[Chunk], path: Path, limit: int, text_key: str | None) -> Iterator[RawRecord]:
    """Yield the rows below the header of a CSV file (RFC 4180); an empty row is skipped.

    Columns are separated by the comma, semicolon or tab that occurs most in the header; in a .tsv file by tabs, and
    quotation marks are text (the media type text/tab-separated-values). A broken row of several lines may have begun
    with a stray quotation mark, and so hold other rows: each of its lines counts as a broken record.

    Args:
        text_key: a column that must be there; None for any.

    Raises:
        InputError: the header lacks the column, or has two of one name.
    """
    csv.field_size_limit(max(limit, csv.field_size_limit()))
    lines, is_tsv = _CsvLines(source, limit), ".tsv" in path.suffixes
    try:
        first = next(lines, "").removeprefix("\ufeff")
        rows = csv.reader(
            chain([first], lines),
            delimiter="\t" if is_tsv else max(",;\t", key=first.count),
            strict=True,
            quoting=csv.QUOTE_NONE if is_tsv else csv.QUOTE_MINIMAL,
        )
        names = next(rows, [])
    except (csv.Error, _OversizedRow):
        raise InputError(f"{path} has no header of CSV: write the names of its columns into its first line") from None
    _check_columns(path, names, text_key)
    number = 0
    while True:
        lines.reset_row_counters()
        try:
            row = next(rows)
        except StopIteration:
            return
        except (_OversizedRow, csv.Error) as error:
            if lines.count == 1 and isinstance(error, _OversizedRow):
                number += 1
                yield oversized_record(number, lines.size, lines.position)
                continue
            for line in range(lines.count):
                number += 1
                value = f"line {line + 1} of {lines.count}" if lines.count > 1 else None
                yield RawRecord(number, 0 if line else lines.size, None, "broken_csv", value, lines.position)
        else:
            number += bool(row)
            if row and len(row) != len(names):
                value = f"{len(row)} columns, and the header has {len(names)}"
                yield RawRecord(number, lines.size, None, "broken_csv", value, lines.position)
            elif row:
                yield RawRecord(number, lines.size, dict(zip(names, row, strict=True)), position=lines.position)


def _read_plain_text(source: Iterator[Chunk], keys: FieldNames, limit: int) -> Iterator[RawRecord]:
    content, size = read_whole(source, limit)
    if content is None:
        yield oversized_record(1, size)
    elif content.strip():
        try:
            yield RawRecord(1, size, {keys.text: decode_utf(content)})
        except UnicodeDecodeError:
            yield RawRecord(1, size, None, "invalid_utf8")


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


def _csv_license_values(path: Path, compression: str, limit: int) -> Iterator[Any]:
    for record in read_csv(iter(DecompressedChunks(path, compression)), path, limit, None):
        if record.fields is not None:
            if not record.fields.keys() & {*COMMON_LICENSE_KEYS}:
                return
            yield from (record.fields.get(key) for key in COMMON_LICENSE_KEYS)


def _table_license_values(path: Path) -> Iterator[Any]:
    with open_table(path) as table:
        present = keys_with_columns(table.schema, [*COMMON_LICENSE_KEYS])
        for batch, _ in table.batches(present) if present else ():
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
    with suppress(InputError):
        kind, compression = split_format(path, name)
        if kind == "json":
            values = _json_license_values(path, compression, limit)
        elif kind == "csv":
            values = _csv_license_values(path, compression, limit)
        elif kind == "table":
            values = _table_license_values(path)
        else:  # a text or a page has no fields
            return False
        return any(stringify_license_field(value) for value in values)
    return False
