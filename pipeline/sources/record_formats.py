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
from pipeline.sources.raw_documents import COMMON_LICENSE_KEYS, FieldNames, RawRecord, get_field, oversized_record
from pipeline.sources.spdx_licenses import format_license_field
from pipeline.sources.table_formats import get_column, open_table, present_keys, read_table, to_python_value

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


SHOWN_NAMES = 20  # of a header
# Of a column; a file without a header has a row of texts, and perhaps of personal data, in its place.
_COLUMN_NAME = re.compile(r"[a-z][a-z]{0,19}(?:_[a-z]{1,19}){0,3}|[A-Z_]{1,20}", re.ASCII)


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

    Memory is bounded by the limit: a larger row raises _OversizedRow once and is skipped to its end.
    """

    def __init__(self, source: Iterator[Chunk], limit: int) -> None:
        self._lines = self._split_lines(source, limit)
        self._limit = limit
        self._row: list[tuple[bytes | None, int, int]] = []
        self._again: list[tuple[bytes | None, int, int]] = []
        """Lines to read again, the last one first."""
        self._quoted, self._last = False, b""
        self.size = self.position = 0

    def start_row(self) -> None:
        self._row, self.size, self._last = [], 0, b""

    def read_header_line(self) -> str:
        """Return the first line, which is read again as a row; empty at the end of the file."""
        first = next(self, "").removeprefix("\ufeff")
        self._again = [(first.encode("utf-8", "surrogateescape"), 0, self.position)] if first else []
        self.start_row()
        return first

    def read_again_from_second_line(self) -> None:
        """After a broken row, give its lines again but for the first one: its quotation mark may be a stray one."""
        self._again += self._row[:0:-1]
        _, self.size, self.position = self._row[0]

    def __iter__(self) -> _CsvLines:
        return self

    def __next__(self) -> str:
        self._quoted = bool(self._row)  # the reader takes a further line only inside of quotation marks
        line = self._next_line()
        if line is None or self.size > self._limit:
            self._follow_marks(line or b"")
            with suppress(StopIteration):
                while self._quoted:
                    self._follow_marks(self._next_line() or b"")
            raise _OversizedRow
        return line.decode("utf-8", "surrogateescape")

    def _next_line(self) -> bytes | None:
        taken = self._again.pop() if self._again else next(self._lines)
        line, size, self.position = taken
        self.size += size
        if self.size <= self._limit:
            self._row.append(taken)
        return line

    def _follow_marks(self, piece: bytes) -> None:
        """Follow whether a row is inside of quotation marks, which begin only at the beginning of a field."""
        for number, part in enumerate(piece.split(b'"')):
            if number and self._quoted:
                self._quoted, self._last = False, b'"'  # two marks are one of the text
            elif number:
                self._quoted, self._last = self._last in (b"", b'"', b",", b";", b"\t"), b"x"
            self._last = part[-1:] or self._last

    def _split_lines(self, source: Iterator[Chunk], limit: int) -> Iterator[tuple[bytes | None, int, int]]:
        """Yield (line with its break or None beyond `limit`, bytes, position of its last chunk)."""
        pieces: list[bytes] = []
        size = position = 0
        for chunk, position in source:
            *lines, rest = chunk.split(b"\n")
            for piece in [*(line + b"\n" for line in lines), *([rest] if rest else [])]:
                size += len(piece)
                pieces.append(piece)
                if size > limit:
                    for large in pieces:
                        self._follow_marks(large)
                    pieces = []
                if piece.endswith(b"\n"):
                    yield (b"".join(pieces) if size <= limit else None), size, position
                    pieces, size = [], 0
        if size:
            yield (b"".join(pieces) if size <= limit else None), size, position


def read_csv(source: Iterator[Chunk], path: Path, limit: int, text_key: str | None) -> Iterator[RawRecord]:
    """Yield the rows below the header of a CSV file (RFC 4180); an empty row is skipped.

    Columns are separated by the comma, semicolon or tab that occurs most in the header. In a .tsv file quotation marks
    are text, as in the media type text/tab-separated-values. Only the first line of a broken row is lost.

    Args:
        text_key: a column that must be there; None for any.

    Raises:
        InputError: the header lacks the column, or has two of one name.
    """
    csv.field_size_limit(max(limit, csv.field_size_limit()))
    lines = _CsvLines(source, limit)
    try:
        first = lines.read_header_line()
        delimiter = max(",;\t", key=first.count)
        is_tsv = ".tsv" in path.suffixes
        rows = csv.reader(
            lines, delimiter=delimiter, strict=True, quoting=csv.QUOTE_NONE if is_tsv else csv.QUOTE_MINIMAL
        )
        names = next(rows, [])
    except (csv.Error, _OversizedRow):
        raise InputError(f"{path} has no header of CSV: write the names of its columns into its first line") from None
    if len(set(names)) < len(names):
        name = max(names, key=names.count)
        shown = f" ({name})" if _COLUMN_NAME.fullmatch(name) else ""
        raise InputError(f"{path} has two columns of one name{shown}: rename one")
    if text_key is not None and first and text_key not in names:
        listed = [name for name in names[:SHOWN_NAMES] if _COLUMN_NAME.fullmatch(name)]
        advice = f"set text_key of the source to one of {listed}" if listed else "write their names into its first line"
        raise InputError(f"{path} has no column {text_key!r}, of {len(names)} columns: {advice}")
    number = 0
    while True:
        lines.start_row()
        try:
            row = next(rows)
        except StopIteration:
            return
        except _OversizedRow:
            number += 1
            yield oversized_record(number, lines.size, lines.position)
        except csv.Error:
            number += 1
            lines.read_again_from_second_line()
            yield RawRecord(number, lines.size, None, "broken_csv", position=lines.position)
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
        present = present_keys(table.schema, [*COMMON_LICENSE_KEYS])
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
        return any(format_license_field(value) for value in values)
    return False
