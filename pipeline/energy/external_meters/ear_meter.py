"""Read the tables of EAR and compute the energy of nodes as mean power × time.

EAR (`eacct -c`, or the files of `--ear-user-db`) writes a row for each job, step, task and node (job files), or for
each signature of a loop (loop files), with semicolons; derived tables have commas and small letters. Columns are found
by their names. Power is that of the whole node with all its jobs. EAR's manuals disagree on the unit of energy, so that
a stated energy is only compared with power × time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pipeline.core.errors import InputError
from pipeline.energy.external_meters.meter_tables import (
    BOARD_WATTS,
    NODE_WATTS,
    READING_TOLERANCE,
    STATED_TOLERANCE,
    ExternalReadings,
    MeterTable,
    MeterTableRow,
    explain_wrong_energy,
    explain_wrong_watts,
    format_number,
    read_text,
)
from pipeline.energy.readings import Component, ExternalReading, Reading

GPU_COLUMN = re.compile(r"gpu(\d+)_", re.IGNORECASE)
ENERGY_COLUMN = re.compile(r"(?:dc_)?(?:node_)?energy(?:[_ (]+(m?j|kj|k?wh)\)?)?", re.IGNORECASE)
UNIT_NAMES = {"j": "J", "kj": "kJ", "wh": "Wh", "kwh": "kWh"}  # not mj: milli or mega, in capitals
METER = "ear"
LIBRARY, DAEMON = "EAR library", "EAR daemon"
WHOLE_SECOND = 1.0  # EAR writes starts and ends as whole seconds
NO_DRAM = "EAR writes 0 W for the memory of {node}: it is not measured there"

Power = tuple[float | None, str | None]
"""Watts, or the reason why they are unknown."""


class EarRow(NamedTuple):
    """The watts of one node in a table, on average over some seconds.

    Attributes:
        seconds: the time of the joules; `ended` is rounded to whole seconds.
        started: None where the table has no times.
        manager_watts: of the node, its packages and its memory, by EAR's daemon, which also measures jobs without EAR's
            library; else 0.
        manager_seconds: the time of these.
        stated: an energy and its unit, if the row states any.
    """

    line: int
    job: str
    step: str
    task: str
    node: str
    seconds: float
    started: float | None
    ended: float | None
    node_watts: float
    package_watts: float
    dram_watts: float
    board_watts: dict[str, float]
    manager_watts: tuple[float, float, float]
    manager_seconds: float
    most_watts: float
    stated: tuple[float, str | None] | None


class _Columns:
    """The names of a table's columns."""

    def __init__(self, table: MeterTable) -> None:
        self.job = table.require_column_name("JOBID", "JOB_ID")
        self.node = table.require_column_name("NODENAME")
        self.seconds = table.find_column("ITER_TIME_SEC") or table.require_column_name("TIME_SEC")
        self.watts = [table.require_column_name(name) for name in ("DC_NODE_POWER_W", "PCK_POWER_W", "DRAM_POWER_W")]
        self.step, self.task = table.find_column("STEPID", "STEP_ID"), table.find_column("APPID")
        self.started, self.ended = self._find_time_columns(table)
        gpus = sorted({match[1] for name in table.header if (match := GPU_COLUMN.match(name))}, key=int)
        self.boards = {f"gpu{number}": table.require_column_name(f"GPU{number}_POWER_W") for number in gpus}
        parts = ("DC_NODE_POWER_W", "PCK_POWER_W", "DRAM_POWER_W", "TIME_SEC")
        self.manager = [column for part in parts if (column := table.find_column(f"NODEMGR_{part}"))]
        self.most = table.find_column("NODEMGR_MAX_DC_POWER_W")
        self.timestamp = None
        if table.find_column("ITER_TIME_SEC") or table.find_column("LOOPID"):
            if not table.find_column("TIMESTAMP"):
                raise InputError(
                    f"{table.name} is a file of loops without the column TIMESTAMP, so nobody knows when its powers "
                    "were: give the file of jobs instead"
                )
            self.timestamp = table.find_column("TIMESTAMP")
        self.energy = next((name for name in table.header if ENERGY_COLUMN.fullmatch(name)), None)

    @staticmethod
    def _find_time_columns(table: MeterTable) -> tuple[list[str], list[str]]:
        """Return the columns of starts and ends: those of EAR's library first, then those of the job."""
        ends: list[list[str]] = [[], []]
        for number, end in enumerate(("START", "END")):
            ends[number] = [name for kind in ("JOB_EARL", "JOB") if (name := table.find_column(f"{kind}_{end}_TIME"))]
        if any("START" in name.upper() or "END_" in name.upper() for name in table.header) and not all(ends):
            table.require_column_name("JOB_START_TIME" if not ends[0] else "JOB_END_TIME")
        return ends[0], ends[1]


