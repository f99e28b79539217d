"""Read the carbon intensity of a grid over time, and divide a run's electricity among its periods.

`carbon_intensity_series` of the section `energy` names the columns of the table. A row holds until the next one, but no
longer than usual: in a gap the intensity is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.energy.external_meters.meter_tables import MeterTable, MeterTableRow, format_number, read_text
from pipeline.energy.run_energy_report_reader import CarbonIntensity, IntensityPeriod
from pipeline.energy.settings import CarbonIntensitySeries

GAP_FACTOR = 1.5  # times the usual time between two rows
MOST_GRAMS_PER_KWH = 2000.0
"""More than any grid emits: electricity from coal alone is 740 to 910 g/kWh over its life (IPCC 2014, AR5 WG3, table
A.III.2), from lignite in old plants up to twice as much."""


class IntensitySeries(NamedTuple):
    """Grams of CO2 equivalent per kilowatt-hour between consecutive Unix times; None where they are unknown."""

    name: str
    sha256: str
    moments: list[float]
    grams_per_kwh: list[float | None]
    problems: list[str]

    def assign_joules(self, joules: Sequence[float]) -> CarbonIntensity:
        """Return the periods with electricity, given its joules between consecutive times."""
        stretches = [
            IntensityPeriod(started=started, ended=ended, grams_per_kwh=grams, joules=amount)
            for (started, ended), grams, amount in zip(pairwise(self.moments), self.grams_per_kwh, joules, strict=True)
            if amount > 0
        ]
        return CarbonIntensity(name=self.name, sha256=self.sha256, stretches=stretches)


def _parse_grams_per_kwh(table: MeterTable, row: MeterTableRow, column: str) -> float | None:
    if not row.cells[column]:
        return None
    grams = table.parse_number(row, column)
    if 0 <= grams <= MOST_GRAMS_PER_KWH:
        return grams
    what = "less than nothing" if grams < 0 else f"more than any grid emits ({format_number(MOST_GRAMS_PER_KWH)} g/kWh)"
    raise InputError(
        f"{table.name}, line {row.line}: {column} is {format_number(grams)}, which is {what}: give the column of "
        "grams per kilowatt-hour"
    )


def read_intensity_series(series: CarbonIntensitySeries, path: Path) -> IntensitySeries:
    """Read a table of the intensity over time; it is unknown where a cell is empty.

    Raises:
        InputError: the file is not there, is no table, lacks a column, has a time without a zone or that is not after
            the one before, or an intensity that cannot be.
    """
    table = MeterTable(read_text(path), str(path), smallest=2)
    time, column = table.require_column_name(series.time), table.require_column_name(series.grams_per_kwh)
    moments: list[float] = []
    grams: list[float | None] = []
    for row in table:
        moment = table.parse_time(row, time)
        if moments and moment <= moments[-1]:
            raise InputError(
                f"{table.name}, line {row.line}: {time} is {row.cells[time]!r}, which is not after the time before it: "
                "give the rows of one grid alone, in the order of their times"
            )
        moments.append(moment)
        grams.append(_parse_grams_per_kwh(table, row, column))
    if len(moments) < 2:
        raise InputError(f"{table.name} has fewer than two rows, so how long one holds is unknown: write it again")
    usual = median(second - first for first, second in pairwise(moments))
    edges: list[float] = []
    known: list[float | None] = []
    for (started, ended), value in zip(pairwise([*moments, moments[-1] + usual]), grams, strict=True):
        edges.append(started)
        known.append(value)
        if ended - started > GAP_FACTOR * usual:
            edges.append(started + usual)
            known.append(None)
    return IntensitySeries(path.name, hash_file(path), [*edges, moments[-1] + usual], known, table.problems)
