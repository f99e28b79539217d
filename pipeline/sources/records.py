"""What is read of a raw file: its records, whatever the format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

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
]


class Keys(NamedTuple):
    """The names of the fields that are read from a record."""

    text: str = "text"
    id: str = "id"
    date: str = "date"


@dataclass
class Record:
    """One line of a file, or what stands for a line: a row of Parquet, a response of WARC, a whole file of plain text.

    `number` counts from 1, `size` is in bytes, `fields` is None where the record has no usable text; `reason` then says
    how, and `value` what decided it. `position` is about how many bytes of the file were read before it.
    """

    number: int
    size: int
    fields: dict[str, Any] | None
    reason: Unreadable | None = None
    value: str | None = None
    position: int = 0


def too_large(number: int, size: int, position: int = 0) -> Record:
    """Return the record that stands for one of more bytes than are held."""
    return Record(number, size, None, "too_large", str(size), position)
