"""Raw documents: from a record of any format to an id that stays the same, and a text or why there is none."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

from pipeline.core.errors import InputError
from pipeline.sources.encodings import KnownBy
from pipeline.sources.spdx_licenses import license_text

# Why a record has no text that can be used.
Unreadable = Literal[
    "broken_json",
    "not_an_object",
    "invalid_utf8",
    "missing_text",
    "too_large",
    "no_main_text",
    "not_a_page",
    "http_status",
    "trailing_bytes",
]

# Where rows say under which licence they are, looked at also where a source names no field.
COMMON_LICENSE_KEYS = ("license", "licence", "metadata.license")


class FieldNames(NamedTuple):
    """The names of the fields that are read from a record; a dot stands before a field of a field."""

    text: str = "text"
    id: str = "id"
    date: str = "date"
    url: str = "url"
    title: str = "title"
    holder: str = "holder"
    license: str | None = None

    @property
    def license_fields(self) -> tuple[str, ...]:
        """Where a record's own licence may stand."""
        return (self.license,) if self.license else COMMON_LICENSE_KEYS

    @property
    def all_fields(self) -> list[str]:
        """All fields that are read, each once."""
        return [
            *dict.fromkeys([self.text, self.id, self.date, self.url, self.title, self.holder, *self.license_fields])
        ]


def get_field(fields: dict[str, Any], key: str) -> Any:
    """Return what stands at a key: in the field of that name or, behind a dot, in a field of a field."""
    if key in fields:
        return fields[key]
    head, _, rest = key.partition(".")
    inner = fields.get(head)
    return get_field(inner, rest) if rest and isinstance(inner, dict) else None


@dataclass
class RawRecord:
    """One line of a file, or what stands for a line: a row of Parquet, a response of WARC, a whole file of plain text.

    `number` counts from 1, `size` is in bytes, `fields` is None where the record has no usable text; `reason` then says
    how, and `value` what decided it. `position` is about how many bytes of the file were read before it. Of a web page
    `encoding_known_by` says how its encoding was known; `decoding_errors` counts the characters that are not in it.
    """

    number: int
    size: int
    fields: dict[str, Any] | None
    reason: Unreadable | None = None
    value: str | None = None
    position: int = 0
    encoding_known_by: KnownBy | None = None
    decoding_errors: int = 0


def oversized_record(number: int, size: int, position: int = 0) -> RawRecord:
    """Return the record that stands for one of more bytes than are held."""
    return RawRecord(number, size, None, "too_large", str(size), position)


WITHHELD_ID = "withheld"  # with the number of its record, what a document is called whose own id may not be shown
# What a source may hold in any number: a broken record is one that its maker did not mean to be so.
BROKEN_REASONS: tuple[Unreadable, ...] = ("broken_json", "not_an_object", "invalid_utf8", "missing_text")


@dataclass
class RawDocument:
    """A record with its id: SOURCE/NAME OF FILE/ORIGINAL ID. Without a text, `reason` and `value` say why.

    `license` is what the record says of its own licence, as it stands there.
    `number` counts the records of the file from 1, `size` is in bytes: of the text, or of the record where it has none.
    """

    id: str
    number: int
    size: int
    text: str | None
    url: str | None = None
    title: str | None = None
    date: str | None = None
    holder: str | None = None
    original_id: str | None = None
    license: str | None = None
    reason: Unreadable | None = None
    value: str | None = None
    encoding_known_by: KnownBy | None = None
    decoding_errors: int = 0


