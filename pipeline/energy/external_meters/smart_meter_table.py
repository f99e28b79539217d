"""Read the table of a smart meter or a power distribution unit: power of outlets, or their energy counters.

The section `energy` of the configuration names the columns and the unit. A counter that goes back was reset: its energy
in between is unknown. In a gap between rows power is unknown, but a counter continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pipeline.core.errors import InputError
from pipeline.energy.external_meters.meter_tables import (
    ENERGY_UNITS,
    NODE_WATTS,
    POWER_UNITS,
    ExternalReadings,
    MeterTable,
    MeterTableRow,
    explain_wrong_watts,
    format_number,
    read_text,
)
from pipeline.energy.readings import ExternalReading, Reading
from pipeline.energy.settings import SmartMeter

GAP_FACTOR = 3.0  # times the usual time between two rows


class _OutletValues(NamedTuple):
    """The values of outlets at one time, in watts or joules; those without a value are absent."""

    line: int
    time: float
    values: dict[str, float]


def _read_outlet_values(table: MeterTable, row: MeterTableRow, meter: SmartMeter) -> dict[str, float]:
    """Return a row's values by outlet, in watts or joules, without those that are no numbers."""
    if meter.outlet is not None and meter.value is not None:
        cells = {row.cells[table.require_column_name(meter.outlet)]: table.require_column_name(meter.value)}
    else:
        cells = {name: table.require_column_name(name) for name in meter.outlets}
    factor, figures = {**POWER_UNITS, **ENERGY_UNITS}[meter.unit], {}
    for name, column in cells.items():
        if name in meter.outlets and row.cells[column]:
            try:
                figures[name] = table.parse_number(row, column) * factor
            except InputError as error:
                table.problems.append(f"{error}; it is not measured there")
    return figures


def _read_values_by_time(table: MeterTable, meter: SmartMeter) -> list[_OutletValues]:
    """Return the values by time of a table in which each row has a column for each outlet, or names its outlet.

    Raises:
        InputError: a column is not there, or a time is none or goes back.
    """
    time = table.require_column_name(meter.time)
    for name in [meter.outlet, meter.value] if meter.outlet and meter.value else meter.outlets:
        table.require_column_name(name)
    values_by_time: dict[float, _OutletValues] = {}
    last: dict[tuple[str, ...], tuple[int, float, dict[str, float]]] = {}
    for row in table:
        moment, figures = table.parse_time(row, time), _read_outlet_values(table, row, meter)
        series = tuple(figures) if meter.outlet else ()
        line, before, same = last.get(series, (0, float("-inf"), {}))
        if moment == before and figures == same:
            table.problems.append(f"{table.name}, line {row.line}: the same row as in line {line}: it counts once")
            continue
        if moment <= before:
            back = f"goes back by {before - moment:g} s" if moment < before else "stops"
            raise InputError(
                f"{table.name}, line {row.line}: its clock {back}, so its times are ambiguous: split the file "
                "there and leave out what is wrong"
            )
        last[series] = (row.line, moment, figures)
        values_by_time.setdefault(moment, _OutletValues(row.line, moment, {})).values.update(figures)
    return [values_by_time[moment] for moment in sorted(values_by_time)]


def _explain_excess_power(watts: float, meter: SmartMeter) -> str | None:
    """Explain an impossible mean power, with a more likely unit; None for a possible power."""
    wrong = explain_wrong_watts(watts)
    if wrong is None or watts <= NODE_WATTS:
        return wrong
    units = POWER_UNITS if meter.is_power else ENERGY_UNITS
    raw = watts / units[meter.unit]
    likely = [unit for unit, factor in units.items() if 10 <= raw * factor <= NODE_WATTS and unit not in ("mJ", "MJ")]
    hint = f"the unit is more likely {likely[0]} than {meter.unit}" if likely else f"{meter.unit} cannot be the unit"
    return f"is more than a node can take ({format_number(watts)} W, at most {format_number(NODE_WATTS)} W): {hint}"


