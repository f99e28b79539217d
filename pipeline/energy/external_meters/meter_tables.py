"""Read the tables of external meters, and check their figures against limits of hardware.

A problem of a whole table is an `InputError`; that of a row is a sentence in `problems`, and the other rows are read.
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

from pydantic import AliasChoices, BaseModel, Field, ValidationError

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.energy.readings import ExternalReading

NUMBER = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?")
SEPARATORS = ";,\t"


class ExternalReadings(list[ExternalReading]):
    """Readings in the order of nodes and times, with a sentence in `problems` for each missing thing."""

    def __init__(self, readings: Iterable[ExternalReading] = (), problems: Iterable[str] = ()) -> None:
        super().__init__(readings)
        self.problems = list(dict.fromkeys(problems))


class MeterTableRow(NamedTuple):
    """A row of a table: the line on which it ends, and its cells by column."""

    line: int
    cells: dict[str, str]


class MeterTable:
    """A table with its rows; column names are compared without regard to capitals."""

    def __init__(self, text: str, name: str, *, smallest: int = 4) -> None:
        """Read a table; its header is the first line with at least `smallest` cells.

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
            raise InputError(f"{name} has no header with the names of its columns: it is truncated, or another file")
        rows = csv.reader(lines[self._above :], delimiter=separator)
        self.header = [cell.strip() for cell in next(rows)]
        self._rows = rows
        known = [cell.lower() for cell in self.header if cell]
        for cell in known:
            if known.count(cell) > 1:
                raise InputError(f"{name} has two columns {cell!r}: give one of them another name")

    def find_column(self, *names: str) -> str | None:
        """Return the first of these columns that exists, as the table spells it; None if none does."""
        of = {cell.lower(): cell for cell in self.header}
        return next((of[name.lower()] for name in names if name.lower() in of), None)

    def require_column_name(self, *names: str) -> str:
        """Return the first of these columns that exists, as the table spells it.

        Raises:
            InputError: none exists; the sentence names the column and a similar one.
        """
        column = self.find_column(*names)
        if column is not None:
            return column
        shape = re.sub(r"\d", "#", names[0].lower())  # GPU1_POWER_W is no other name of GPU0_POWER_W
        of = {cell.lower(): cell for cell in self.header if re.sub(r"\d", "#", cell.lower()) != shape}
        similar = difflib.get_close_matches(names[0].lower(), of, n=1, cutoff=0.6)
        hint = f": is it {of[similar[0]]!r} there? Restore that column's name" if similar else ": it is another table"
        raise InputError(f"{self.name} has no column {' or '.join(names)}{hint}")

    def __iter__(self) -> Iterator[MeterTableRow]:
        """Yield the complete rows; each other one becomes a problem."""
        for cells in self._rows:
            line = self._above + self._rows.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(self.header):
                what = "is truncated" if len(cells) < len(self.header) else "is longer than the header"
                self.problems.append(
                    f"{self.name}, line {line}: the row {what} ({len(cells)} cells of {len(self.header)}): it is not "
                    "counted; write the file again"
                )
                continue
            yield MeterTableRow(line, dict(zip(self.header, (cell.strip() for cell in cells), strict=True)))

    def parse_number(self, row: MeterTableRow, column: str) -> float:
        """Return the number in a cell; 1,5 and 1.5 are the same.

        Raises:
            InputError: it is no number; the sentence names file, line and column.
        """
        text = row.cells[column]
        if not NUMBER.fullmatch(text):
            way = "write it without separators of thousands" if re.fullmatch(r"[\d.,]+", text) else "it must be one"
            raise InputError(f"{self.name}, line {row.line}: {column} is {text!r}, which is no number: {way}")
        return float(text.replace(",", "."))

    def parse_time(self, row: MeterTableRow, column: str) -> float:
        """Return the Unix time in a cell; it needs no time zone if the column's name says UTC.

        Raises:
            InputError: it is none, or has no zone; the sentence names file, line and column.
        """
        text = row.cells[column]
        if re.fullmatch(r"\d{9,11}([.,]\d+)?", text):
            return self.parse_number(row, column)
        where = f"{self.name}, line {row.line}: {column} is {text!r}"
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise InputError(f"{where}, which is no time: write it as 2026-06-09T06:38:45+02:00") from None
        if moment.tzinfo is None and re.search(r"\bUTC\b(?! ?[+-])", column):
            moment = moment.replace(tzinfo=UTC)
        if moment.tzinfo is None:
            raise InputError(f"{where}, without a time zone: write the times with theirs, as 2026-06-09T06:38:45+02:00")
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


