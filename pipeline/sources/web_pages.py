"""Extracts the main text of web pages and WARC archives, without navigation, advertisements and comments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from trafilatura import extract, load_html
from warcio.archiveiterator import ArchiveIterator
from warcio.bufferedreaders import BufferedReader, ChunkedDataReader
from warcio.exceptions import ArchiveLoadFailed

from pipeline.sources.character_encodings import DecodedText, decode_page, decode_text, parse_content_type
from pipeline.sources.decompression import Chunk, ChunkReader, DamagedFile, read_whole
from pipeline.sources.raw_documents import FieldNames, RawRecord, Unreadable, oversized_record
from pipeline.sources.web_reservation_rules import read_page_reservation

PAGE_TYPES = ("text/html", "application/xhtml+xml")
TEXT_TYPE = "text/plain"
PAGE_RECORDS = ("response", "resource", "conversion")  # WARC records with pages
# Invalid in XML: trafilatura joins words at such white space, and finds nothing in a page with such an entity.
_SEPARATOR = re.compile("[\x0b\x0c\x1c-\x1f]")
_ENTITY = re.compile(r"&#(?:[xX]0*([0-9a-fA-F]{1,4})(?![0-9a-fA-F])|0*(\d{1,5})(?!\d));?")
_WORD_BREAK = re.compile(r"</?wbr\s*/?>", re.IGNORECASE)  # inside a word, where trafilatura would end a line
# Arrow decompresses codings that warcio does not know, and inner codings.
_ARROW_CODINGS = {"br": "brotli", "zstd": "zstd", "gzip": "gzip", "x-gzip": "gzip"}
_WARCIO_CODINGS = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}


def extract_main_text(page: str) -> tuple[str | None, str | None]:
    """Return the main text and the title of a web page, each None if missing."""
    tree = parse_page(page)
    if tree is None:
        return None, None
    title = tree.findtext(".//title")
    return extract(tree, include_comments=False), " ".join(title.split()) if title else None


def parse_page(page: str) -> Any:
    """Return the tree of a web page without characters that are invalid in XML; None if it has none."""
    return load_html(_ENTITY.sub(_remove_control_entity, _SEPARATOR.sub(" ", _WORD_BREAK.sub("", page))))


def _remove_control_entity(entity: re.Match[str]) -> str:
    code = int(entity[1], 16) if entity[1] else int(entity[2])
    if code in (0xFFFE, 0xFFFF):
        return ""
    return " " if code < 0x20 and chr(code) not in "\t\n\r" else entity[0]


def read_page(source: Iterator[Chunk], path: Path, keys: FieldNames, limit: int) -> Iterator[RawRecord]:
    """Yield the record of one HTML file with its main text."""
    content, size = read_whole(source, limit)
    if content is None:
        yield oversized_record(1, size)
    elif content.strip():
        yield _page_record(1, size, decode_page(content, None), {}, keys)


def _page_record(
    number: int,
    size: int,
    page: DecodedText,
    known: dict[str, Any],
    keys: FieldNames,
    position: int = 0,
    headers: Iterable[tuple[str, str]] = (),
) -> RawRecord:
    text, title = extract_main_text(page.text)
    fields = None if text is None else {keys.title: title, **known, keys.text: text}
    reason: Unreadable | None = "no_main_text" if text is None else None
    reservation = read_page_reservation(headers, page.text)
    return RawRecord(number, size, fields, reason, None, position, page.known_by, page.errors, reservation)


def read_archive(source: Iterator[Chunk], path: Path, keys: FieldNames, limit: int) -> Iterator[RawRecord]:
    """Yield the pages of a WARC file: responses and resources with HTML, and extracted texts (WET).

    Requests and metadata of the crawl are skipped. The id is that of the WARC record.

    Raises:
        DamagedFile: the archive is truncated or no WARC file.
    """
    reader = ChunkReader(source)
    number = 0
    for entry in _read_entries(reader, path):
        if entry.rec_type in PAGE_RECORDS:
            number += 1
            yield _warc_record(entry, number, keys, limit, reader.position)
        _finish_record(entry, path)


def _finish_record(entry: Any, path: Path) -> None:
    while entry.raw_stream.read(1 << 16):
        pass
    if getattr(entry.raw_stream, "limit", 1) > 0:  # missing in a record without Content-Length
        sentence = f"{path} is truncated or damaged (a record has no end): fetch the file again"
        raise DamagedFile(sentence, "truncated")


def _read_entries(reader: ChunkReader, path: Path) -> Iterator[Any]:
    try:
        yield from ArchiveIterator(reader)
    except (ArchiveLoadFailed, AttributeError):  # the message of one quotes the file, the other is a missing URL
        sentence = f"{path} is truncated or damaged, or no WARC file: fetch the file again"
        raise DamagedFile(sentence, "damaged") from None


def read_archive_ids(source: Iterator[Chunk], path: Path) -> Iterator[tuple[str, str | None]]:
    """Yield the id, which may be empty, and URL of the records of `read_archive`, in order, without parsing pages.

    Raises:
        DamagedFile: the archive is no WARC file.
    """
    for entry in _read_entries(ChunkReader(source), path):
        if entry.rec_type in PAGE_RECORDS:
            yield _warc_record_id(entry), entry.rec_headers.get_header("WARC-Target-URI")


def read_responses(
    source: Iterator[Chunk], path: Path, limit: int
) -> Iterator[tuple[str, str | None, int, Callable[[], bytes]]]:
    """Yield URL, date, status and a function that reads the body, at most slightly more than `limit` bytes of it.

    Raises:
        DamagedFile: the archive is no WARC file.
    """
    for entry in _read_entries(ChunkReader(source), path):
        url = entry.rec_headers.get_header("WARC-Target-URI")
        if entry.rec_type in ("response", "resource") and url:
            status = entry.http_headers.get_statuscode() if entry.http_headers else "200"
            date = entry.rec_headers.get_header("WARC-Date")
            number = int(status) if len(status) == 3 and status.isascii() and status.isdigit() else 0
            yield url.strip("<>"), date, number, partial(_read_payload, entry, limit)


class WebResource(NamedTuple):
    """A file of the web as it was fetched; `read` returns slightly more than the limit of a larger one."""

    id: str
    url: str | None
    date: str | None
    media_type: str
    charset: str | None
    headers: list[tuple[str, str]]
    read: Callable[[], bytes]


def read_web_resources(source: Iterator[Chunk], path: Path, limit: int) -> Iterator[WebResource]:
    """Yield the pages, images and other files of a WARC file that were fetched with success, in order.

    Each must be read before the next one.

    Raises:
        DamagedFile: the archive is truncated or no WARC file.
    """
    for entry in _read_entries(ChunkReader(source), path):
        headers = entry.http_headers or entry.rec_headers
        is_fetched = not entry.http_headers or entry.http_headers.get_statuscode() == "200"
        if entry.rec_type in ("response", "resource") and is_fetched:
            stated = parse_content_type([value for name, value in headers.headers if name.lower() == "content-type"])
            yield WebResource(
                _warc_record_id(entry),
                (entry.rec_headers.get_header("WARC-Target-URI") or "").strip("<>") or None,
                entry.rec_headers.get_header("WARC-Date"),
                stated.media_type or "",
                stated.charset,
                headers.headers,
                partial(_read_payload, entry, limit),
            )
        _finish_record(entry, path)


def _warc_record_id(entry: Any) -> str:
    return (entry.rec_headers.get_header("WARC-Record-ID") or "").strip("<>")


def _warc_record(entry: Any, number: int, keys: FieldNames, limit: int, position: int) -> RawRecord:
    status = entry.http_headers.get_statuscode() if entry.http_headers else "200"
    headers = entry.http_headers or entry.rec_headers
    stated = parse_content_type([value for name, value in headers.headers if name.lower() == "content-type"])
    if status != "200":
        return RawRecord(number, entry.payload_length, None, "http_status", status, position)
    if stated.media_type not in (*PAGE_TYPES, TEXT_TYPE):
        return RawRecord(number, entry.payload_length, None, "not_a_page", stated.media_type, position)
    content = _read_payload(entry, limit)
    if len(content) > limit:
        return oversized_record(number, max(len(content), entry.payload_length), position)
    fields_of_record = {
        keys.url: entry.rec_headers.get_header("WARC-Target-URI"),
        keys.date: entry.rec_headers.get_header("WARC-Date"),
        keys.id: _warc_record_id(entry),
    }
    if keys.language:
        fields_of_record[keys.language] = entry.rec_headers.get_header("WARC-Identified-Content-Language")
    if stated.media_type != TEXT_TYPE:
        page = decode_page(content, stated.charset, is_xml=stated.media_type != "text/html")
        return _page_record(number, len(content), page, fields_of_record, keys, position, headers.headers)
    text = decode_text(content, stated.charset)
    if text is None:
        return RawRecord(number, len(content), None, "invalid_utf8", position=position)
    fields = {**fields_of_record, keys.text: text.text}
    reservation = read_page_reservation(headers.headers)
    return RawRecord(number, len(content), fields, None, None, position, text.known_by, text.errors, reservation)


def _read_payload(entry: Any, limit: int) -> bytes:
    """Return the payload, decoded by its HTTP headers, or slightly more than `limit` bytes of it."""
    if not entry.http_headers:
        return _read_limited(entry.raw_stream, limit)
    headers = entry.http_headers
    stated = ",".join(value for name, value in headers.headers if name.lower() == "content-encoding")
    *inner, outer = ["", *filter(None, (part.strip().lower() for part in stated.split(",")))]
    is_chunked = "chunked" in (headers.get_header("Transfer-Encoding") or "").lower()
    reader = ChunkedDataReader if is_chunked else BufferedReader
    content = _read_limited(reader(entry.raw_stream, decomp_type=_WARCIO_CODINGS.get(outer)), limit)
    left = inner if outer in _WARCIO_CODINGS else [*inner, outer]
    for coding in reversed(left):
        content = _decompress(content, _ARROW_CODINGS.get(coding), limit)
    return content


def _decompress(content: bytes, codec: str | None, limit: int) -> bytes:
    """Return the decompressed content, or slightly more than `limit` bytes of it; uncompressed content is unchanged."""
    decoded = bytearray()
    if codec:
        with suppress(pa.ArrowException, OSError):  # truncated, or the crawler decoded it but kept the header
            stream = pa.CompressedInputStream(pa.BufferReader(content), codec)
            while len(decoded) <= limit and (piece := stream.read(1 << 16)):
                decoded += piece
    return bytes(decoded) or content


def _read_limited(stream: Any, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while size <= limit and (piece := stream.read(1 << 16)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)
