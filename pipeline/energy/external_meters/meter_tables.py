"""Read the tables that external meters wrote, and check their figures against limits of hardware.

What is wrong with the whole table is an `InputError`; what is wrong with a row is a sentence in `problems`, and the
other rows are read.
"""

from __future__ import annotations

import csv
import difflib
import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.energy.readings import ExternalReading

NUMBER = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?")
SEPARATORS = ";,\t"


class ExternalReadings(list[ExternalReading]):
    """Readings in the order of nodes and times; `problems` has a sentence for each thing that is not in them."""

    def __init__(self, books: Iterable[ExternalReading] = (), problems: Iterable[str] = ()) -> None:
        super().__init__(books)
        self.problems = list(dict.fromkeys(problems))


class MeterTableRow(NamedTuple):
    """A row of a table: the line on which it ends, and its cells by the names of their columns."""

    line: int
    cells: dict[str, str]


class MeterTable:
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

    def __iter__(self) -> Iterator[MeterTableRow]:
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
            yield MeterTableRow(line, dict(zip(self.header, (cell.strip() for cell in cells), strict=True)))

    def number(self, row: MeterTableRow, column: str) -> float:
        """Return the number in a cell; 1,5 and 1.5 are the same.

        Raises:
            InputError: it is no number; the sentence names file, line and column.
        """
        text = row.cells[column]
        if not NUMBER.fullmatch(text):
            way = "write it without separators of thousands" if re.fullmatch(r"[\d.,]+", text) else "it must be one"
            raise InputError(f"{self.name}, line {row.line}: {column} is {text!r}, which is no number: {way}")
        return float(text.replace(",", "."))

    def time(self, row: MeterTableRow, column: str) -> float:
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


def read_text(path: Path) -> str:
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


# Limits of hardware, and the unit in which a figure would make sense.


NODE_WATTS = 20_000.0  # more than any air- or water-cooled node of eight boards takes (an 8 × B300 system: 14 to 15 kW)
BOARD_WATTS = 3_000.0  # more than any board of today takes (GB300: 1.4 kW)
STATED_TOLERANCE = 0.02  # as a share: power × time against an energy that is stated
READING_TOLERANCE = 0.05  # as a share: two readings of the same thing

ENERGY_UNITS = {"J": 1.0, "kJ": 1e3, "Wh": 3.6e3, "kWh": 3.6e6, "mJ": 1e-3, "MJ": 1e6}  # in joules
POWER_UNITS = {"W": 1.0, "kW": 1e3, "mW": 1e-3}  # in watts


def format_number(number: float) -> str:
    """Return a number with four digits that count, such as 2,793,000 or 0.7757."""
    rounded = float(f"{number:.4g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"


def explain_wrong_watts(watts: float, most: float = NODE_WATTS) -> str | None:
    """Return what is wrong with a power in watts, in words that follow its name; None for a power that can be."""
    if watts < 0:
        return f"is {format_number(watts)} W, and no power is negative"
    if watts == 0:
        return "is 0 W, and nothing that runs takes none"
    if watts > most:
        likely = f": it would be {format_number(watts / 1e3)} W if it is in mW" if watts / 1e3 <= most else ""
        return f"is {format_number(watts)} W, more than the hardware can take ({format_number(most)} W){likely}"
    return None


def find_fitting_units(said: float, joules: float) -> list[str]:
    """Return the units in which a stated energy agrees with these joules within 2 %."""
    return [
        unit for unit, factor in ENERGY_UNITS.items() if abs(said * factor - joules) <= STATED_TOLERANCE * abs(joules)
    ]


def explain_stated_energy(said: float, unit: str | None, joules: float, of: str) -> str | None:
    """Compare an energy that somebody states with power × time in joules, and return what is wrong with it.

    `unit` is None where no unit is stated; `of` says how the joules came about, such as `381.5 W × 3660 s × 2 nodes`.
    Manuals of EAR call the same figure once joules and once kilowatt-hours, so the unit is never believed.
    """
    fits = find_fitting_units(said, joules)
    if unit in fits or (unit is None and "J" in fits):
        return None
    truth = f"{of} = {format_number(joules)} J = {format_number(joules / ENERGY_UNITS['kWh'])} kWh"
    stated = f"{format_number(said)} {unit}" if unit else f"{format_number(said)} without a unit"
    if fits:
        return f"the stated energy of {stated} must be in {fits[0]}: {truth}"
    return f"the stated energy of {stated} is wrong in every unit ({', '.join(ENERGY_UNITS)}): {truth}"


# The external readings of a run, as they were written next to its accounting.
#
# `provenance/accounting/CLUSTER.JOB.json` has those of a job of Slurm, `provenance/accounting/books/NAME.json` those
# of a table that the configuration names, and `problems.json` there what could not be asked the last time.


class ExternalReadingsFile(BaseModel):
    """What of a file is of interest here; one without `books` was written before there were any."""

    books: list[ExternalReading] = []
    problems: list[str] = []
    job: str | None = None
    energy_final: bool = True
    energy_problems: list[str] = []


def read_external_readings(run_directory: Path) -> ExternalReadings:
    """Return all external readings of a run; where something of them is missing, `problems` says what and why.

    A file that is damaged takes nothing from the others.
    """
    books: list[ExternalReading] = []
    problems: list[str] = []
    late: list[str] = []
    for folder in (run_directory / layout.EXTERNAL_METERS, run_directory / layout.ACCOUNTING):
        for path in sorted(folder.glob("[!.]*.json")):
            try:
                content: Any = json.loads(path.read_text(encoding="utf-8"))
                found = ExternalReadingsFile.model_validate(content)
            except (OSError, ValueError) as error:
                kind = "is damaged" if isinstance(error, ValidationError | ValueError) else "cannot be read"
                problems.append(f"{path} {kind}: delete it and call polder accounting {run_directory}")
                continue
            books += found.books
            problems += [*found.problems, *found.energy_problems]
            if not found.energy_final and found.job:
                late.append(found.job)
    if late:
        problems.append(
            f"the energy of {len(late)} jobs of Slurm (such as {late[0]}) is not final: call python -m pipeline "
            f"accounting {run_directory} later"
        )
    return ExternalReadings(books, problems)
