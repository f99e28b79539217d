"""Web pages and archives of them: the main text without navigation, advertisements and comments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trafilatura import extract, load_html
from warcio.archiveiterator import ArchiveIterator
from warcio.exceptions import ArchiveLoadFailed

from pipeline.sources.damage import DamagedFile
from pipeline.sources.records import Keys, Record, too_large
from pipeline.sources.streams import Piece, PieceReader, whole

PAGE_TYPES = ("text/html", "application/xhtml+xml")
TEXT_TYPE = "text/plain"


def main_text(page: bytes) -> tuple[str | None, str | None]:
    """Return the main text and the title of a web page; None where it has none. The page's encoding is detected."""
    tree = load_html(page)
    if tree is None:
        return None, None
    title = tree.findtext(".//title")
    return extract(tree, include_comments=False), " ".join(title.split()) if title else None


def read_page(source: Iterator[Piece], path: Path, keys: Keys, limit: int) -> Iterator[Record]:
    """Yield the main text of one HTML file."""
    content, size = whole(source, limit)
    if content is None:
        yield too_large(1, size)
    elif content.strip():
        text, title = main_text(content)
        if text is None:
            yield Record(1, size, None, "no_main_text")
        else:
            yield Record(1, size, {keys.text: text, keys.title: title})


def read_archive(source: Iterator[Piece], path: Path, keys: Keys, limit: int) -> Iterator[Record]:
    """Yield the pages of a WARC file: responses and resources with HTML, and texts that were extracted before (WET).

    What describes the crawl (requests, metadata) is no record. The id is that of the WARC record.

    Raises:
        DamagedFile: the archive is truncated or no WARC file.
    """
    reader = PieceReader(source)
    number = 0
    try:
        for entry in ArchiveIterator(reader):
            if entry.rec_type in ("response", "resource", "conversion"):
                number += 1
                yield _archived(entry, number, keys, limit, reader.position)
            while entry.raw_stream.read(1 << 16):
                pass
            if entry.raw_stream.limit > 0:
                sentence = f"{path} is truncated or damaged (a record has no end): fetch the file again"
                raise DamagedFile(sentence, "truncated")
    except ArchiveLoadFailed:  # its message quotes the file
        raise _no_archive(path) from None


def archived_ids(source: Iterator[Piece], path: Path) -> Iterator[tuple[str, str | None]]:
    """Yield id, empty where it has none, and address of what `read_archive` yields, in its order; no page is read.

    Raises:
        DamagedFile: the archive is no WARC file.
    """
    try:
        for entry in ArchiveIterator(PieceReader(source)):
            if entry.rec_type in ("response", "resource", "conversion"):
                yield _archived_id(entry), entry.rec_headers.get_header("WARC-Target-URI")
    except ArchiveLoadFailed:  # its message quotes the file
        raise _no_archive(path) from None


def _no_archive(path: Path) -> DamagedFile:
    return DamagedFile(f"{path} is truncated or damaged, or no WARC file: fetch the file again", "damaged")


def _archived_id(entry: Any) -> str:
    return (entry.rec_headers.get_header("WARC-Record-ID") or "").strip("<>")


def _archived(entry: Any, number: int, keys: Keys, limit: int, position: int) -> Record:
    """Return one record of a WARC file with its main text."""
    status = entry.http_headers.get_statuscode() if entry.http_headers else "200"
    headers = entry.http_headers or entry.rec_headers
    content_type = (headers.get_header("Content-Type") or "").split(";")[0].strip().lower()
    if status != "200":
        return Record(number, entry.payload_length, None, "http_status", status, position)
    if content_type not in (*PAGE_TYPES, TEXT_TYPE):
        return Record(number, entry.payload_length, None, "not_a_page", content_type, position)
    content = _payload(entry, limit)
    if len(content) > limit:
        return too_large(number, max(len(content), entry.payload_length), position)
    if content_type == TEXT_TYPE:
        try:
            text, title = content.decode("utf-8-sig"), None
        except UnicodeDecodeError:
            return Record(number, len(content), None, "invalid_utf8", position=position)
    else:
        found, title = main_text(content)
        if found is None:
            return Record(number, len(content), None, "no_main_text", position=position)
        text = found
    fields = {
        keys.url: entry.rec_headers.get_header("WARC-Target-URI"),
        keys.title: title,
        keys.date: entry.rec_headers.get_header("WARC-Date"),
        keys.id: _archived_id(entry),
        keys.text: text,
    }
    return Record(number, len(content), fields, position=position)


def _payload(entry: Any, limit: int) -> bytes:
    """Return the payload, decoded as the HTTP headers say, or a little more than `limit` bytes of it."""
    stream = entry.content_stream()
    held: list[bytes] = []
    size = 0
    while size <= limit and (piece := stream.read(1 << 16)):
        held.append(piece)
        size += len(piece)
    return b"".join(held)
