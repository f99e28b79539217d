"""Converts records of any format to raw documents, with a stable id, and a text or the reason for a missing one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

from pipeline.core.errors import InputError
from pipeline.sources.character_encodings import KnownBy
from pipeline.sources.spdx_license_parser import stringify_license_field

# Why a record has no usable text.
Unreadable = Literal[
    "broken_json",
    "broken_csv",
    "not_an_object",
    "invalid_utf8",
    "missing_text",
    "too_large",
    "no_main_text",
    "not_a_page",
    "http_status",
    "trailing_bytes",
]

# Fields for licenses of rows, checked even if a source names no field.
COMMON_LICENSE_KEYS = ("license", "licence", "metadata.license")

SHOWN_COLUMNS = 12


class FieldNames(NamedTuple):
    """The names of the fields to read from a record; a dot separates nested fields."""

    text: str = "text"
    id: str = "id"
    date: str = "date"
    url: str = "url"
    title: str = "title"
    holder: str = "holder"
    license: str | None = None
    language: str | None = None

    @property
    def license_fields(self) -> tuple[str, ...]:
        """The fields that may contain a record's own license."""
        return (self.license,) if self.license else COMMON_LICENSE_KEYS

    @property
    def all_fields(self) -> list[str]:
        """All fields to read, each once."""
        language = [self.language] if self.language else []
        plain = [self.text, self.id, self.date, self.url, self.title, self.holder]
        return [*dict.fromkeys([*plain, *self.license_fields, *language])]


def get_field(fields: dict[str, Any], key: str) -> Any:
    """Return the value of a field, which may be nested with a dot; None if it is missing."""
    if key in fields:
        return fields[key]
    head, _, rest = key.partition(".")
    inner = fields.get(head)
    return get_field(inner, rest) if rest and isinstance(inner, dict) else None


@dataclass
class RawRecord:
    """One record of a file: a line of JSON, a row of a table, a response of WARC, or a complete plain text file.

    `number` counts from 1, `size` is in bytes. `fields` is None if the record has no usable text, with `reason` and
    `value`. `position` is about the number of bytes of the file before the record. For a web page, `encoding_known_by`
    is how its encoding was detected, `decoding_errors` the number of undecodable characters, and `reservation` what the
    page or its HTTP headers say of reserved rights.
    """

    number: int
    size: int
    fields: dict[str, Any] | None
    reason: Unreadable | None = None
    value: str | None = None
    position: int = 0
    encoding_known_by: KnownBy | None = None
    decoding_errors: int = 0
    reservation: str | None = None


def oversized_record(number: int, size: int, position: int = 0) -> RawRecord:
    """Return a record in place of one above the size limit."""
    return RawRecord(number, size, None, "too_large", str(size), position)


WITHHELD_ID = "withheld"  # with the record number, the id of a document with personal data in its own id
# Reasons that count as broken records; the other reasons are normal in a source.
BROKEN_REASONS: tuple[Unreadable, ...] = ("broken_json", "broken_csv", "not_an_object", "invalid_utf8", "missing_text")


@dataclass
class RawDocument:
    """A record with its id, SOURCE/FILE/ORIGINAL ID; without text it has `reason` and `value`.

    `license` and `language` are the record's own, as written. `number` counts the records of the file from 1. `size` is
    the size of the text, or of a record without text, in bytes.
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
    language: str | None = None
    reason: Unreadable | None = None
    value: str | None = None
    encoding_known_by: KnownBy | None = None
    decoding_errors: int = 0
    reservation: str | None = None


def make_raw_documents(
    records: Iterable[RawRecord], place: str, keys: FieldNames
) -> Iterator[tuple[RawDocument, RawRecord]]:
    """Yield the document of each record of a file, and the record.

    The id is `place`/ORIGINAL ID, or `place`/ROW from 0 for a record without id. Repeated ids get #2, #3, …. A record
    without text has its number, from 1, as id.

    Raises:
        InputError: an id, URL or holder has a type without an exact text.
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
        attributes: dict[str, Any] = {"text": None, "reason": reason, "value": value}
        name = str(record.number)
        if fields is not None and reason is None:
            at = f"{place}, record {record.number}"
            original, url, holder = (
                field_text(get_field(fields, key), key, at) for key in (keys.id, keys.url, keys.holder)
            )
            name = str(record.number - 1) if original is None else original
            attributes = {"text": text, "url": url, "holder": holder, "original_id": original}
            attributes |= {
                "title": value_to_text_or_none(get_field(fields, keys.title)),
                "date": iso_date(get_field(fields, keys.date)),
            }
            attributes["license"] = next(
                filter(None, (stringify_license_field(get_field(fields, key)) for key in keys.license_fields)), None
            )
            attributes["language"] = _first_text(get_field(fields, keys.language)) if keys.language else None
        attributes |= {"encoding_known_by": record.encoding_known_by, "decoding_errors": record.decoding_errors}
        attributes["reservation"] = record.reservation
        yield RawDocument(f"{place}/{_make_unique(name, seen)}", record.number, size, **attributes), record


