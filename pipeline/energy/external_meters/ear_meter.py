"""Read the tables of EAR and compute the energy of nodes from its mean power."""

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
    explain_stated_energy,
    explain_wrong_watts,
    format_number,
    read_text,
)
from pipeline.energy.readings import Component, ExternalReading, Reading

GPU_COLUMN = re.compile(r"gpu(\d+)_", re.IGNORECASE)
ENERGY_COLUMN = re.compile(r"(?:dc_)?(?:node_)?energy(?:[_ (]+(m?j|kj|k?wh)\)?)?", re.IGNORECASE)
UNIT_NAMES = {"j": "J", "kj": "kJ", "wh": "Wh", "kwh": "kWh"}  # mj is left out: milli or mega, in capitals


class EarRow(NamedTuple):
    """A row: watts of one node, on average over some seconds; `started` is None where the table has no times.

    `ended` is what the table says, in whole seconds; the joules are those of `seconds`. `manager_watts` and
    `manager_seconds` are those of EAR's daemon, which measures also where its library is not loaded; else 0.
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
    manager_watts: tuple[float, float, float]  # of the node, its packages, its memory
    manager_seconds: float
    most_watts: float
    stated: tuple[float, str | None] | None


class _Columns:
    """Where the columns of one table are."""

    def __init__(self, table: MeterTable) -> None:
        self.job = table.column("JOBID", "JOB_ID")
        self.node = table.column("NODENAME")
        self.seconds = table.find("ITER_TIME_SEC") or table.column("TIME_SEC")
        self.watts = [table.column(name) for name in ("DC_NODE_POWER_W", "PCK_POWER_W", "DRAM_POWER_W")]
        self.step, self.task = table.find("STEPID", "STEP_ID"), table.find("APPID")
        self.started, self.ended = self._times(table)
        gpus = sorted({match[1] for name in table.header if (match := GPU_COLUMN.match(name))}, key=int)
        self.boards = {f"gpu{number}": table.column(f"GPU{number}_POWER_W") for number in gpus}
        parts = ("DC_NODE_POWER_W", "PCK_POWER_W", "DRAM_POWER_W", "TIME_SEC")
        self.manager = [column for part in parts if (column := table.find(f"NODEMGR_{part}"))]
        self.most = table.find("NODEMGR_MAX_DC_POWER_W")
        self.timestamp = None
        if table.find("ITER_TIME_SEC") or table.find("LOOPID"):
            if not table.find("TIMESTAMP"):
                raise InputError(
                    f"{table.name} is a file of loops without the column TIMESTAMP, so nobody knows when its powers "
                    "were: give the file of jobs instead"
                )
            self.timestamp = table.find("TIMESTAMP")
        self.energy = next((name for name in table.header if ENERGY_COLUMN.fullmatch(name)), None)

    @staticmethod
    def _times(table: MeterTable) -> tuple[list[str], list[str]]:
        """Return the columns of starts and ends, the best first: those of EAR's library, else those of the job."""
        ends: list[list[str]] = [[], []]
        for number, end in enumerate(("START", "END")):
            ends[number] = [name for kind in ("JOB_EARL", "JOB") if (name := table.find(f"{kind}_{end}_TIME"))]
        if any("START" in name.upper() or "END_" in name.upper() for name in table.header) and not all(ends):
            table.column("JOB_START_TIME" if not ends[0] else "JOB_END_TIME")
        return ends[0], ends[1]


def _first_time(table: MeterTable, row: MeterTableRow, columns: list[str]) -> float | None:
    """Return the first of some times that is there: EAR writes 0 where it has none."""
    return next((time for column in columns if (time := table.number(row, column)) > 0), None)


def _stated_energy(table: MeterTable, row: MeterTableRow, column: str | None) -> tuple[float, str | None] | None:
    """Return the energy that a row states, with its unit where the column's name has one."""
    if column is None or not row.cells[column]:
        return None
    match = ENERGY_COLUMN.fullmatch(column)
    return table.number(row, column), UNIT_NAMES.get((match[1] or "").lower()) if match else None


