"""Reads WARC archives and HTML files as pages with their nodes, and the images that archives contain."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from pipeline.core.errors import InputError
from pipeline.core.url_hosts import request_key
from pipeline.corpus.raw_file_quarantine import RawFiles
from pipeline.interleaved.page_nodes import dump_nodes, read_page_nodes
from pipeline.sources.character_encodings import decode_page
from pipeline.sources.decompression import DecompressedChunks, read_whole
from pipeline.sources.raw_documents import FieldNames, RawDocument, RawRecord, make_raw_documents, oversized_record
from pipeline.sources.record_formats import split_format
from pipeline.sources.web_pages import PAGE_TYPES, WebResource, read_web_resources
from pipeline.sources.web_reservation_rules import read_image_reservation, read_page_reservation

IMAGE_TYPES = ("image/", "application/octet-stream", "binary/octet-stream")  # browsers show all of them in <img>
Image.MAX_IMAGE_PIXELS = None  # only headers are read, so a large image needs no memory


@dataclass(frozen=True)
class ImageFile:
    """An image of an archive: of what format and size it is, and how its HTTP headers reserve it.

    Attributes:
        sha256: of the file.
        format: in lower case, such as jpeg; None if it cannot be read as an image.
    """

    sha256: str
    format: str | None
    width: int = 0
    height: int = 0
    reservation: str | None = None


@dataclass(frozen=True)
class PageFiles(RawFiles):
    """The raw files of a unit, read as pages with their nodes as JSON in place of the text."""

    def check_whole(self) -> None:
        """Raise InputError if a file is read in parts, which have the text of pages alone."""
        if self.is_part:
            raise InputError(
                f"source {self.source}: {self.files[0][0]} is larger than a unit, and its parts have no images: make "
                "unit_bytes of the source larger than its files"
            )

    def read_file_documents(self, name: str, path: Path) -> Iterator[RawDocument]:
        """Yield the pages of a file, including unreadable ones.

        Raises:
            DamagedFile: the file is truncated or damaged.
            InputError: the file is no archive or page.
        """
        records = _read_pages(path, name, self.keys, self.document_bytes)
        for document, _ in make_raw_documents(records, f"{self.source}/{name}", self.keys):
            yield document

    def read_images(self) -> dict[str, ImageFile]:
        """Return the images of the archives, by `request_key`. The last one counts; a too large one has no format."""
        images: dict[str, ImageFile] = {}
        for name, path in sorted(self.files):
            kind, compression = split_format(path, name)
            if kind == "archive":
                chunks = iter(DecompressedChunks(path, compression))
                for resource in read_web_resources(chunks, path, self.document_bytes):
                    is_image = not resource.media_type or resource.media_type.startswith(IMAGE_TYPES)
                    if is_image and resource.url:
                        content = resource.read()
                        whole = content if len(content) <= self.document_bytes else b""
                        images[request_key(resource.url)] = describe_image(whole, resource.headers)
        return images


def _read_pages(path: Path, name: str, keys: FieldNames, limit: int) -> Iterator[RawRecord]:
    kind, compression = split_format(path, name)
    chunks = iter(DecompressedChunks(path, compression))
    if kind == "archive":
        number = 0
        for resource in read_web_resources(chunks, path, limit):
            if resource.media_type in PAGE_TYPES:
                number += 1
                yield _page_record(number, resource, resource.read(), keys, limit)
    elif kind == "page":
        content, size = read_whole(chunks, limit)
        if content is None:
            yield oversized_record(1, size)
        else:
            resource = WebResource("", None, None, "text/html", None, [], lambda: b"")
            yield _page_record(1, resource, content, keys, limit)
    else:
        raise InputError(
            f"{path}: interleaved documents are made of web pages: use .warc or .html, each also compressed"
        )


def _page_record(number: int, resource: WebResource, content: bytes, keys: FieldNames, limit: int) -> RawRecord:
    if len(content) > limit:
        return oversized_record(number, len(content))
    page = decode_page(content, resource.charset, is_xml=resource.media_type != "text/html")
    nodes = read_page_nodes(page.text, resource.url, read_image_reservation(resource.headers, page.text))
    reservation = read_page_reservation(resource.headers, page.text)
    fields = {
        keys.id: resource.id or None,
        keys.url: resource.url,
        keys.date: resource.date,
        keys.text: dump_nodes(nodes),
    }
    reason = None if nodes else "no_main_text"
    return RawRecord(
        number,
        len(content),
        fields if nodes else None,
        reason,  # type: ignore[arg-type]
        None,
        0,
        page.known_by,
        page.errors,
        reservation,
    )


def describe_image(content: bytes, headers: list[tuple[str, str]]) -> ImageFile:
    """Return hash, format and size of the file of an image."""
    digest = hashlib.sha256(content).hexdigest()
    reservation = read_image_reservation(headers) or read_page_reservation(headers)
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(content)) as image:
            return ImageFile(digest, (image.format or "").lower() or None, *image.size, reservation)
    except (OSError, ValueError, SyntaxError, OverflowError):  # what Pillow raises for broken files
        return ImageFile(digest, None, reservation=reservation)
