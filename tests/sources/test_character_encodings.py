"""A page is decoded by its byte order mark, its header, its own declaration, or a guess, in this order."""

from __future__ import annotations

import codecs

import pytest

from pipeline.sources.character_encodings import decode_page, decode_text, decode_utf, find_codec, parse_content_type

TEXT = "Het café aan de Coöperatiestraat was één van de drukste: “reünie”, façade, €25."
BODY = f"<html><head><title>x</title></head><body><p>{TEXT}</p></body></html>"
WESTERN = TEXT.replace("€", "EUR ").replace("“", '"').replace("”", '"')


def page(encoding: str, meta: str = "", before: str = "") -> bytes:
    return (before + BODY.replace("<head>", f"<head>{meta}")).encode(encoding)


@pytest.mark.parametrize(
    ("content", "charset", "known_by"),
    [
        (codecs.BOM_UTF8 + page("utf-8"), "windows-1252", "bom"),
        (page("utf-16"), "utf-8", "bom"),
        (codecs.BOM_UTF16_BE + page("utf-16-be"), None, "bom"),
        (codecs.BOM_UTF32_LE + page("utf-32-le"), "utf-16le", "bom"),
        (codecs.BOM_UTF32_BE + page("utf-32-be"), None, "bom"),
        (page("cp1252"), "windows-1252", "header"),
        (page("cp1252"), " ISO-8859-1 ", "header"),
        (page("cp1252"), "us-ascii", "header"),
        (page("cp1252", '<meta charset="utf-8">'), "latin1", "header"),
        (page("utf-8", '<meta charset="iso-8859-1">'), "UTF8", "header"),
        (page("utf-16-le"), "utf-16", "header"),
        (page("mac-roman"), "macintosh", "header"),
        (page("gb18030"), "gb2312", "header"),
        (page("cp1252", "<meta charset=windows-1252>"), None, "meta"),
        (page("cp1252", "<META CHARSET='Latin1'/>"), "unknown-8bit", "meta"),
        (page("cp1252", '<meta name="a>b" content="utf-8"><meta charset="cp1252">'), None, "meta"),
        (page("cp1252", '<!-- <meta charset="utf-8"> --><meta charset="cp1252">'), None, "meta"),
        (page("cp1252", '<meta charset="nergens"><meta charset="cp1252">'), None, "meta"),
        (page("cp1252", '<meta http-equiv="Content-Type" content="text/html; charset=iso-8859-1">'), None, "meta"),
        (page("cp1252", "<meta content='text/html;charset=ISO-8859-1' http-equiv=content-type>"), None, "meta"),
        (page("utf-8", '<meta charset="utf-16">'), None, "meta"),
        (page("cp1252", f"<style>{'x' * 3000}</style><meta charset='cp1252'>"), None, "meta"),
        (page("cp1252", before='<?xml version="1.0" encoding="ISO-8859-1"?>\n'), None, "xml"),
        (page("utf-8"), None, "utf8"),
        (page("utf-8") + "é".encode()[:1], None, "utf8"),
        (page("cp1252"), None, "guess"),
        (page("cp1252"), "utf-7", "guess"),
        (page("utf-16-le"), None, "guess"),
        (page("utf-16-be"), None, "guess"),
        (page("cp1252").replace(b"<p>", b"<p>\x81"), "windows-1252", "header"),
    ],
)
def test_page_encoding_is_detected(content: bytes, charset: str | None, known_by: str) -> None:
    decoded = decode_page(content, charset)
    assert TEXT in decoded.text.replace("\x81", "")
    assert (decoded.known_by, decoded.errors) == (known_by, 0)


def test_only_the_first_1024_bytes_declare_an_encoding_after_a_head() -> None:
    for before, known_by in ((b"", "meta"), (b" " * 1024, "guess")):
        late = page("cp1252").replace(b"<p>", before + b'<p><meta charset="koi8-r">')
        assert decode_page(late, None).known_by == known_by


def test_unterminated_comment_reaches_to_the_end() -> None:
    assert decode_page(page("utf-8", before="<!-- <meta charset=koi8-r>"), None).known_by == "utf8"
    assert decode_page("<!--><meta charset=koi8-r>-->Привет".encode("koi8-r"), None).known_by == "meta"


def test_xml_declaration_precedes_meta_in_xml_pages() -> None:
    both = page("cp1252", '<meta charset="iso-8859-5">', '<?xml version="1.0" encoding="cp1252"?>')
    assert decode_page(both, None, is_xml=True).known_by == "xml"
    assert decode_page(both, None).known_by == "meta"


@pytest.mark.parametrize("charset", ["iso-8859-15", "l9", "iso-8859-14"])
def test_other_western_european_code_pages(charset: str) -> None:
    content = WESTERN.encode(str(find_codec(charset)))
    decoded = decode_text(content, charset)
    assert decoded is not None and decoded.text == WESTERN
    assert find_codec("iso-8859-15") and decode_text("€".encode("iso8859-15"), "iso-8859-15") == ("€", "header", 0)