def _parse_row(table: MeterTable, columns: _Columns, row: MeterTableRow) -> EarRow:
    """Return a row.

    Raises:
        InputError: a cell is not what its column says.
    """
    job, node = row.cells[columns.job], row.cells[columns.node]
    if not re.fullmatch(r"\d+", job) or not node:
        field = columns.node if job.isdigit() else columns.job
        raise InputError(f"{table.name}, line {row.line}: {field} is {row.cells[field]!r}, which names none")
    node_watts, package_watts, dram_watts = (table.number(row, column) for column in columns.watts)
    manager = [table.number(row, column) for column in columns.manager] if len(columns.manager) == 4 else [0.0] * 4
    started, ended = _first_time(table, row, columns.started), _first_time(table, row, columns.ended)
    if columns.timestamp:
        ended = table.number(row, columns.timestamp)
    return EarRow(
        line=row.line,
        job=job,
        step=row.cells[columns.step] if columns.step else "",
        task=row.cells[columns.task] if columns.task else "",
        node=node,
        seconds=table.number(row, columns.seconds),
        started=started,
        ended=ended,
        node_watts=node_watts,
        package_watts=package_watts,
        dram_watts=dram_watts,
        board_watts={part: table.number(row, column) for part, column in columns.boards.items()},
        manager_watts=(manager[0], manager[1], manager[2]),
        manager_seconds=manager[3],
        most_watts=table.number(row, columns.most) if columns.most else 0.0,
        stated=_stated_energy(table, row, columns.energy),
    )


def _add_loop_seconds(rows: list[EarRow], name: str, problems: list[str]) -> list[EarRow]:
    """Return the rows of a file of loops, each with the seconds since the one before it on the same node.

    A row says the mean power since then, and how long one iteration took: that is all that is known of the first one.
    """
    found: list[EarRow] = []
    last: dict[tuple[str, str, str, str], float] = {}
    for row in rows:
        key, ended = (row.job, row.step, row.task, row.node), row.ended or 0.0
        started = last.get(key, ended - row.seconds)
        if ended < started:
            problems.append(
                f"{name}, line {row.line}: the clock of {row.node} goes back from {started:.0f} to {ended:.0f}: what "
                "was in between is not measured"
            )
        elif ended > started:
            found.append(row._replace(started=started, seconds=ended - started))
        last[key] = ended
    return found


