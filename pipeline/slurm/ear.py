"""Ask `eacct` of EAR what jobs have cost; `pipeline/energy/external_meters/ear_meter.py` reads its table."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator

from pydantic import BaseModel

from pipeline.core.errors import InputError
from pipeline.energy.external_meters.ear_meter import read_ear
from pipeline.energy.external_meters.meter_tables import ExternalReadings
from pipeline.energy.readings import ExternalReading, Reading

SECONDS = 300
NOTHING = re.compile(r"\bno (jobs?|applications?|loops?)\b.*\bfound\b", re.IGNORECASE)


class NodeEnergy(BaseModel):
    """The energy of one node while a job ran on it, all that runs on the node included."""

    node: str
    seconds: float
    watts: float
    gpu_watts: float

    @property
    def joules(self) -> float:
        """Power × time."""
        return self.watts * self.seconds


def is_here() -> bool:
    """Return whether there is an EAR to ask."""
    return shutil.which("eacct") is not None


def _of(book: ExternalReading, component: str) -> Iterator[Reading]:
    return (reading for reading in book.readings if reading.component == component and reading.joules is not None)


def nodes(books: Iterable[ExternalReading]) -> list[NodeEnergy]:
    """Return the energy of each node of a job's books; a node without a reading was not measured, and is left out."""
    measured: dict[str, list[ExternalReading]] = {}
    for book in books:
        if any(_of(book, "node")):
            measured.setdefault(book.node, []).append(book)
    found = []
    for node, of_node in sorted(measured.items()):
        seconds = sum(book.ended - book.started for book in of_node)
        joules, boards = (
            sum(float(reading.joules or 0) for book in of_node for reading in _of(book, component))
            for component in ("node", "board")
        )
        found.append(NodeEnergy(node=node, seconds=seconds, watts=joules / seconds, gpu_watts=boards / seconds))
    return found


def ask(jobs: list[str]) -> ExternalReadings:
    """Return the books of some jobs, by EAR's `eacct`; it has none of a job of which it does not know yet.

    Raises:
        InputError: there is no `eacct`, it does not answer, or answers with something else than its table.
    """
    words = ["eacct", "-j", ",".join(jobs), "-l", "-n", "all", "-c", "no_file"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, errors="replace")
    except FileNotFoundError:
        raise InputError("there is no eacct here: load EAR's module, or ask on a node that has it") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"eacct has not answered for {SECONDS} s: ask for EAR's energies later") from None
    said = " ".join((done.stderr or done.stdout).split())[:200]
    if done.returncode != 0:
        raise InputError(f"eacct gives no energies ({said}): ask for them later")
    if not done.stdout.strip() or NOTHING.search(done.stdout):
        return ExternalReadings()
    return read_ear(done.stdout)
