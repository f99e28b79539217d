"""Decodes web pages and texts by the Encoding and HTML Standards (WHATWG), and reports how each was detected."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

# How the encoding was detected: by a byte order mark, a Content-Type header, a <meta> element or an XML declaration.
# Without any of these, valid UTF-8 is UTF-8, and anything else is a guess.
KnownBy = Literal["bom", "header", "meta", "xml", "utf8", "guess"]
Stated = tuple[KnownBy, str | None]

# The labels of the Encoding Standard, by Python codec.
_LABELS = {
    "utf-8": "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8",
    "cp866": "866 cp866 csibm866 ibm866",
    "iso8859-2": "csisolatin2 iso-8859-2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 l2 latin2",
    "iso8859-3": "csisolatin3 iso-8859-3 iso-ir-109 iso8859-3 iso88593 iso_8859-3 iso_8859-3:1988 l3 latin3",
    "iso8859-4": "csisolatin4 iso-8859-4 iso-ir-110 iso8859-4 iso88594 iso_8859-4 iso_8859-4:1988 l4 latin4",
    "iso8859-5": "csisolatincyrillic cyrillic iso-8859-5 iso-ir-144 iso8859-5 iso88595 iso_8859-5 iso_8859-5:1988",
    "iso8859-6": "arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 iso-8859-6 iso-8859-6-e "
    "iso-8859-6-i iso-ir-127 iso8859-6 iso88596 iso_8859-6 iso_8859-6:1987",
    "iso8859-7": "csisolatingreek ecma-118 elot_928 greek greek8 iso-8859-7 iso-ir-126 iso8859-7 iso88597 iso_8859-7 "
    "iso_8859-7:1987 sun_eu_greek",
    "iso8859-8": "csiso88598e csisolatinhebrew hebrew iso-8859-8 iso-8859-8-e iso-ir-138 iso8859-8 iso88598 "
    "iso_8859-8 iso_8859-8:1988 visual csiso88598i iso-8859-8-i logical",
    "iso8859-10": "csisolatin6 iso-8859-10 iso-ir-157 iso8859-10 iso885910 l6 latin6",
    "iso8859-13": "iso-8859-13 iso8859-13 iso885913",
    "iso8859-14": "iso-8859-14 iso8859-14 iso885914",
    "iso8859-15": "csisolatin9 iso-8859-15 iso8859-15 iso885915 iso_8859-15 l9",
    "iso8859-16": "iso-8859-16",
    "koi8-r": "cskoi8r koi koi8 koi8-r koi8_r",
    "koi8-u": "koi8-ru koi8-u",
    "mac-roman": "csmacintosh mac macintosh x-mac-roman",
    "cp874": "dos-874 iso-8859-11 iso8859-11 iso885911 tis-620 windows-874",
    "cp1250": "cp1250 windows-1250 x-cp1250",
    "cp1251": "cp1251 windows-1251 x-cp1251",
    "cp1252": "ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso8859-1 iso88591 "
    "iso_8859-1 iso_8859-1:1987 l1 latin1 us-ascii windows-1252 x-cp1252 x-user-defined",
    "cp1253": "cp1253 windows-1253 x-cp1253",
    "cp1254": "cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 iso_8859-9:1989 l5 latin5 "
    "windows-1254 x-cp1254",
    "cp1255": "cp1255 windows-1255 x-cp1255",
    "cp1256": "cp1256 windows-1256 x-cp1256",
    "cp1257": "cp1257 windows-1257 x-cp1257",
    "cp1258": "cp1258 windows-1258 x-cp1258",
    "mac-cyrillic": "x-mac-cyrillic x-mac-ukrainian",
    "gb18030": "chinese csgb2312 csiso58gb231280 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk gb18030",
    "big5hkscs": "big5 big5-hkscs cn-big5 csbig5 x-x-big5",
    "euc-jp": "cseucpkdfmtjapanese euc-jp x-euc-jp",
    "iso2022-jp-ext": "csiso2022jp iso-2022-jp",
    "cp932": "csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis",
    "cp949": "cseuckr csksc56011987 euc-kr iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601 "
    "windows-949",
    "utf-16-be": "unicodefffe utf-16be",
    "utf-16-le": "csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16 utf-16le",
    # Browsers refuse these because of script injection, which is no risk for text.
    "iso2022-kr": "csiso2022kr iso-2022-kr",
    "hz": "hz-gb-2312",
}
_CODECS = {label: codec for codec, labels in _LABELS.items() for label in labels.split()}
_BOMS = (  # UTF-32 is not in the standard; its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

HEAD_BYTES = 1 << 16  # of a page's head that are searched for its encoding
PRESCAN_BYTES = 1 << 10  # that are searched even beyond the head
SAMPLE_BYTES = 1 << 10
_COMMENT = re.compile(r"<!--(?:.*?(?<=--)>|.*)", re.DOTALL)  # one without an end reaches to the end
_HEAD_END = re.compile(r"</head[\s>]|<body[\s>]", re.IGNORECASE)
_META = re.compile(r"""<meta[\s/]((?:"[^"]*"|'[^']*'|[^>"'])*)>""", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""([^\s=/>"']+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"']+))""")
_CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([^\s"';,]+)""", re.IGNORECASE)
_XML = re.compile(r"""\A\s*<\?xml[^>]*?encoding\s*=\s*["']([^"']+)["']""")
_VALUES = re.compile(r"""(?:[^",]|"(?:[^"\\]|\\.)*"?)+""")  # of a header that is there several times
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")  # bytes of no text, as the MIME Sniffing Standard says


# Characters that Python's codecs decode differently from the standard.
_JAPANESE = str.maketrans("\u301c\u2016\u2212¢£¬", "\uff5e\u2225\uff0d\uffe0\uffe1\uffe2")
_CODEC_CORRECTIONS = {
    "euc-jp": _JAPANESE,
    "iso2022-jp-ext": _JAPANESE,
    "cp932": str.maketrans("\uf8f0\uf8f1\uf8f2\uf8f3", "\ufffd" * 4),
    "big5hkscs": str.maketrans(
        "\u2022\uff64\u203e\u223c\u2641\u2609¥¢£", "\u2027\ufe51¯\uff5e\u2295\u2299\uffe5\uffe0\uffe1"
    ),
    "koi8-u": str.maketrans("\u255d\u256c", "\u045e\u040e"),
    "gb18030": str.maketrans(
        "\ue5e5\ue78d\ue78e\ue78f\ue790\ue791\ue792\ue793\ue794\ue795\ue796\ue7c7"
        "\ue81e\ue826\ue82b\ue82c\ue832\ue843\ue854\ue864",
        "\u3000\ufe10\ufe12\ufe11\ufe13\ufe14\ufe15\ufe16\ufe17\ufe18\ufe19\u1e3f"
        "\u9fb4\u9fb5\u9fb6\u9fb7\u9fb8\u9fb9\u9fba\u9fbb",
    ),
}


def _decode_bytes_missing_in_python(error: UnicodeError) -> tuple[str, int]:
    """Decode bytes that are missing in Python's tables but not in the standard's: C1 controls, vendor Japanese, others.

    Returns:
        The character, or U+FFFD if the standard has none, and the position to continue from.
    """
    assert isinstance(error, UnicodeDecodeError)
    start = error.start
    byte, pair = error.object[start], error.object[start : start + 2]
    if error.encoding.startswith("charmap") and 0x80 <= byte < 0xA0:
        return chr(byte), error.end
    if error.encoding == "gb18030" and byte == 0x80:
        return "€", start + 1
    if error.encoding == "big5hkscs" and pair == b"\xa3\xe1":
        return "€", start + 2
    with suppress(UnicodeDecodeError, ValueError):
        if error.encoding in ("euc_jp", "iso2022_jp_ext") and len(pair) == 2:
            return _to_shift_jis(pair[0] & 0x7F, pair[1] & 0x7F).decode("cp932"), start + 2
    return "\ufffd", error.end


def _to_shift_jis(row: int, cell: int) -> bytes:
    """Return a character of JIS X 0208, whose row and cell begin at 0x21, in Shift_JIS.

    Raises:
        ValueError: there is no such row or cell.
    """
    if not (0x21 <= row <= 0x7E and 0x21 <= cell <= 0x7E):
        raise ValueError("no row or cell of JIS X 0208")
    lead = (row - 0x21) // 2 + (0x81 if row < 0x5F else 0xC1)
    trail = cell + (0x1F + (cell >= 0x60) if row % 2 else 0x7E)
    return bytes([lead, trail])


codecs.register_error("polder_left_out", _decode_bytes_missing_in_python)


class ContentType(NamedTuple):
    """A media type in lower case, without parameters, and the charset that a header states with it."""

    media_type: str
    charset: str | None


class DecodedText(NamedTuple):
    """A text, how its encoding was detected, and the number of undecodable characters, each replaced by U+FFFD."""

    text: str
    known_by: KnownBy
    errors: int


def parse_content_type(headers: Sequence[str]) -> ContentType:
    """Return the content type of all Content-Type header values, as extracted by the Fetch Standard.

    The last media type counts, with its own charset or an earlier one of the same type.
    """
    content_type = ContentType("", None)
    for value in _VALUES.findall(",".join(headers)):
        media_type, _, parameters = value.partition(";")
        media_type = media_type.strip().lower()
        if "/" not in media_type or media_type == "*/*":
            continue
        charset = _CHARSET.search(parameters)
        inherited = content_type.charset if media_type == content_type.media_type else None
        content_type = ContentType(media_type, charset[1] if charset else inherited)
    return content_type


def find_codec(label: str | None) -> str | None:
    """Return the codec of an encoding label; None for a label that the standard does not know, such as utf-7."""
    return _CODECS.get(label.strip("\t\n\f\r ").lower()) if label else None


def decode_page(content: bytes, charset: str | None, *, is_xml: bool = False) -> DecodedText:
    """Decode an HTML page by its byte order mark, the charset of its header, its own declaration, or a guess.

    Args:
        is_xml: whether an XML declaration has priority over <meta> elements.
    """
    head = _COMMENT.sub("", content[:HEAD_BYTES].decode("latin-1"))
    if end := _HEAD_END.search(head):
        head = head[: max(end.start(), PRESCAN_BYTES)]
    metas: list[Stated] = [("meta", label) for label in _find_meta_labels(head)]
    xml: list[Stated] = [("xml", label) for label in _XML.findall(head)[:1]]
    # A declaration of UTF-16 that is readable as ASCII is wrong.
    within: list[Stated] = [
        (known_by, "utf-8" if (find_codec(label) or "").startswith("utf-16") else label)
        for known_by, label in (xml + metas if is_xml else metas + xml)
    ]
    return _decode_first_fitting(content, [("header", charset), *within])


def decode_text(content: bytes, charset: str | None) -> DecodedText | None:
    """Decode plain text by its byte order mark, the charset of its header, or a guess; None if it is binary."""
    decoded = _decode_first_fitting(content, [("header", charset)])
    return None if decoded.known_by == "guess" and _BINARY.search(content) else decoded


def decode_utf(content: bytes) -> str:
    """Decode text in UTF-8, or in UTF-16 or UTF-32 with its byte order mark.

    Raises:
        UnicodeDecodeError: it is not.
    """
    bom, codec = _find_bom(content) or (b"", "utf-8")
    return content[len(bom) :].decode(codec)


def _find_bom(content: bytes) -> tuple[bytes, str] | None:
    return next(((bom, codec) for bom, codec in _BOMS if content.startswith(bom)), None)


def _find_meta_labels(head: str) -> Iterator[str]:
    for element in _META.finditer(head):
        attributes: dict[str, str] = {}
        for name, *values in _ATTRIBUTE.findall(element[1]):
            attributes.setdefault(name.lower(), "".join(values))
        if label := attributes.get("charset"):
            yield label
        elif attributes.get("http-equiv", "").strip().lower() == "content-type":
            yield from _CHARSET.findall(attributes.get("content", ""))


def _decode_first_fitting(content: bytes, stated: Sequence[Stated]) -> DecodedText:
    """Decode with the first stated encoding that fits the content, or detect the encoding from the content.

    An incomplete character at the end is dropped, because archives truncate long pages.
    """
    if bom := _find_bom(content):
        return _decode_with(content[len(bom[0]) :], bom[1], "bom")
    for known_by, label in stated:
        if codec := find_codec(label):
            decoded = _decode_with(content, codec, known_by)
            if _is_decodable(decoded):
                return decoded
    sample = content[:SAMPLE_BYTES]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if max(even, odd) * 4 > len(sample) // 2 and min(even, odd) * 8 < max(even, odd):
        return _decode_with(content, "utf-16-le" if odd > even else "utf-16-be", "guess")
    decoded = _decode_with(content, "utf-8", "utf8")
    if not decoded.errors:
        return decoded
    return decoded._replace(known_by="guess") if _is_decodable(decoded) else _decode_with(content, "cp1252", "guess")


def _is_decodable(decoded: DecodedText) -> bool:
    """Return whether at least half of the characters outside ASCII could be decoded."""
    others = len(decoded.text) - len(decoded.text.encode("ascii", "ignore")) - decoded.errors
    return decoded.errors <= others


def _decode_with(content: bytes, codec: str, known_by: KnownBy) -> DecodedText:
    text = (
        codecs.getincrementaldecoder(codec)("polder_left_out")
        .decode(content)
        .translate(_CODEC_CORRECTIONS.get(codec, {}))
    )
    errors = text.count("\ufffd") - (content.count(b"\xef\xbf\xbd") if codec == "utf-8" else 0)
    return DecodedText(text, known_by, max(errors, 0))