def _first_text(value: Any) -> str | None:
    """Return the exact text of a value, or of the first one of a list, which is the most probable."""
    return value_to_text_or_none((value or [None])[0] if isinstance(value, list) else value)


def iso_date(value: Any) -> str | None:
    """Return a date as ISO 8601 (YYYY, YYYY-MM or YYYY-MM-DD), from a date, time, year or string that begins with one.

    Returns None for other values and for days that do not exist.
    """
    if isinstance(value, bytes):
        value = value_to_text_or_none(value)
    if isinstance(value, float) and value.is_integer():  # a column of years with missing ones
        value = int(value)
    if isinstance(value, datetime | date):
        return value.isoformat()[:10]
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    match = re.match(r"([12]\d{3})(-(0[1-9]|1[0-2])(-\d\d(?!\d))?)?(?![\d-])", str(value).strip(), re.ASCII)
    if not match:
        return None
    if match[4]:
        try:
            date.fromisoformat(match[0])
        except ValueError:
            return None
    return match[0]


def exact_text(value: object) -> str | None:
    """Return the exact text of a value as a valid string; None for an empty value.

    Raises:
        TypeError: the type of the value has no unambiguous text.
    """
    if value is None or value == "" or value != value:  # NaN, a missing value in data frames
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
    if isinstance(value, float) and math.isinf(value):  # all overflowing numbers would be equal
        raise TypeError("infinite number")
    if isinstance(value, bool) or not isinstance(value, str | int | float | UUID):
        raise TypeError(type(value).__name__)
    return str(value).encode("utf-8", "replace").decode()


def value_to_text_or_none(value: object) -> str | None:
    """Return the exact text of a value; None if it has none."""
    try:
        return exact_text(value)
    except TypeError:
        return None


def field_text(value: object, key: str, place: str) -> str | None:
    """Return the exact text of a field that opt-out lists refer to: id, URL or holder.

    Raises:
        InputError: the type of the value has no unambiguous text.
    """
    try:
        return exact_text(value)
    except TypeError as error:
        raise InputError(unsupported_type_message(place, key, str(error))) from None


def format_column_names(names: Sequence[str]) -> str:
    """Return the first names of the columns of a table, and how many others it has."""
    more = f" and {len(names) - SHOWN_COLUMNS} more" if len(names) > SHOWN_COLUMNS else ""
    return f"{', '.join(names[:SHOWN_COLUMNS])}{more}"


def unsupported_type_message(place: str, key: str, kind: str) -> str:
    """Return the error message for a field of an unsupported type."""
    return (
        f"{place}: the field {key!r} holds a value of the type {kind}, and an opt-out list could not name it: convert "
        "it to text, or let id_key, url_key or holder_key of the source name another field, or one that is not there"
    )


def _make_unique(name: str, seen: dict[str, int]) -> str:
    """Return the name, numbered if it was seen before, and store it with the last number of the name.

    No number is tried twice for a name, so equal ids take linear time.
    """
    candidate, number = name, seen.get(name, 1)
    while candidate in seen:
        number += 1
        candidate = f"{name}#{number}"
    seen[candidate] = 1
    seen[name] = number
    return candidate