def make_raw_documents(
    records: Iterable[RawRecord], place: str, keys: FieldNames
) -> Iterator[tuple[RawDocument, RawRecord]]:
    """Yield the document of each record of a file, whose ids begin with `place`, and the record.

    The id is `place`/ORIGINAL ID, or the row number, from 0, where a record has no id; where an id stands twice in a
    file, the later one gets #2, #3, …. A record without a text has its number, from 1, for an id.

    Raises:
        InputError: an id, an address or a holder is of a type that has no text.
    """
    seen: dict[str, int] = {}
    for record in records:
        fields, reason, value, size = record.fields, record.reason, record.value, record.size
        text = get_field(fields, keys.text) if fields is not None else None
        if fields is not None:
            if not isinstance(text, str) or not text.strip():
                reason, value = "missing_text", "empty" if isinstance(text, str) else type(text).__name__
            else:
                try:
                    size = len(text.encode())
                except UnicodeEncodeError:  # half of a surrogate pair, written as an escape
                    reason = "invalid_utf8"
        known: dict[str, Any] = {"text": None, "reason": reason, "value": value}
        name = str(record.number)
        if fields is not None and reason is None:
            at = f"{place}, record {record.number}"
            original, url, holder = (
                field_text(get_field(fields, key), key, at) for key in (keys.id, keys.url, keys.holder)
            )
            name = str(record.number - 1) if original is None else original
            known = {"text": text, "url": url, "holder": holder, "original_id": original}
            known |= {
                "title": exact_text_or_none(get_field(fields, keys.title)),
                "date": iso_date(get_field(fields, keys.date)),
            }
            known["license"] = next(
                filter(None, (license_text(get_field(fields, key)) for key in keys.license_fields)), None
            )
        known |= {"encoding_known_by": record.encoding_known_by, "decoding_errors": record.decoding_errors}
        yield RawDocument(f"{place}/{_make_unique(name, seen)}", record.number, size, **known), record


def iso_date(value: Any) -> str | None:
    """Return a date as ISO 8601 (YYYY, YYYY-MM or YYYY-MM-DD), of a date, a time, a year or a string that begins so.

    None where it is none of these, or where there is no such day.
    """
    if isinstance(value, bytes):
        value = exact_text_or_none(value)
    if isinstance(value, datetime | date):
        return value.isoformat()[:10]
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    found = re.match(r"([12]\d{3})(-(0[1-9]|1[0-2])(-\d\d(?!\d))?)?(?![\d-])", str(value).strip(), re.ASCII)
    if not found:
        return None
    if found[4]:
        try:
            date.fromisoformat(found[0])
        except ValueError:
            return None
    return found[0]


def exact_text(value: object) -> str | None:
    """Return the exact text of a value as a valid string; None where there is none.

    Raises:
        TypeError: it has no text that everybody would write.
    """
    if value is None or value == "" or value != value:  # NaN, as data frames write that nothing is there
        return None
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise TypeError("bytes") from None
        if not value.isprintable():
            raise TypeError("bytes")
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float) and math.isinf(value):  # all numbers that are too large would be one
        raise TypeError("infinite number")
    if isinstance(value, bool) or not isinstance(value, str | int | float | UUID):
        raise TypeError(type(value).__name__)
    return str(value).encode("utf-8", "replace").decode()


def exact_text_or_none(value: object) -> str | None:
    """Return the exact text of a value; None of what has none."""
    try:
        return exact_text(value)
    except TypeError:
        return None


def field_text(value: object, key: str, place: str) -> str | None:
    """Return the exact text of a field by which opt-out lists name documents: id, address or holder.

    Raises:
        InputError: it has none.
    """
    try:
        return exact_text(value)
    except TypeError as error:
        raise InputError(unsupported_type_message(place, key, str(error))) from None


def unsupported_type_message(place: str, key: str, kind: str) -> str:
    """Return the sentence about a field of a type that is not read."""
    return (
        f"{place}: the field {key!r} holds a value of the type {kind}, and an opt-out list could not name it: convert "
        "it to text, or let id_key, url_key or holder_key of the source name another field, or one that is not there"
    )


def _make_unique(name: str, seen: dict[str, int]) -> str:
    """Return the name, numbered where it was seen before; remember it, and the last number that the name was given.

    No number is tried twice for a name: a million equal ids take as long as a million others.
    """
    candidate, number = name, seen.get(name, 1)
    while candidate in seen:
        number += 1
        candidate = f"{name}#{number}"
    seen[candidate] = 1
    seen[name] = number
    return candidate
