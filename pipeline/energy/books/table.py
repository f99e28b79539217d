"""Tables that other programs have written: columns by their names, numbers as they are written in any country.

What is wrong with the whole table is an `InputError`; what is wrong with a row is a sentence in `problems`, and the
other rows are read.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pipeline.core.errors import InputError
from pipeline.energy.readings import Book

NUMBER = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?")
SEPARATORS = ";,\t"


class Books(list[Book]):
    """Books in the order of their nodes and times; `problems` has a sentence for each thing that is not in them."""

    def __init__(self, books: Iterable[Book] = (), problems: Iterable[str] = ()) -> None:
        super().__init__(books)
        self.problems = list(dict.fromkeys(problems))


class Row(NamedTuple):
    """A row of a table: the line on which it ends, and its cells by the names of their columns."""

    line: int
    cells: dict[str, str]


class Table:
    """A table with its rows; names of columns are compared without regard to capitals."""

    def __init__(self, text: str, name: str, *, smallest: int = 4) -> None:
        """Read a table; the first line that has at least so many cells is its header.

        Raises:
            InputError: there is no header.
        """
        self.name = name
        self.problems: list[str] = []
        lines = text.removeprefix("\ufeff").splitlines(keepends=True)
        for self._above, line in enumerate(lines):
            separator = max(SEPARATORS, key=line.count)
            if line.count(separator) >= smallest - 1 and not line.lstrip().startswith("<"):
                break
        else:
            raise InputError(f"{name} has no header with the names of its columns: it is cut off, or another file")
        rows = csv.reader(lines[self._above :], delimiter=separator)
        self.header = [cell.strip() for cell in next(rows)]
        self._rows = rows
        known = [cell.lower() for cell in self.header if cell]
        for cell in known:
            if known.count(cell) > 1:
                raise InputError(f"{name} has two columns {cell!r}: give one of them another name")

    def find(self, *names: str) -> str | None:
        """Return the column of the first of these names that is there, as the table writes it; None if none is."""
        of = {cell.lower(): cell for cell in self.header}
        return next((of[name.lower()] for name in names if name.lower() in of), None)

    def column(self, *names: str) -> str:
        """Return the column of the first of these names that is there, as the table writes it.

        Raises:
            InputError: none is there; the sentence names the column and what looks like it.
        """
        found = self.find(*names)
        if found is not None:
            return found
        shape = re.sub(r"\d", "#", names[0].lower())  # GPU1_POWER_W is no other name of GPU0_POWER_W
        of = {cell.lower(): cell for cell in self.header if re.sub(r"\d", "#", cell.lower()) != shape}
        alike = difflib.get_close_matches(names[0].lower(), of, n=1, cutoff=0.6)
        hint = f": is it {of[alike[0]]!r} there? Give that column its name back" if alike else ": it is another table"
        raise InputError(f"{self.name} has no column {' or '.join(names)}{hint}")

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows that are whole; of each other one a sentence is kept."""
        for cells in self._rows:
            line = self._above + self._rows.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(self.header):
                what = "is cut off" if len(cells) < len(self.header) else "is longer than the header"
                self.problems.append(
                    f"{self.name}, line {line}: the row {what} ({len(cells)} cells of {len(self.header)}): it is not "
                    "counted; write the file again"
                )
                continue
            yield Row(line, dict(zip(self.header, (cell.strip() for cell in cells), strict=True)))

    def number(self, row: Row, column: str) -> float:
        """Return the number in a cell; 1,5 and 1.5 are the same.

        Raises:
            InputError: it is no number; the sentence names file, line and column.
        """
        text = row.cells[column]
        if not NUMBER.fullmatch(text):
            way = "write it without separators of thousands" if re.fullmatch(r"[\d.,]+", text) else "it must be one"
            raise InputError(f"{self.name}, line {row.line}: {column} is {text!r}, which is no number: {way}")
        return float(text.replace(",", "."))

    def time(self, row: Row, column: str) -> float:
        """Return the time in a cell in seconds of Unix time; it needs no zone where the column is called UTC.

        Raises:
            InputError: it is none, or has no zone; the sentence names file, line and column.
        """
        text = row.cells[column]
        if re.fullmatch(r"\d{9,11}([.,]\d+)?", text):
            return self.number(row, column)
        where = f"{self.name}, line {row.line}: {column} is {text!r}"
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise InputError(f"{where}, which is no time: write it as 2026-06-09T06:38:45+02:00") from None
        if moment.tzinfo is None and re.search(r"\bUTC\b(?! ?[+-])", column):
            moment = moment.replace(tzinfo=UTC)
        if moment.tzinfo is None:
            raise InputError(
                f"{where}, which may be of any zone: write the times with theirs, 2026-06-09T06:38:45+02:00"
            )
        return moment.timestamp()


def text_of(path: Path) -> str:
    """Return the text of a file.

    Raises:
        InputError: it cannot be read, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): it may come later, or has another name") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text: give the table as CSV in UTF-8") from None
