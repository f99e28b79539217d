"""Web pages and archives give their main text, and what is no page is counted."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from pipeline.ground.errors import InputError
from pipeline.sources.formats import Keys, Record, read_records

SENTENCES = [
    "De molenaar loopt elke ochtend naar de dijk en kijkt of het water hoger staat dan gisteren.",
    "Zijn dochter schrijft de stand in een schrift, dat al dertig jaar op dezelfde plank ligt.",
    "Als het hard waait blijven de wieken staan, want dan is de oude as niet meer te vertrouwen.",
    "In het dorp vertellen ze dat de molen ouder is dan de kerk, maar niemand kan dat nog bewijzen.",
]
PAGE = (
    '<html><head><meta charset="utf-8"><title>De\n molen</title></head><body><nav><a href="/">Naar de voorpagina</a>'
    f"</nav><article>{''.join(f'<p>{sentence}</p>' for sentence in SENTENCES)}</article>"
    "<footer>Alle rechten voorbehouden, privacyverklaring</footer></body></html>"
).encode()


def archive(*, compressed: bool = True) -> bytes:
    stream = io.BytesIO()
    writer = WARCWriter(stream, gzip=compressed)

    def add(number: int, kind: str, body: bytes, content_type: str, status: str = "200 OK") -> None:
        headers = None
        if kind != "conversion":
            headers = StatusAndHeaders(status, [("Content-Type", content_type)], protocol="HTTP/1.1")
        record = writer.create_warc_record(
            f"https://voorbeeld.nl/{number}",
            kind,
            payload=io.BytesIO(body),
            http_headers=headers,
            warc_content_type=content_type if headers is None else None,
            warc_headers_dict={"WARC-Date": "2024-03-01T10:00:00Z", "WARC-Record-ID": f"<urn:uuid:{number}>"},
        )
        writer.write_record(record)

    writer.write_record(writer.create_warcinfo_record("x.warc.gz", {"software": "test"}))
    add(1, "response", PAGE, "text/html; charset=utf-8")
    add(2, "response", b"\x89PNG", "image/png")
    add(3, "response", b"weg", "text/html", "404 Not Found")
    add(4, "response", b"<html><body></body></html>", "text/html")
    add(5, "conversion", SENTENCES[0].encode(), "text/plain")
    add(6, "response", b"a" * 20_000, "text/html")
    return stream.getvalue()


def records(folder: Path, name: str, content: bytes) -> list[Record]:
    (folder / name).write_bytes(content)
    return list(read_records(folder / name, name, Keys(), 10_000))


@pytest.mark.parametrize(("name", "content"), [("x.html", PAGE), ("x.htm.gz", gzip.compress(PAGE))])
def test_a_page_is_its_main_text_and_title(tmp_path: Path, name: str, content: bytes) -> None:
    (record,) = records(tmp_path, name, content)
    assert record.fields == {"text": "\n".join(SENTENCES), "title": "De molen"}


def test_a_page_in_another_encoding(tmp_path: Path) -> None:
    page = PAGE.replace(b"utf-8", b"windows-1252").replace(b"kerk", "café".encode("cp1252"))
    (record,) = records(tmp_path, "x.html", page)
    assert record.fields is not None and "café" in record.fields["text"]


def test_a_page_without_text_is_counted(tmp_path: Path) -> None:
    (record,) = records(tmp_path, "x.html", b"<html><body><nav></nav></body></html>")
    assert record.fields is None and record.reason == "no_main_text"
    assert records(tmp_path, "y.html", b" \n") == []


@pytest.mark.parametrize("name", ["x.warc", "x.warc.gz"])
def test_an_archive_gives_its_pages_with_address_and_date(tmp_path: Path, name: str) -> None:
    found = records(tmp_path, name, archive(compressed=name.endswith("gz")))
    fields: list[Any] = [record.fields for record in found]
    assert fields[0] == {
        "id": "urn:uuid:1",
        "text": "\n".join(SENTENCES),
        "title": "De molen",
        "url": "https://voorbeeld.nl/1",
        "date": "2024-03-01T10:00:00Z",
    }
    assert fields[4]["text"] == SENTENCES[0] and fields[4]["url"] == "https://voorbeeld.nl/5"
    reasons = [(record.number, record.reason, record.value) for record in found if record.fields is None]
    assert reasons[:3] == [(2, "not_a_page", "image/png"), (3, "http_status", "404"), (4, "no_main_text", None)]
    assert reasons[3][:2] == (6, "too_large") and len(found) == 6


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.warc", archive(compressed=False)[:-9000]),
        ("x.warc.gz", archive()[:-9]),
        ("x.warc", b"geen archief"),
        ("x.warc.gz", b"geen archief"),
    ],
)
def test_a_damaged_archive_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(InputError, match=rf"{name} is truncated or damaged"):
        records(tmp_path, name, content)