def _first_known_time(table: MeterTable, row: MeterTableRow, columns: list[str]) -> float | None:
    """Return the first known time: EAR writes 0 where it has none."""
    return next((time for column in columns if (time := table.parse_number(row, column)) > 0), None)


def _stated_energy(table: MeterTable, row: MeterTableRow, column: str | None) -> tuple[float, str | None] | None:
    """Return the energy that a row states, and its unit if the column's name has one."""
    if column is None or not row.cells[column]:
        return None
    match = ENERGY_COLUMN.fullmatch(column)
    return table.parse_number(row, column), UNIT_NAMES.get((match[1] or "").lower()) if match else None


def _parse_row(table: MeterTable, columns: _Columns, row: MeterTableRow) -> EarRow:
    job, node = row.cells[columns.job], row.cells[columns.node]
    if not re.fullmatch(r"\d+", job) or not node:
        field = columns.node if job.isdigit() else columns.job
        raise InputError(f"{table.name}, line {row.line}: {field} is {row.cells[field]!r}, which names none")
    node_watts, package_watts, dram_watts = (table.parse_number(row, column) for column in columns.watts)
    manager = (
        [table.parse_number(row, column) for column in columns.manager] if len(columns.manager) == 4 else [0.0] * 4
    )
    started, ended = _first_known_time(table, row, columns.started), _first_known_time(table, row, columns.ended)
    if columns.timestamp:
        ended = table.parse_number(row, columns.timestamp)
    return EarRow(
        line=row.line,
        job=job,
        step=row.cells[columns.step] if columns.step else "",
        task=row.cells[columns.task] if columns.task else "",
        node=node,
        seconds=table.parse_number(row, columns.seconds),
        started=started,
        ended=ended,
        node_watts=node_watts,
        package_watts=package_watts,
        dram_watts=dram_watts,
        board_watts={part: table.parse_number(row, column) for part, column in columns.boards.items()},
        manager_watts=(manager[0], manager[1], manager[2]),
        manager_seconds=manager[3],
        most_watts=table.parse_number(row, columns.most) if columns.most else 0.0,
        stated=_stated_energy(table, row, columns.energy),
    )


def _set_interval_lengths(rows: list[EarRow], name: str, problems: list[str]) -> list[EarRow]:
    """Return the rows of a file of loops, each with the seconds since the row before it on the same node.

    A row has the mean power since then; for the first row only the time of one iteration is known.
    """
    timed: list[EarRow] = []
    last: dict[tuple[str, str, str, str], float] = {}
    for row in rows:
        key, ended = (row.job, row.step, row.task, row.node), row.ended or 0.0
        started = last.get(key, ended - row.seconds)
        if ended < started:
            problems.append(
                f"{name}, line {row.line}: the clock of {row.node} goes back from {started:.0f} to {ended:.0f}: "
                "not measured in between"
            )
        elif ended > started:
            timed.append(row._replace(started=started, seconds=ended - started))
        last[key] = ended
    return timed


def read_ear_rows(text: str, name: str) -> tuple[list[EarRow], list[str]]:
    """Parse a table of EAR; return its rows, and a sentence for each row that cannot be read.

    Raises:
        InputError: it is another table, or a column has another name.
    """
    table = MeterTable(text, name, smallest=6)
    columns = _Columns(table)
    rows, problems = [], []
    for row in table:
        try:
            rows.append(_parse_row(table, columns, row))
        except InputError as error:
            problems.append(f"{error}; the row is left out")
    problems += table.problems
    return (_set_interval_lengths(rows, name, problems) if columns.timestamp else rows), problems


