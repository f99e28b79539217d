"""What is read of a raw file: its records, whatever the format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pipeline.sources.encodings import KnownBy

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


class Keys(NamedTuple):
    """The names of the fields that are read from a record; a dot stands before a field of a field."""

    text: str = "text"
    id: str = "id"
    date: str = "date"
    url: str = "url"
    title: str = "title"
    holder: str = "holder"
    license: str | None = None

    @property
    def licenses(self) -> tuple[str, ...]:
        """Where a record's own licence may stand."""
        return (self.license,) if self.license else COMMON_LICENSE_KEYS

    @property
    def wanted(self) -> list[str]:
        """All fields that are read, each once."""
        return [*dict.fromkeys([self.text, self.id, self.date, self.url, self.title, self.holder, *self.licenses])]


def value_at(fields: dict[str, Any], key: str) -> Any:
    """Return what stands at a key: in the field of that name or, behind a dot, in a field of a field."""
    if key in fields:
        return fields[key]
    head, _, rest = key.partition(".")
    inner = fields.get(head)
    return value_at(inner, rest) if rest and isinstance(inner, dict) else None


@dataclass
class Record:
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


def too_large(number: int, size: int, position: int = 0) -> Record:
    """Return the record that stands for one of more bytes than are held."""
    return Record(number, size, None, "too_large", str(size), position)
