"""The records of meters: joules of a part of a node in an interval, and what a job used of the node meanwhile.

A meter runs once per node of a job and writes a JSON line per interval to `provenance/readings`. External meters
(Slurm, EAR, a power distribution unit) are read afterwards into the same records. Only
`pipeline/energy/attribution/job_energy_attribution.py` sums joules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.core.archived_run_files import StoredFile

MOST_PROBLEMS = 3  # reported for one file

Component = Literal["node", "package", "dram", "board"]
Label = Literal["measured", "estimated", "stated"]

MOST_WATTS: dict[Component, float] = {"node": 20_000.0, "package": 1_000.0, "dram": 1_000.0, "board": 2_000.0}
"""More than any one part draws today; used where the hardware states no limit."""


class JsonLine(BaseModel):
    """The base of all records of meters."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Reading(JsonLine):
    """The energy of one part of a node by one meter, whatever ran on it.

    Attributes:
        component: `node` is the whole node with its boards.
        part: the name among parts of one kind, such as `package-0` or a board's UUID; empty for the node.
        joules: None where the meter could not measure; `problem` then gives the reason.
        label: `stated` is a figure that nothing here could verify.
        method: the difference of an energy `counter`, `power` × time, or a `table` of another system.
        plugin: the program that read the meter for us, such as Slurm's acct_gather_energy plugin.
        architecture: that of a board, such as `ampere`, by its driver; the meter's known error depends on it.
        problem: one sentence; a reading with joules may have one too.
    """

    component: Component
    part: str = ""
    joules: float | None
    label: Label
    method: Literal["counter", "power", "table"]
    meter: str
    plugin: str | None = None
    architecture: str = ""
    problem: str | None = None


class MeterInterval(JsonLine):
    """The record of a job's meter on a node between two times, in seconds of Unix time.

    Attributes:
        job_cpu_seconds: used by the job's processes on this node.
        node_cpu_seconds: used by all processes of the node.
        processors: the logical processors of the node.
        job_processors: those that the job may use.
        job_memory_bytes: held by the job's processes on average.
        job_boards: the parts, as in `Reading`, that the job may use.
        boot_id: Linux's name of the machine since it was switched on.
        booted: when it was switched on, by the calendar that the meter uses.
        is_shared_start: whether this is a share of the startup of a process that forked several jobs; such a job may
            begin later than that startup ended.
    """

    node: str
    started: float
    ended: float
    job_cpu_seconds: float
    node_cpu_seconds: float
    processors: int
    job_processors: int
    job_memory_bytes: int
    job_boards: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()
    boot_id: str = ""
    booted: float | None = None
    is_shared_start: bool = False

    @property
    def seconds(self) -> float:
        return self.ended - self.started


UNCHANGED_FIELDS = {"node", "boot_id", "booted", "processors", "job_processors", "job_boards"}
"""Fields that a line of a file leaves out, all of them or none, where they are those of the line before it."""


class ExternalReading(JsonLine):
    """What an external meter says of a node, during a Slurm job or without regard to jobs; a row of its table.

    Attributes:
        job: Slurm's job number; None for a meter that knows no jobs, such as a power distribution unit.
        whole_node: whether the job had all processors of the node; None where that is unknown.
    """

    node: str
    started: float
    ended: float
    job: str | None
    whole_node: bool | None
    readings: tuple[Reading, ...]


def read_intervals(path: StoredFile, problems: list[str] | None = None) -> Iterator[MeterInterval]:
    """Yield the intervals of a file of `provenance/readings`, without a last line that a kill has truncated.

    Args:
        path: the file.
        problems: gets a sentence with file and line for each line that is no interval.

    Raises:
        ValueError: a line is no interval, and `problems` is None.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    bad, unchanged = 0, b""
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line.endswith(b"\n"):
            break
        try:
            is_complete = not unchanged or b'"node":' in line
            interval = MeterInterval.model_validate_json(line if is_complete else unchanged + line[1:])
            unchanged = interval.model_dump_json(include=UNCHANGED_FIELDS).encode()[:-1] + b","
            yield interval
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"]))
            sentence = f"{path}, line {number}: {field}: {problem['msg']}"
            if problems is None:
                raise ValueError(sentence) from None
            bad += 1
            if bad <= MOST_PROBLEMS:
                problems.append(f"{sentence}: the energy accounting ignores this line.")
    if problems is not None and bad > MOST_PROBLEMS:
        problems.append(f"{path}: {bad - MOST_PROBLEMS:,} more lines are no intervals: energy accounting ignores them.")


CURRENT_SECONDS = 150.0  # a meter of a long job writes once a minute; an older interval belongs to the past
COMPONENT_LABELS: dict[Component, str] = {
    "node": "whole",
    "package": "processors",
    "dram": "memory",
    "board": "devices",
}


def format_current_power(files: Iterable[StoredFile], now: float) -> str:
    """Return the measured power of the nodes of these files, as `2.31 kW (processors, devices; 2 nodes)`, or nothing.

    Each node counts once: by the meter of the whole node if there is one, else by its parts.

    Args:
        files: of `provenance/readings`.
        now: in Unix seconds.
    """
    last: dict[str, MeterInterval] = {}
    for file in files:
        with suppress(OSError):
            for interval in deque(read_intervals(file, []), maxlen=1):
                if interval.node not in last or interval.ended > last[interval.node].ended:
                    last[interval.node] = interval
    watts, parts, nodes = 0.0, set[Component](), 0
    for interval in last.values():
        counted = _select_readings(interval.readings)
        if now - interval.ended <= CURRENT_SECONDS and interval.seconds > 0 and counted:
            watts += sum(reading.joules or 0.0 for reading in counted) / interval.seconds
            parts |= {reading.component for reading in counted}
            nodes += 1
    if not nodes:
        return ""
    measured = ", ".join(word for component, word in COMPONENT_LABELS.items() if component in parts)
    return f"{watts / 1000:.2f} kW ({measured}; {nodes} {'node' if nodes == 1 else 'nodes'})"


def _select_readings(readings: Iterable[Reading]) -> list[Reading]:
    measured = [one for one in readings if one.label == "measured" and one.joules is not None]
    once = {(one.component, one.part): one for one in reversed(measured)}  # the first of two meters of one part
    whole = [one for (component, _), one in once.items() if component == "node"]
    return whole[:1] or [*once.values()]