def test_wrong_header_is_replaced_by_an_encoding_that_fits() -> None:
    lied = decode_page(page("cp1252"), "utf-8")
    assert TEXT in lied.text and (lied.known_by, lied.errors) == ("guess", 0)
    with_meta = decode_page(page("cp1252", "<meta charset=cp1252>"), "utf-8")
    assert TEXT in with_meta.text and with_meta.known_by == "meta"
    some = decode_page(page("utf-8") + b"caf\xe9 \xe9\xe9n", "utf-8")
    assert TEXT in some.text and (some.known_by, some.errors) == ("header", 3)
    undeclared = decode_page(page("utf-8") + b"caf\xe9 ", None)
    assert TEXT in undeclared.text and (undeclared.known_by, undeclared.errors) == ("guess", 1)
    assert decode_page("een \ufffd".encode(), "utf-8").errors == 0, "it was written like this"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (["text/html"], ("text/html", None)),
        (["TEXT/HTML; Charset=UTF-8"], ("text/html", "UTF-8")),
        (['text/html;charset="iso-8859-1"'], ("text/html", "iso-8859-1")),
        (["text/html; charset='utf-8'"], ("text/html", "utf-8")),
        (["text/html; charset = utf-8 ; x=y"], ("text/html", "utf-8")),
        (["text/html;charset=utf-8,rommel"], ("text/html", "utf-8")),
        (["text/html;;charset=utf-8;"], ("text/html", "utf-8")),
        (["text/html; charset="], ("text/html", None)),
        (["text/plain;format=flowed; charset=latin1"], ("text/plain", "latin1")),
        (["text/html;charset=gbk", "text/html"], ("text/html", "gbk")),
        (["text/plain;charset=gbk", "text/html"], ("text/html", None)),
        (["text/plain;charset=gbk, text/html;charset=utf-8"], ("text/html", "utf-8")),
        (["text/html;charset=gbk", "*/*"], ("text/html", "gbk")),
        (["html"], ("", None)),
        ([], ("", None)),
    ],
)
def test_content_type_headers_are_combined(headers: list[str], expected: tuple[str, str | None]) -> None:
    assert parse_content_type(headers) == expected


@pytest.mark.parametrize(
    ("label", "codec"),
    [
        ("x-sjis", "cp932"),
        ("unicode-1-1-utf-8", "utf-8"),
        ("\tISO_8859-1:1987\n", "cp1252"),
        ("ansi_x3.4-1968", "cp1252"),
        ("latin5", "cp1254"),
        ("ks_c_5601-1987", "cp949"),
        ("tis-620", "cp874"),
        ("iso-2022-kr", "iso2022-kr"),
        ("utf-7", None),
        ("cp037", None),
        ("rot13", None),
        ("utf_8", None),
        ("", None),
        (None, None),
    ],
)
def test_encoding_labels_equal_the_standard(label: str | None, codec: str | None) -> None:
    assert find_codec(label) == codec
    assert codec is None or codecs.lookup(codec)


@pytest.mark.parametrize(
    ("label", "content", "text"),  # as Chromium decodes them
    [
        ("euc-jp", "ada1 a4b3 ada2 a1c1", "①こ②～"),
        ("euc-jp", "a1dd f9a8 fcfe", "－昱＂"),
        ("iso-2022-jp", "1b2442 2d21 2433 1b2842 78 1b2849 313233 1b2842", "①こxｱｲｳ"),
        ("gbk", "80 31 a3a0 a6d9", "€1\u3000\ufe10"),
        ("gb18030", "81308130 80 313131", "\x80€111"),
        ("big5", "a145 a3e1 a1e3", "‧€～"),
        ("koi8-u", "ae be a4", "ўЎє"),
        ("shift_jis", "a0 82a0 8160 8740", "\ufffdあ～①"),
        ("x-user-defined", "80", "€"),
        ("iso-8859-9", "80 fd", "€ı"),
    ],
)
def test_encodings_equal_the_standard(label: str, content: str, text: str) -> None:
    assert decode_page(bytes.fromhex(content), label).text == text


def test_plain_text_encoding_is_detected() -> None:
    assert decode_text(TEXT.encode("cp1252"), "iso-8859-1") == (TEXT, "header", 0)
    assert decode_text(TEXT.encode(), None) == (TEXT, "utf8", 0)
    assert decode_text(TEXT.encode("cp1252"), None) == (TEXT, "guess", 0)
    assert decode_text(b"PK\x03\x04\x14\x00\x08\xff\xe9\x00\x01\x02", None) is None
    assert (
        decode_utf(TEXT.encode("utf-16")) == decode_utf(TEXT.encode("utf-8-sig")) == decode_utf(TEXT.encode()) == TEXT
    )
    with pytest.raises(UnicodeDecodeError):
        decode_utf(TEXT.encode("cp1252"))