# Limits of hardware, and the unit in which a figure is possible.


NODE_WATTS = 20_000.0  # more than any air- or water-cooled node of eight boards takes (an 8 × B300 system: 14 to 15 kW)
BOARD_WATTS = 3_000.0  # more than any board of today takes (GB300: 1.4 kW)
STATED_TOLERANCE = 0.02  # share by which a stated energy may differ from power × time
READING_TOLERANCE = 0.05  # share by which two readings of one node may differ

ENERGY_UNITS = {"J": 1.0, "kJ": 1e3, "Wh": 3.6e3, "kWh": 3.6e6, "mJ": 1e-3, "MJ": 1e6}  # in joules
POWER_UNITS = {"W": 1.0, "kW": 1e3, "mW": 1e-3}  # in watts


def format_number(number: float) -> str:
    """Return a number with four significant digits, such as 2,793,000 or 0.7757."""
    rounded = float(f"{number:.4g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"


def explain_wrong_watts(watts: float, most: float = NODE_WATTS) -> str | None:
    """Explain an impossible power in watts, in words that follow its name; None for a possible one."""
    if watts < 0:
        return f"is {format_number(watts)} W, and no power is negative"
    if watts == 0:
        return "is 0 W, and nothing that runs takes none"
    if watts > most:
        likely = f": it would be {format_number(watts / 1e3)} W if it is in mW" if watts / 1e3 <= most else ""
        return f"is {format_number(watts)} W, more than the hardware can take ({format_number(most)} W){likely}"
    return None


def explain_wrong_energy(stated: float, unit: str | None, joules: float, source: str) -> str | None:
    """Compare a stated energy with power × time, and explain what is wrong with it; None if both agree within 2 %.

    EAR's manuals give the same figure in joules and in kilowatt-hours, so the stated unit is never trusted.

    Args:
        stated: the figure.
        unit: None where no unit is stated.
        joules: power × time.
        source: how the joules were computed, such as `381.5 W × 3660 s × 2 nodes`.
    """
    tolerance = STATED_TOLERANCE * abs(joules)
    fits = [name for name, factor in ENERGY_UNITS.items() if abs(stated * factor - joules) <= tolerance]
    if unit in fits or (unit is None and "J" in fits):
        return None
    truth = f"{source} = {format_number(joules)} J = {format_number(joules / ENERGY_UNITS['kWh'])} kWh"
    figure = f"{format_number(stated)} {unit}" if unit else f"{format_number(stated)} without a unit"
    if fits:
        return f"the stated energy of {figure} must be in {fits[0]}: {truth}"
    return f"the stated energy of {figure} is wrong in every unit ({', '.join(ENERGY_UNITS)}): {truth}"


# The external readings of a run, in the files of its accounting.
#
# `provenance/accounting/CLUSTER.JOB.json` has those of a Slurm job, `provenance/accounting/books/NAME.json` those of a
# table in the configuration, and `problems.json` there the failures of the last queries.


class ExternalReadingsFile(BaseModel):
    """The fields of a file that are read here; the readings were called `books` before, or were absent."""

    external_readings: list[ExternalReading] = Field([], validation_alias=AliasChoices("external_readings", "books"))
    problems: list[str] = []
    job: str | None = None
    energy_final: bool = True
    energy_problems: list[str] = []


def collect_external_readings(run_directory: Path) -> ExternalReadings:
    """Return all external readings of a run, with a problem for each missing one; damaged files are skipped."""
    readings: list[ExternalReading] = []
    problems: list[str] = []
    late: list[str] = []
    for folder in (run_directory / layout.EXTERNAL_METERS, run_directory / layout.ACCOUNTING):
        for path in sorted(folder.glob("[!.]*.json")):
            try:
                content: Any = json.loads(path.read_text(encoding="utf-8"))
                file = ExternalReadingsFile.model_validate(content)
            except (OSError, ValueError) as error:
                kind = "is damaged" if isinstance(error, ValidationError | ValueError) else "cannot be read"
                problems.append(f"{path} {kind}: delete it and call polder accounting {run_directory}")
                continue
            readings += file.external_readings
            problems += [*file.problems, *file.energy_problems]
            if not file.energy_final and file.job:
                late.append(file.job)
    if late:
        problems.append(
            f"the energy of {len(late)} jobs of Slurm (such as {late[0]}) is not final: call python -m pipeline "
            f"accounting {run_directory} later"
        )
    return ExternalReadings(readings, problems)