class _CheckedRow:
    """A row with a power of each part, or the reason why it is impossible."""

    def __init__(self, row: EarRow, name: str) -> None:
        self.row, self.plugin = row, LIBRARY
        self._where = f"{name}, line {row.line}"
        node, package, dram, self.seconds = row.node_watts, row.package_watts, row.dram_watts, row.seconds
        if node == 0 and row.manager_watts[0] > 0 and row.manager_seconds > 0:
            (node, package, dram), self.seconds, self.plugin = row.manager_watts, row.manager_seconds, DAEMON
        self.powers: dict[tuple[Component, str], Power] = {("node", ""): self._check_node(node, package, dram)}
        self.powers["package", ""] = self._check("PCK_POWER_W", package, NODE_WATTS)
        self.powers["dram", ""] = (
            (None, NO_DRAM.format(node=row.node)) if dram == 0 else self._check("DRAM_POWER_W", dram, NODE_WATTS)
        )
        for part, watts in row.board_watts.items():
            if watts != 0:  # EAR has columns for eight boards on every node
                self.powers["board", part] = self._check(f"{part.upper()}_POWER_W", watts, BOARD_WATTS)

    @property
    def node_watts(self) -> float | None:
        """The power of the whole node, if it is possible."""
        return self.powers["node", ""][0]

    def _check(self, column: str, watts: float, most: float) -> Power:
        wrong = explain_wrong_watts(watts, most)
        return (None, f"{self._where}: {column} {wrong}: not measured") if wrong else (watts, None)

    def _check_node(self, watts: float, package: float, dram: float) -> Power:
        checked = self._check("DC_NODE_POWER_W", watts, NODE_WATTS)
        parts = package + dram
        if checked[0] is not None and watts < parts <= NODE_WATTS:
            wrong = f"{watts:.6g} W of the node are less than {parts:.6g} W of its processors and memory"
            return None, f"{self._where}: {wrong}: the node is not measured in these {format_number(self.seconds)} s"
        if checked[0] is not None and 0 < self.row.most_watts * (1 + STATED_TOLERANCE) < watts:
            wrong = (
                f"a mean of {format_number(watts)} W is more than the {format_number(self.row.most_watts)} W "
                "that EAR's daemon saw"
            )
            return None, f"{self._where}: {wrong} at most, as if powers of several tasks were added: not measured"
        return checked


def _rows_with_start(
    rows: Iterable[EarRow], name: str, started: Mapping[str, float], problems: list[str]
) -> Iterator[EarRow]:
    """Yield the rows whose start is known; repeated rows once."""
    seen: dict[tuple[str, ...], EarRow] = {}
    for row in rows:
        moment = row.started if row.started is not None else started.get(row.job)
        where = f"{name}, line {row.line}"
        if moment is None:
            problems.append(f"{where}: the start of job {row.job} is unknown: its energy is not counted")
            continue
        key = (row.job, row.step, row.task, row.node, str(moment))
        if key in seen and seen[key]._replace(line=0, started=None) == row._replace(line=0, started=None):
            problems.append(f"{where}: the same row as in line {seen[key].line} (job {row.job}): it counts once")
            continue
        seen[key] = row
        clock = row.ended - moment if row.ended is not None else row.seconds
        if clock < 0:
            problems.append(
                f"{where}: job {row.job} ends {format_number(-clock)} s before it starts: its energy is not counted"
            )
        elif row.seconds <= 0:
            problems.append(f"{where}: TIME_SEC is {row.seconds:g} s: nothing was measured of job {row.job}")
        else:
            if abs(clock - row.seconds) > 2 * WHOLE_SECOND + STATED_TOLERANCE * row.seconds:
                problems.append(
                    f"{where}: job {row.job} lasted {format_number(clock)} s by its clock and "
                    f"{format_number(row.seconds)} s by TIME_SEC, which counts"
                )
            yield row._replace(started=moment)


def _resolve_overlaps(rows: list[_CheckedRow]) -> list[tuple[float, float, _CheckedRow]]:
    """Return the time in which each row counts on one node, so that no time counts twice for several steps and tasks.

    Of simultaneous rows the longest counts. A row that starts within a second before the end of the one before was
    rounded to whole seconds: it starts at that end.
    """
    spans: list[tuple[float, float, _CheckedRow]] = []
    last = 0.0
    for one in sorted(rows, key=lambda one: (one.row.started or 0.0, one.seconds)):
        start = first = one.row.started or 0.0
        if spans and spans[-1][2].row.started != first and 0 < last - start <= WHOLE_SECOND:
            start = last
        last = max(last, start + one.seconds)
        spans.append((start, start + one.seconds, one))
    counted: list[tuple[float, float, _CheckedRow]] = []
    for start, end, one in sorted(spans, key=lambda span: (span[2].node_watts is None, -span[2].seconds)):
        cursor = start
        for other_start, other_end, _ in sorted(counted, key=lambda span: span[0]):
            if other_start >= end:
                break
            if cursor < other_start:
                counted.append((cursor, other_start, one))
            cursor = max(cursor, other_end)
        if cursor < end:
            counted.append((cursor, end, one))
    return sorted(counted, key=lambda span: span[0])