def _make_reading(meter: SmartMeter, joules: float | None, problem: str | None) -> Reading:
    return Reading(
        component="node",
        joules=joules,
        label="measured",
        method="power" if meter.is_power else "counter",
        meter="smart_meter",
        plugin=Path(meter.path).name,
        problem=problem,
    )


def _joules_between(
    first: _OutletValues, second: _OutletValues, outlets: tuple[str, ...], meter: SmartMeter
) -> tuple[float, str | None]:
    """Return the joules between two times, and why they are unknown, in words that follow the node's name."""
    seconds = second.time - first.time
    lacking = [name for name in outlets if name not in first.values or name not in second.values]
    if lacking:
        return 0.0, f"is not measured, since {lacking[0]} says nothing"
    if meter.is_power:
        joules = sum((first.values[name] + second.values[name]) / 2 * seconds for name in outlets)
        negative = [name for name in outlets if min(first.values[name], second.values[name]) < 0]
        if negative:
            return 0.0, f"is not measured, since {negative[0]} says a negative power"
    else:
        joules = sum(second.values[name] - first.values[name] for name in outlets)
        reset = [name for name in outlets if second.values[name] < first.values[name]]
        if reset:
            return 0.0, f"is not measured, since the counter of {reset[0]} goes back: it was reset"
    wrong = _explain_excess_power(joules / seconds, meter)
    return joules, f"{wrong}: not measured" if wrong else None


def _external_readings(
    node: str, moments: list[_OutletValues], meter: SmartMeter, name: str
) -> Iterator[ExternalReading]:
    """Yield the readings of one node; one lasts until a counter has changed or is there again, as it continues."""
    outlets = meter.nodes[node]
    moments = [moment for moment in moments if any(outlet in moment.values for outlet in outlets)]
    usual = median([second.time - first.time for first, second in pairwise(moments)]) if len(moments) > 1 else 0.0
    first = moments[0] if moments else None
    for number, second in enumerate(moments[1:], start=2):
        assert first is not None
        before, now = ([moment.values.get(outlet) for outlet in outlets] for moment in (first, second))
        if not meter.is_power and number < len(moments) and None not in before and (None in now or before == now):
            continue
        joules, wrong = _joules_between(first, second, outlets, meter)
        seconds = second.time - first.time
        if meter.is_power and wrong is None and seconds > GAP_FACTOR * usual:
            wrong = (
                f"is not measured, since there is a gap of {format_number(seconds)} s "
                f"and rows usually are {usual:g} s apart"
            )
        problem = f"{name}, line {second.line}: {node} {wrong}" if wrong else None
        reading = _make_reading(meter, None if wrong else joules, problem)
        yield ExternalReading(
            node=node, started=first.time, ended=second.time, job=None, whole_node=None, readings=(reading,)
        )
        first = second


def read_smart_meter(
    meter: SmartMeter,
    text: str | None = None,
    *,
    since: float | None = None,
    until: float | None = None,
) -> ExternalReadings:
    """Return a reading for each node and time between two rows.

    Args:
        meter: its table and columns.
        text: the content of the table, if it was read already.
        since: leaves out earlier readings, in Unix seconds.
        until: leaves out later readings, in Unix seconds.

    Raises:
        InputError: the file is not there, is no table, lacks a column, or has a time without a zone or that goes back.
    """
    name = meter.path
    table = MeterTable(text if text is not None else read_text(Path(name)), name, smallest=2)
    moments = _read_values_by_time(table, meter)
    external = [
        one
        for node in sorted(meter.nodes)
        for one in _external_readings(node, moments, meter, name)
        if (since is None or one.ended > since) and (until is None or one.started < until)
    ]
    outlets = {outlet for moment in moments for outlet in moment.values}
    never = [(node, o) for node, names in sorted(meter.nodes.items()) for o in names if o not in outlets]
    table.problems += [
        f"{name} says nothing of the outlet {outlet!r}, which is that of {node}" for node, outlet in never
    ]
    return ExternalReadings(
        external, [*table.problems, *(p for one in external for r in one.readings if (p := r.problem))]
    )