def read_ear_rows(text: str, name: str) -> tuple[list[EarRow], list[str]]:
    """Return the rows of a table of EAR's and a sentence for each row that could not be read.

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
    return (_add_loop_seconds(rows, name, problems) if columns.timestamp else rows), problems


# What EAR has measured of jobs: mean power × time of each node, from `eacct -c` or the files of `--ear-user-db`.
#
# EAR writes a row for each job, step, task and node (job files), or for each signature of a loop (loop files), with
# semicolons; tables that were made of them have commas and small letters. Columns are found by their names. Power is
# that of the whole node: where a node is shared, the neighbours' is in it. EAR's manuals do not agree on the unit of
# the same energy, so joules are power × time here, and an energy that a row states is only compared with them.


METER = "ear"
LIBRARY, DAEMON = "EAR library", "EAR daemon"
WHOLE_SECOND = 1.0  # EAR writes starts and ends as whole seconds
NO_DRAM = "EAR writes 0 W for the memory of {node}: it is not measured there"

PartPowers = dict[
    tuple[Component, str], tuple[float | None, str | None]
]  # of each part the watts, or why there are none


class _CheckedRow:
    """The powers of one row, each looked at: what cannot be has no watts and a sentence."""

    def __init__(self, row: EarRow, name: str) -> None:
        self.row, self.plugin = row, LIBRARY
        self._where = f"{name}, line {row.line}"
        node, package, dram, self.seconds = row.node_watts, row.package_watts, row.dram_watts, row.seconds
        if node == 0 and row.manager_watts[0] > 0 and row.manager_seconds > 0:
            (node, package, dram), self.seconds, self.plugin = row.manager_watts, row.manager_seconds, DAEMON
        self.told: PartPowers = {("node", ""): self._node(node, package, dram)}
        self.told["package", ""] = self._one("PCK_POWER_W", package, NODE_WATTS)
        self.told["dram", ""] = (
            (None, NO_DRAM.format(node=row.node)) if dram == 0 else self._one("DRAM_POWER_W", dram, NODE_WATTS)
        )
        for part, watts in row.board_watts.items():
            if watts != 0:  # EAR has columns for eight boards, whatever a node has
                self.told["board", part] = self._one(f"{part.upper()}_POWER_W", watts, BOARD_WATTS)

    def _one(self, column: str, watts: float, most: float) -> tuple[float | None, str | None]:
        wrong = explain_wrong_watts(watts, most)
        return (None, f"{self._where}: {column} {wrong}: not measured") if wrong else (watts, None)

    def _node(self, watts: float, package: float, dram: float) -> tuple[float | None, str | None]:
        told = self._one("DC_NODE_POWER_W", watts, NODE_WATTS)
        parts = package + dram
        if told[0] is not None and watts < parts <= NODE_WATTS:
            wrong = f"{watts:.6g} W of the node are less than {parts:.6g} W of its processors and memory"
            return None, f"{self._where}: {wrong}: the node is not measured in these {format_number(self.seconds)} s"
        if told[0] is not None and 0 < self.row.most_watts * (1 + STATED_TOLERANCE) < watts:
            wrong = (
                f"a mean of {format_number(watts)} W is more than the {format_number(self.row.most_watts)} W "
                "that EAR's daemon saw"
            )
            return None, f"{self._where}: {wrong} at most, as if powers of several tasks were added: not measured"
        return told


def _rows_with_start(
    rows: Iterable[EarRow], name: str, started: Mapping[str, float], problems: list[str]
) -> Iterator[EarRow]:
    """Yield the rows with a start, those that stand there twice once."""
    seen: dict[tuple[str, ...], EarRow] = {}
    for row in rows:
        moment = row.started if row.started is not None else started.get(row.job)
        where = f"{name}, line {row.line}"
        if moment is None:
            problems.append(f"{where}: nobody knows when job {row.job} ran: its energy is not counted")
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
    """Return which row counts when on one node, so that each moment counts once however many steps and tasks there are.

    Of rows at the same time the longest counts. Where a row starts within a second of the end of the one before, the
    clock's whole seconds are why, and it starts at that end.
    """
    free: list[tuple[float, float, _CheckedRow]] = []
    last = 0.0
    for powers in sorted(rows, key=lambda powers: (powers.row.started or 0.0, powers.seconds)):
        start = first = powers.row.started or 0.0
        if free and free[-1][2].row.started != first and 0 < last - start <= WHOLE_SECOND:
            start = last
        last = max(last, start + powers.seconds)
        free.append((start, start + powers.seconds, powers))
    found: list[tuple[float, float, _CheckedRow]] = []
    for start, end, powers in sorted(free, key=lambda one: (one[2].told["node", ""][0] is None, -one[2].seconds)):
        cursor = start
        for other_start, other_end, _ in sorted(found, key=lambda one: one[0]):
            if other_start >= end:
                break
            if cursor < other_start:
                found.append((cursor, other_start, powers))
            cursor = max(cursor, other_end)
        if cursor < end:
            found.append((cursor, end, powers))
    return sorted(found, key=lambda one: one[0])


def _find_contradictions(rows: list[_CheckedRow], name: str) -> Iterator[str]:
    """Yield a sentence for two tasks that read the same node at the same time and differ by more than 5 %."""
    of: dict[float, _CheckedRow] = {}
    for powers in rows:
        other = of.setdefault(powers.row.started or 0.0, powers)
        ours, theirs = powers.told["node", ""][0], other.told["node", ""][0]
        longest = max(powers.seconds, other.seconds)
        if not ours or not theirs or abs(powers.seconds - other.seconds) > STATED_TOLERANCE * longest:
            continue
        if abs(ours - theirs) > READING_TOLERANCE * max(ours, theirs):
            yield (
                f"{name}, lines {other.row.line} and {powers.row.line}: two tasks of job {powers.row.job} read "
                f"{format_number(theirs)} W and {format_number(ours)} W of {powers.row.node} "
                "at the same time: the longer one counts"
            )


def _external_reading(start: float, end: float, powers: _CheckedRow) -> ExternalReading:
    readings = [
        Reading(
            component=component,
            part=part,
            joules=None if watts is None else watts * (end - start),
            label="measured",
            method="power",
            meter=METER,
            plugin=powers.plugin,
            problem=problem,
        )
        for (component, part), (watts, problem) in powers.told.items()
    ]
    row = powers.row
    return ExternalReading(
        node=row.node, started=start, ended=end, job=row.job, whole_node=None, readings=tuple(readings)
    )


def _check_stated_energy(rows: list[_CheckedRow], name: str) -> Iterator[str]:
    """Yield what is wrong with the energies that rows state; one may be of a node, or of all nodes of its step."""
    steps: dict[tuple[str, str, str], list[_CheckedRow]] = {}
    for powers in rows:
        steps.setdefault((powers.row.job, powers.row.step, powers.row.task), []).append(powers)
    for same in steps.values():
        known = [(watts, powers) for powers in same if (watts := powers.told["node", ""][0]) is not None]
        total = sum(watts * powers.seconds for watts, powers in known)
        for watts, powers in known:
            if powers.row.stated is None:
                continue
            said, unit = powers.row.stated
            of = f"{watts:.6g} W × {powers.seconds:.6g} s"
            wrong = explain_stated_energy(said, unit, watts * powers.seconds, of)
            if wrong and len(known) == len(same) > 1:
                wrong = explain_stated_energy(
                    said, unit, total, f"{of} × {len(same)} nodes" if _have_equal_energy(known) else "all nodes"
                )
            if wrong:
                yield f"{name}, line {powers.row.line}, job {powers.row.job}: {wrong}; power × time counts"


def _have_equal_energy(known: list[tuple[float, _CheckedRow]]) -> bool:
    energies = [watts * powers.seconds for watts, powers in known]
    return max(energies) - min(energies) <= STATED_TOLERANCE * max(energies)


def read_ear(
    source: str | Path, *, name: str = "eacct", started: Mapping[str, float] | None = None
) -> ExternalReadings:
    """Return a reading for each stretch of time in which EAR read a node for a job; `source` is the text or its file.

    `started` says when jobs began, in seconds of Unix time, for tables that do not. Energies of memory that EAR does
    not read are None; where the node's power cannot be, the other readings are kept.

    Raises:
        InputError: it is another table, is no text, or lacks a column; the sentence names file and column.
    """
    if isinstance(source, Path):
        name, source = str(source), read_text(source)
    rows, problems = read_ear_rows(source, name)
    placed = [_CheckedRow(row, name) for row in _rows_with_start(rows, name, started or {}, problems)]
    problems += [
        problem for powers in placed for _, problem in powers.told.values() if problem and problem[: len(name)] == name
    ]
    problems += _check_stated_energy(placed, name)
    nodes: dict[tuple[str, str], list[_CheckedRow]] = {}
    for powers in placed:
        nodes.setdefault((powers.row.job, powers.row.node), []).append(powers)
    external = []
    for _, same in sorted(nodes.items()):
        problems += _find_contradictions(same, name)
        external += [_external_reading(start, end, powers) for start, end, powers in _resolve_overlaps(same)]
    if rows and not placed and not any(row.started for row in rows) and not started:
        raise InputError(
            f"{name} has no column JOB_START_TIME or JOB_EARL_START_TIME, so nobody knows when its jobs ran: give "
            "EAR's own file"
        )
    return ExternalReadings(external, problems)