def _find_contradictions(rows: list[_CheckedRow], name: str) -> Iterator[str]:
    """Yield a sentence for two tasks that read the same node at the same time and differ by more than 5 %."""
    by_start: dict[float, _CheckedRow] = {}
    for one in rows:
        other = by_start.setdefault(one.row.started or 0.0, one)
        ours, theirs = one.node_watts, other.node_watts
        longest = max(one.seconds, other.seconds)
        if not ours or not theirs or abs(one.seconds - other.seconds) > STATED_TOLERANCE * longest:
            continue
        if abs(ours - theirs) > READING_TOLERANCE * max(ours, theirs):
            yield (
                f"{name}, lines {other.row.line} and {one.row.line}: two tasks of job {one.row.job} read "
                f"{format_number(theirs)} W and {format_number(ours)} W of {one.row.node} "
                "at the same time: the longer one counts"
            )


def _external_reading(start: float, end: float, one: _CheckedRow) -> ExternalReading:
    readings = tuple(
        Reading(
            component=component,
            part=part,
            joules=None if watts is None else watts * (end - start),
            label="measured",
            method="power",
            meter=METER,
            plugin=one.plugin,
            problem=problem,
        )
        for (component, part), (watts, problem) in one.powers.items()
    )
    row = one.row
    return ExternalReading(node=row.node, started=start, ended=end, job=row.job, whole_node=None, readings=readings)


def _check_stated_energy(rows: list[_CheckedRow], name: str) -> Iterator[str]:
    """Yield a sentence for each wrong stated energy; it may be a node's, or that of all nodes of a step."""
    steps: dict[tuple[str, str, str], list[_CheckedRow]] = {}
    for one in rows:
        steps.setdefault((one.row.job, one.row.step, one.row.task), []).append(one)
    for same in steps.values():
        known = [(watts, one) for one in same if (watts := one.node_watts) is not None]
        energies = [watts * one.seconds for watts, one in known]
        total = sum(energies)
        for watts, one in known:
            if one.row.stated is None:
                continue
            stated, unit = one.row.stated
            source = f"{watts:.6g} W × {one.seconds:.6g} s"
            wrong = explain_wrong_energy(stated, unit, watts * one.seconds, source)
            if wrong and len(known) == len(same) > 1:
                is_equal = max(energies) - min(energies) <= STATED_TOLERANCE * max(energies)
                source = f"{source} × {len(same)} nodes" if is_equal else "all nodes"
                wrong = explain_wrong_energy(stated, unit, total, source)
            if wrong:
                yield f"{name}, line {one.row.line}, job {one.row.job}: {wrong}; power × time counts"


def read_ear(
    source: str | Path, *, name: str = "eacct", started: Mapping[str, float] | None = None
) -> ExternalReadings:
    """Read a table of EAR; return a reading for each time in which EAR measured a node for a job.

    Joules of memory that EAR does not measure are None. If a node's power is impossible, its other readings are kept.

    Args:
        source: the text, or its file.
        name: of the table, for messages.
        started: the start of each job, in seconds of Unix time, for tables without times.

    Raises:
        InputError: it is another table, is no text, or lacks a column; the sentence names file and column.
    """
    if isinstance(source, Path):
        name, source = str(source), read_text(source)
    rows, problems = read_ear_rows(source, name)
    checked = [_CheckedRow(row, name) for row in _rows_with_start(rows, name, started or {}, problems)]
    problems += [
        problem for one in checked for _, problem in one.powers.values() if problem and problem[: len(name)] == name
    ]
    problems += _check_stated_energy(checked, name)
    nodes: dict[tuple[str, str], list[_CheckedRow]] = {}
    for one in checked:
        nodes.setdefault((one.row.job, one.row.node), []).append(one)
    external = []
    for _, same in sorted(nodes.items()):
        problems += _find_contradictions(same, name)
        external += [_external_reading(*span) for span in _resolve_overlaps(same)]
    if rows and not checked and not any(row.started for row in rows) and not started:
        raise InputError(
            f"{name} has no column JOB_START_TIME or JOB_EARL_START_TIME, so that the times of its jobs are unknown: "
            "give EAR's own file"
        )
    return ExternalReadings(external, problems)
