"""The energy of jobs by all meters of the cluster that are read afterwards: what each has, lacks, or does not tell.

Slurm and EAR learn of a job's energy later than of its end. A job whose energy is not there yet is asked for again, for
an hour. One meter that does not answer takes nothing from the others: it is a sentence, and is asked again.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from pydantic import BaseModel

from pipeline.core.errors import InputError
from pipeline.energy.external_meters.ear_meter import read_ear
from pipeline.energy.external_meters.meter_tables import ExternalReadings
from pipeline.energy.external_meters.slurm_energy import AllocationEnergy, energy_plugin, read_slurm
from pipeline.energy.readings import ExternalReading, Reading
from pipeline.slurm import sacct
from pipeline.slurm.values import list_hosts

EACCT_SECONDS = 300
NO_JOBS = re.compile(r"\bno (jobs?|applications?|loops?)\b.*\bfound\b", re.IGNORECASE)
PATIENCE_SECONDS = 3600.0  # after the end of a job; then what is not there will not come


class MeterAnswers(NamedTuple):
    """What the meters of a cluster have answered.

    `plugin` is Slurm's plugin of energy, None where Slurm does not say; `ear_books` are None where EAR does not answer
    and empty where there is none. `failures` has a sentence for each meter that did not answer.
    """

    plugin: str | None
    has_ear: bool
    ear_books: list[ExternalReading] | None
    problems: list[str]
    failures: list[str]


class JobEnergy(NamedTuple):
    """The books of a job, what is wrong with them as a whole, and whether asking again is of no use."""

    books: list[ExternalReading]
    problems: list[str]
    final: bool


def query_meters(jobs: list[str], *, ear_expected: bool = False) -> MeterAnswers:
    """Ask all meters of the cluster for these jobs; `ear_expected` says that the platform's file has EAR."""
    failures, plugin = [], None
    try:
        done = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=60)
        plugin = energy_plugin(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired):
        pass
    if plugin is None:
        failures.append("scontrol does not say which plugin reads Slurm's energies: ask for the accounting again")
    has_ear, books, problems = has_eacct() or ear_expected, None, []
    if has_ear:
        try:
            answer = query_eacct(jobs)
            of_readings = {reading.problem for book in answer for reading in book.readings}
            books, problems = list(answer), [said for said in answer.problems if said not in of_readings]
        except InputError as error:
            failures.append(str(error))
    return MeterAnswers(plugin, has_ear, books if has_ear else [], problems, failures)


def _seconds(moment: str | None) -> float | None:
    return datetime.fromisoformat(moment).timestamp() if moment else None


def _allocated(job: sacct.AccountedJob, whole_nodes: bool | None) -> Iterator[AllocationEnergy]:
    """Yield the allocations of a job that lasted and had nodes."""
    for part in job.allocations:
        started, ended = _seconds(part.started), _seconds(part.ended)
        if part.node_list and part.elapsed_seconds > 0 and started is not None and ended is not None:
            nodes = list_hosts(part.node_list)
            yield AllocationEnergy(job.job, nodes, started, ended, part.energy_said, whole_nodes)


def _lacking(allocations: list[AllocationEnergy], books: list[ExternalReading], told: MeterAnswers) -> Iterator[str]:
    """Yield which energies of a job are not there although there is a meter for them."""
    job = allocations[0].job
    if told.plugin not in (None, "none") and not any(_has_joules(book) for book in books if _is(book, "slurm")):
        yield f"job {job}: Slurm's plugin {told.plugin} has no energy"
    known = {book.node for book in books if _is(book, "ear") and _has_joules(book)}
    without = sorted({node for allocation in allocations for node in allocation.nodes} - known)
    if told.has_ear and told.ear_books is not None and without:
        yield f"job {job}: EAR has no energy of {', '.join(without)}"


def _is(book: ExternalReading, meter: str) -> bool:
    return any(reading.meter == meter for reading in book.readings)


def _has_joules(book: ExternalReading) -> bool:
    return any(reading.joules is not None for reading in book.readings)


def job_energy(
    job: sacct.AccountedJob,
    told: MeterAnswers,
    whole_nodes: bool | None,
    now: float,
    before: Sequence[ExternalReading] = (),
) -> JobEnergy:
    """Return the energy of a job that is over; `now` is in seconds of Unix time.

    `before` is what was told of it earlier: what a meter has told stands where it does not answer now.
    It is final where every meter that the cluster has answered and has it, or where an hour has passed since the end.
    A meter that does not answer may still have it.
    """
    allocations = list(_allocated(job, whole_nodes))
    if not allocations:
        return JobEnergy([], [], True)  # it never ran
    books = [book for book in before if _is(book, "slurm") and told.plugin is None]
    books = books or [book for allocation in allocations for book in read_slurm(allocation, told.plugin)]
    of_ear = [book for book in before if _is(book, "ear")]
    if told.ear_books is not None:
        of_ear = [book for book in told.ear_books if book.job == job.job]
    books += [book.model_copy(update={"whole_node": whole_nodes}) for book in of_ear]
    lacking = list(_lacking(allocations, books, told))
    is_late = now - max(allocation.ended for allocation in allocations) >= PATIENCE_SECONDS
    what = "an hour after its end: it is not measured" if is_late else "yet: it is asked again"
    problems = [*(f"{problem} {what}" for problem in lacking), *told.failures]
    problems += [problem for problem in told.problems if re.search(rf"\bjob {job.job}\b", problem)]
    return JobEnergy(books, list(dict.fromkeys(problems)), not told.failures and (is_late or not lacking))


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


def has_eacct() -> bool:
    """Return whether there is an EAR to ask."""
    return shutil.which("eacct") is not None


def _of(book: ExternalReading, component: str) -> Iterator[Reading]:
    return (reading for reading in book.readings if reading.component == component and reading.joules is not None)


def node_energies(books: Iterable[ExternalReading]) -> list[NodeEnergy]:
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


def query_eacct(jobs: list[str]) -> ExternalReadings:
    """Return the books of some jobs, by EAR's `eacct`; it has none of a job of which it does not know yet.

    Raises:
        InputError: there is no `eacct`, it does not answer, or answers with something else than its table.
    """
    words = ["eacct", "-j", ",".join(jobs), "-l", "-n", "all", "-c", "no_file"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=EACCT_SECONDS, errors="replace")
    except FileNotFoundError:
        raise InputError("there is no eacct here: load EAR's module, or ask on a node that has it") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"eacct has not answered for {EACCT_SECONDS} s: ask for EAR's energies later") from None
    said = " ".join((done.stderr or done.stdout).split())[:200]
    if done.returncode != 0:
        raise InputError(f"eacct gives no energies ({said}): ask for them later")
    if not done.stdout.strip() or NO_JOBS.search(done.stdout):
        return ExternalReadings()
    return read_ear(done.stdout)
