"""The rows of EAR's tables, as they stand there: job files, loop files, and tables that were made of them."""

from __future__ import annotations

import re
from typing import NamedTuple

from pipeline.core.errors import InputError
from pipeline.energy.external_meters.meter_tables import MeterTable, MeterTableRow

GPU = re.compile(r"gpu(\d+)_", re.IGNORECASE)
ENERGY = re.compile(r"(?:dc_)?(?:node_)?energy(?:[_ (]+(m?j|kj|k?wh)\)?)?", re.IGNORECASE)
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
        gpus = sorted({match[1] for name in table.header if (match := GPU.match(name))}, key=int)
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
        self.energy = next((name for name in table.header if ENERGY.fullmatch(name)), None)

    @staticmethod
    def _times(table: MeterTable) -> tuple[list[str], list[str]]:
        """Return the columns of starts and ends, the best first: those of EAR's library, else those of the job."""
        ends: list[list[str]] = [[], []]
        for number, end in enumerate(("START", "END")):
            ends[number] = [name for kind in ("JOB_EARL", "JOB") if (name := table.find(f"{kind}_{end}_TIME"))]
        if any("START" in name.upper() or "END_" in name.upper() for name in table.header) and not all(ends):
            table.column("JOB_START_TIME" if not ends[0] else "JOB_END_TIME")
        return ends[0], ends[1]


def _first(table: MeterTable, row: MeterTableRow, columns: list[str]) -> float | None:
    """Return the first of some times that is there: EAR writes 0 where it has none."""
    return next((time for column in columns if (time := table.number(row, column)) > 0), None)


def _stated(table: MeterTable, row: MeterTableRow, column: str | None) -> tuple[float, str | None] | None:
    """Return the energy that a row states, with its unit where the column's name has one."""
    if column is None or not row.cells[column]:
        return None
    match = ENERGY.fullmatch(column)
    return table.number(row, column), UNIT_NAMES.get((match[1] or "").lower()) if match else None


def _row(table: MeterTable, columns: _Columns, row: MeterTableRow) -> EarRow:
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
    started, ended = _first(table, row, columns.started), _first(table, row, columns.ended)
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
        stated=_stated(table, row, columns.energy),
    )


def _since_the_one_before(rows: list[EarRow], name: str, problems: list[str]) -> list[EarRow]:
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
            rows.append(_row(table, columns, row))
        except InputError as error:
            problems.append(f"{error}; the row is left out")
    problems += table.problems
    return (_since_the_one_before(rows, name, problems) if columns.timestamp else rows), problems
