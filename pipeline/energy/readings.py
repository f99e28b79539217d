"""The readings of meters: joules of a part of a node in an interval, and what a job used of the node in it.

A meter runs once per node of a job and writes a line of JSON for each interval to `provenance/readings`. Meters that
are read afterwards (Slurm's, EAR's, a power distribution unit) say their readings in the same words. Nothing here sums
joules: `pipeline/energy/attribution/run_attribution.py` alone does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

MOST_PROBLEMS = 3  # about the lines of one file

Component = Literal["node", "package", "dram", "board"]
Label = Literal["measured", "estimated", "stated"]

MOST_WATTS: dict[Component, float] = {"node": 20_000.0, "package": 1_000.0, "dram": 1_000.0, "board": 2_000.0}
"""More than any hardware of today draws, a part alone, where it does not say itself what it can."""


class JsonLine(BaseModel):
    """What is written to and read from JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Reading(JsonLine):
    """The energy of one part of a node, all that ran on it included, by one meter.

    `component` `node` is the whole node, its boards included; `part` tells parts of a kind apart, such as `package-0`
    or the UUID of a board, and is empty for the node. `method` is how the joules came about: the difference of an
    energy `counter`, `power` × time, or a `table` of somebody else's. `joules` is None where the meter could not tell,
    and `problem` then says why in one sentence; a reading with joules may have a problem as well. `plugin` names what
    read the meter for us, such as Slurm's acct_gather_energy plugin. `stated` is a figure that nobody here could check.
    """

    component: Component
    part: str = ""
    joules: float | None
    label: Label
    method: Literal["counter", "power", "table"]
    meter: str
    plugin: str | None = None
    problem: str | None = None


class MeterInterval(JsonLine):
    """What the meter of a job's node saw between two moments, in seconds of Unix time.

    `job_cpu_seconds` is what the processes of the job on this node used, `node_cpu_seconds` what all processes of the
    node did; `processors` counts the logical processors of the node, `job_processors` those that the job may use.
    `job_boards` are the parts, as in `Reading`, that the job may use. Memory is what its processes held on average.
    `boot_id` is what Linux calls the machine since it was switched on, and `booted` when that was by the calendar that
    the meter goes by. `is_shared_start` is true of a job's part of what the start of a process took from which several
    jobs came: such a job may begin later than that start has ended.
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
        """How long it lasted."""
        return self.ended - self.started


class ExternalReading(JsonLine):
    """What is known of a node during a job of Slurm, or of a node alone, afterwards; of a table of readings a row.

    `job` is Slurm's number of the job, None for a meter that knows no jobs (a power distribution unit).
    `whole_node` says whether the job had all processors of the node: None where nobody knows.
    """

    node: str
    started: float
    ended: float
    job: str | None
    whole_node: bool | None
    readings: tuple[Reading, ...]


def read_intervals(path: Path, problems: list[str] | None = None) -> Iterator[MeterInterval]:
    """Yield the intervals of a file of `provenance/readings`; a last line that was cut off by a kill is left out.

    So is a line that is no interval: a sentence in `problems`, where they are asked for, names file and line.

    Raises:
        ValueError: the same, where they are not.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    bad = 0
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line.endswith(b"\n"):
            break
        try:
            yield MeterInterval.model_validate_json(line)
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"]))
            sentence = f"{path}, line {number}: {field}: {problem['msg']}"
            if problems is None:
                raise ValueError(sentence) from None
            bad += 1
            if bad <= MOST_PROBLEMS:
                problems.append(f"{sentence}: what the meter wrote there is not in the account.")
    if problems is not None and bad > MOST_PROBLEMS:
        problems.append(f"{path}: {bad - MOST_PROBLEMS:,} more lines are no intervals and are not in the account.")


CURRENT_SECONDS = 150.0  # a meter writes once a minute, of a long job; one that is older tells of what is over
COMPONENT_LABELS: dict[Component, str] = {
    "node": "whole",
    "package": "processors",
    "dram": "memory",
    "board": "devices",
}


def format_current_power(files: Iterable[Path], now: float) -> str:
    """Return the measured power of the nodes of these files, `2.31 kW (processors, devices; 2 nodes)`; or nothing.

    Each node counts once, with its whole where a meter reads that, else with the parts that are read.

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
    told = ", ".join(word for component, word in COMPONENT_LABELS.items() if component in parts)
    return f"{watts / 1000:.2f} kW ({told}; {nodes} {'node' if nodes == 1 else 'nodes'})"


def _select_readings(readings: Iterable[Reading]) -> list[Reading]:
    measured = [one for one in readings if one.label == "measured" and one.joules is not None]
    once = {(one.component, one.part): one for one in reversed(measured)}  # of two meters of one part the first
    whole = [one for (component, _), one in once.items() if component == "node"]
    return whole[:1] or [*once.values()]
