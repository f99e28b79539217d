"""Text for people: counts with nouns, tables, and escapes of control and invisible characters."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, cast

NOT_ASCII = re.compile(r"[^\n\t -~]")
# Letters and marks that no font draws: the grapheme joiner, Hangul and Khmer fillers, the empty Braille pattern.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")


def pluralize(number: int, noun: str) -> str:
    """Return a count with its noun, such as `1 job` or `2 jobs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_duration(seconds: float | None) -> str:
    """Return a stretch of time in its two largest units."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min"


def is_invisible(character: str) -> bool:
    """Return whether a character is invisible or changes how others are drawn; spaces, \\n and \\t are visible.

    These are control characters, format characters such as U+202E and U+200B, line separators, halves of surrogate
    pairs, fillers, and plane 14, which holds invisible tags and selectors.
    """
    if " " <= character <= "~" or character in "\n\t":
        return False
    kind = unicodedata.category(character)
    return kind in ("Cc", "Cf", "Cs", "Zl", "Zp") or character in _BLANK or 0xE0000 <= ord(character) < 0xE1000


def escape_character(character: str) -> str:
    """Return the ASCII escape of a character, such as \\x1b or \\u202e; from U+007F on it is valid JSON."""
    return repr(character)[1:-1] if character < "\x7f" else json.dumps(character)[1:-1]


def file_name_problem(path: str, *, one_line: bool = False) -> str | None:
    """Return why a file name cannot be written as UTF-8 or, with `one_line`, into a list of names; None if it can.

    Readers of such lists end a line wherever `str.splitlines` does, at U+2028 too; line feeds are escaped there.
    """
    if any("\ud800" <= character <= "\udfff" for character in path):
        return f"{escape_to_one_line(path)}: the name of the file is no UTF-8: rename the file or remove it"
    if one_line and len(re.sub(r"[\r\n]", "_", path).splitlines()) > 1:
        return f"{escape_to_one_line(path)}: the name of the file holds a line separator: rename the file or remove it"
    return None


def escape_invisible(text: str) -> str:
    """Escape the invisible characters of a text; everything else, whitespace included, stays."""
    return NOT_ASCII.sub(lambda match: escape_character(match[0]) if is_invisible(match[0]) else match[0], text)


def truncate_text(text: str, most: int) -> str:
    """Return a text of at most `most` characters; a longer one ends with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def escape_to_one_line(text: str) -> str:
    """Return a text on one line, with line ends and invisible characters escaped."""
    return "".join(escape_character(c) if is_invisible(c) or not c.isprintable() else c for c in text)


class _EscapingStream:
    """A stream that escapes the invisible characters of what is written to it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(escape_invisible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def escape_standard_output(stream: Any) -> Iterator[None]:
    """Escape the invisible characters of everything that this process prints to standard output."""
    with redirect_stdout(cast(io.TextIOBase, _EscapingStream(stream))):
        yield


def align_columns(rows: list[list[str]]) -> list[str]:
    """Return a table as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
