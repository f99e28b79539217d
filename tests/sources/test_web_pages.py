"""Web pages and archives give their main text, and non-pages are counted."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from pipeline.core.errors import InputError
from pipeline.corpus.text.text_cleaning import TextCleaner
from pipeline.sources.raw_documents import FieldNames, RawRecord
from pipeline.sources.record_formats import read_records
from pipeline.sources.web_reservation_rules import read_page_reservation

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


def test_wet_file_is_read_by_its_extension(tmp_path: Path) -> None:
    path = tmp_path / "CC-MAIN-20240220211055-20240221001055-00000.warc.wet.gz"
    path.write_bytes(gzip.compress(response(SENTENCES[0].encode(), kind="conversion", content_type="text/plain")))
    (record,) = read_records(path, path.name, FieldNames(), 10_000)
    assert record.fields is not None and record.fields["text"] == SENTENCES[0]
    assert record.fields["url"] == "https://voorbeeld.nl/1"


ACCENTED = [
    "Het café aan de Coöperatiestraat was één van de drukste plekken; de reünie van de familie Müller was er.",
    "Daarna ging men naar de façade van het stadhuis, waar de fanfare een serenade bracht, €25 per persoon.",
]


def response(body: bytes, *headers: tuple[str, str], kind: str = "response", content_type: str | None = None) -> bytes:
    stream = io.BytesIO()
    writer = WARCWriter(stream, gzip=False)
    http = StatusAndHeaders("200 OK", [*headers], protocol="HTTP/1.1") if kind == "response" else None
    payload = io.BytesIO(body)
    given = {"http_headers": http, "warc_content_type": content_type}
    writer.write_record(writer.create_warc_record("https://voorbeeld.nl/1", kind, payload=payload, **given))
    return stream.getvalue()


def html(encoding: str, meta: str = "", before: str = "") -> bytes:
    paragraphs = "".join(f"<p>{sentence}</p>" for sentence in ACCENTED)
    page = f"{before}<html><head>{meta}<title>Café</title></head><body><article>{paragraphs}</article></body></html>"
    return page.encode(encoding)


def chunked(body: bytes) -> bytes:
    parts = [body[place : place + 100] for place in range(0, len(body), 100)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def arrow_compressed(body: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    return sink.getvalue().to_pybytes()


HTML = ("Content-Type", "text/html")


@pytest.mark.parametrize(
    ("content", "known_by"),
    [
        (response(html("cp1252"), ("content-type", "Text/HTML; Charset=ISO-8859-1")), "header"),
        (response(html("cp1252", "<meta charset=utf-8>"), ("Content-Type", "text/html;charset=cp1252")), "header"),
        (response(html("utf-8", "<meta charset=iso-8859-1>"), ("Content-Type", "text/html;charset=utf-8")), "header"),
        (response(html("cp1252"), ("Content-Type", "text/html;charset=cp1252"), HTML), "header"),
        (response(html("cp1252", "<meta charset=latin1>"), HTML), "meta"),
        (response(html("cp1252"), HTML), "guess"),
        (response(html("utf-8"), HTML), "utf8"),
        (response(html("utf-16"), HTML), "bom"),
        (response(html("utf-16-le"), HTML), "guess"),
        (
            response(
                html("iso8859-15", before='<?xml version="1.0" encoding="ISO-8859-15"?>'),
                ("Content-Type", "application/xhtml+xml"),
            ),
            "xml",
        ),
        (response(html("cp1252"), kind="resource", content_type="text/html; charset=windows-1252"), "header"),
        (response(chunked(html("cp1252")), HTML, ("Transfer-Encoding", "Chunked")), "guess"),
        (response(gzip.compress(html("cp1252")), HTML, ("Content-Encoding", "x-gzip")), "guess"),
        (response(zlib.compress(html("cp1252")), HTML, ("Content-Encoding", "deflate")), "guess"),
        (response(arrow_compressed(html("cp1252"), "brotli"), HTML, ("Content-Encoding", "br")), "guess"),
        (response(arrow_compressed(html("cp1252"), "zstd"), HTML, ("Content-Encoding", "ZSTD")), "guess"),
        (
            response(
                chunked(arrow_compressed(html("cp1252"), "brotli")),
                *(HTML, ("Content-Encoding", "br"), ("Transfer-Encoding", "chunked")),
            ),
            "guess",
        ),
        *(
            (response(gzip.compress(arrow_compressed(html("cp1252"), codec)), HTML, *headers), "guess")
            for codec, *headers in (
                ("brotli", ("Content-Encoding", "br, gzip")),
                ("gzip", ("Content-Encoding", "gzip"), ("Content-Encoding", "X-GZIP")),
            )
        ),
        *(
            (response(html("cp1252"), HTML, ("Content-Encoding", coding)), "guess")  # decoded by the crawler
            for coding in ("gzip", "br", "zstd", "identity", "utf-8")
        ),
    ],
)
def test_archived_page_is_decoded_with_its_encoding(tmp_path: Path, content: bytes, known_by: str) -> None:
    (record,) = records(tmp_path, "x.warc", content)
    assert record.fields is not None and record.fields["text"] == "\n".join(ACCENTED)
    assert record.fields["title"] == "Café" and record.encoding_known_by == known_by


@pytest.mark.parametrize("charset", ["iso-8859-1", '"windows-1252"', "cp1252; format=flowed"])
def test_plain_text_in_an_archive_is_a_document(tmp_path: Path, charset: str) -> None:
    text = "\n".join(ACCENTED)
    content = response(text.encode("cp1252"), ("Content-Type", f"text/plain; charset={charset}"))
    (record,) = records(tmp_path, "x.warc", content)
    assert record.fields is not None and record.fields["text"] == text and record.encoding_known_by == "header"
    (guessed,) = records(tmp_path, "y.warc", response(text.encode("cp1252"), ("Content-Type", "text/plain")))
    assert guessed.fields is not None and guessed.fields["text"] == text and guessed.encoding_known_by == "guess"
    (binary,) = records(tmp_path, "z.warc", response(b"\x89PNG\x00\x01\xff", ("Content-Type", "text/plain")))
    assert binary.reason == "invalid_utf8"


@pytest.mark.parametrize("nothing", ["<wbr>", "<WBR />", "</wbr>", "&#xFFFE;", "&#65535;", "\ufffe"])
def test_invisible_elements_do_not_separate_words(tmp_path: Path, nothing: str) -> None:
    page = html("utf-8").replace(b"drukste", f"druk{nothing}ste".encode())
    (record,) = records(tmp_path, "x.html", page)
    assert record.fields is not None and "de drukste" in record.fields["text"]


def test_white_space_in_a_page_separates_words(tmp_path: Path) -> None:
    for white in (
        "\x0b",
        "\x0c",
        "\x1f",
        "\u2028",
        "\x85",
        "&#11;",
        "&#x1c;",
        "&#0",
        "&#160;",
        "&#xA0;",
        "&#32;",
        "&#9;",
    ):
        page = html("utf-8").replace(b"de drukste", f"de{white}drukste".encode())
        (record,) = records(tmp_path, "x.html", page)
        assert record.fields is not None
        assert TextCleaner().format(record.fields["text"]).split()[8:10] == ["de", "drukste"], white


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-8-sig"])
def test_byte_order_mark_is_removed_from_the_text(tmp_path: Path, encoding: str) -> None:
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    (record,) = records(tmp_path, "x.txt", mark + ACCENTED[0].encode(encoding))
    assert record.fields == {"text": ACCENTED[0]}


def records(folder: Path, name: str, content: bytes) -> list[RawRecord]:
    (folder / name).write_bytes(content)
    return list(read_records(folder / name, name, FieldNames(), 10_000))


@pytest.mark.parametrize(("name", "content"), [("x.html", PAGE), ("x.htm.gz", gzip.compress(PAGE))])
def test_page_is_reduced_to_main_text_and_title(tmp_path: Path, name: str, content: bytes) -> None:
    (record,) = records(tmp_path, name, content)
    assert record.fields == {"text": "\n".join(SENTENCES), "title": "De molen"}


def test_page_in_another_encoding_is_decoded(tmp_path: Path) -> None:
    page = PAGE.replace(b"utf-8", b"windows-1252").replace(b"kerk", "café".encode("cp1252"))
    (record,) = records(tmp_path, "x.html", page)
    assert record.fields is not None and "café" in record.fields["text"]


def test_page_without_text_is_counted(tmp_path: Path) -> None:
    (record,) = records(tmp_path, "x.html", b"<html><body><nav></nav></body></html>")
    assert record.fields is None and record.reason == "no_main_text"
    assert records(tmp_path, "y.html", b" \n") == []


@pytest.mark.parametrize("name", ["x.warc", "x.warc.gz"])
def test_archive_records_have_url_and_date(tmp_path: Path, name: str) -> None:
    result = records(tmp_path, name, archive(compressed=name.endswith("gz")))
    fields: list[Any] = [record.fields for record in result]
    assert fields[0] == {
        "id": "urn:uuid:1",
        "text": "\n".join(SENTENCES),
        "title": "De molen",
        "url": "https://voorbeeld.nl/1",
        "date": "2024-03-01T10:00:00Z",
    }
    assert fields[4]["text"] == SENTENCES[0] and fields[4]["url"] == "https://voorbeeld.nl/5"
    reasons = [(record.number, record.reason, record.value) for record in result if record.fields is None]
    assert reasons[:3] == [(2, "not_a_page", "image/png"), (3, "http_status", "404"), (4, "no_main_text", None)]
    assert reasons[3][:2] == (6, "too_large") and len(result) == 6


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.warc", archive(compressed=False)[:-9000]),
        ("x.warc.gz", archive()[:-9]),
        ("x.warc", b"geen archief"),
        ("x.warc.gz", b"geen archief"),
        ("x.warc", archive(compressed=False).replace(b"WARC-Target-URI", b"X-Target-URI", 1)),
        ("x.warc", archive(compressed=False).replace(b"Content-Length", b"X-Length", 1)),
    ],
)
def test_damaged_archive_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(InputError, match=rf"{name} (is truncated or damaged|is no \.gz file)"):
        records(tmp_path, name, content)


TDM = '<meta name="tdm-reservation" content="%s">'


@pytest.mark.timeout(300)  # comparing tags with all later ones takes hours
@pytest.mark.parametrize("end", ["", "noai"])
def test_page_of_unclosed_tags_is_parsed_once(end: str) -> None:
    assert read_page_reservation([], "<meta " * 200_000 + end) is None


@pytest.mark.parametrize(
    ("headers", "meta", "stated"),
    [
        ([], "", None),
        ([("TDM-Reservation", " 1 ")], "", "header tdm-reservation: 1"),
        ([("tdm-reservation", "1")], TDM % 0, "meta tdm-reservation: 0"),
        ([("tdm-reservation", "0")], TDM % 1, "meta tdm-reservation: 1"),
        ([("tdm-reservation", "1")], TDM % 2, "header tdm-reservation: 1"),
        ([("tdm-reservation", "yes")], "", None),
        ([], "<META content='1' NAME='TDM-Reservation'/>", "meta tdm-reservation: 1"),
        ([], f"<!-- {TDM % 1} -->", None),
        ([("X-Robots-Tag", "noai, noimageai")], "", "header x-robots-tag: noai"),
        ([("X-Robots-Tag", "noindex"), ("x-robots-tag", "otherbot: NOAI")], TDM % 0, "header x-robots-tag: noai"),
        ([("X-Robots-Tag", "noimageai")], "", None),
        ([], '<meta name="robots" content="index,noai">', "meta robots: noai"),
        ([], '<meta name="robots" content="noimageai">', None),
        ([], '<meta name="description" content="noai and tdm-reservation">', None),
    ],
)
def test_page_may_reserve_rights(tmp_path: Path, headers: list[tuple[str, str]], meta: str, stated: str | None) -> None:
    page = PAGE.replace(b"<title>", meta.encode() + b"<title>")
    (record,) = records(tmp_path, "x.warc", response(page, HTML, *headers))
    assert record.reservation == stated
    assert record.fields is not None and record.fields["text"] == "\n".join(SENTENCES)
    if not headers:
        (record,) = records(tmp_path, "x.html", page)
        assert record.reservation == stated
    if not meta:
        (record,) = records(tmp_path, "x.warc", response(b"Een tekst.", ("Content-Type", "text/plain"), *headers))
        assert record.reservation == stated
