"""The energy of jobs by all meters of the cluster that are read afterwards: what each has, lacks, or does not tell.

Slurm and EAR learn of a job's energy later than of its end. A job whose energy is not there yet is asked for again, for
an hour. One meter that does not answer takes nothing from the others: it is a sentence, and is asked again.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from pipeline.core.errors import InputError
from pipeline.energy.external_meters.slurm_energy import Allocated, plugin_of, read_slurm
from pipeline.energy.readings import ExternalReading
from pipeline.slurm import ear, sacct
from pipeline.slurm.values import hosts

PATIENCE_SECONDS = 3600.0  # after the end of a job; then what is not there will not come


class Told(NamedTuple):
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


def ask(jobs: list[str], *, ear_expected: bool = False) -> Told:
    """Ask all meters of the cluster for these jobs; `ear_expected` says that the platform's file has EAR."""
    failures, plugin = [], None
    try:
        done = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=60)
        plugin = plugin_of(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired):
        pass
    if plugin is None:
        failures.append("scontrol does not say which plugin reads Slurm's energies: ask for the accounting again")
    has_ear, books, problems = ear.is_here() or ear_expected, None, []
    if has_ear:
        try:
            answer = ear.ask(jobs)
            of_readings = {reading.problem for book in answer for reading in book.readings}
            books, problems = list(answer), [said for said in answer.problems if said not in of_readings]
        except InputError as error:
            failures.append(str(error))
    return Told(plugin, has_ear, books if has_ear else [], problems, failures)


def _seconds(moment: str | None) -> float | None:
    return datetime.fromisoformat(moment).timestamp() if moment else None


def _allocated(job: sacct.Job, whole_nodes: bool | None) -> Iterator[Allocated]:
    """Yield the allocations of a job that lasted and had nodes."""
    for part in job.allocations:
        started, ended = _seconds(part.started), _seconds(part.ended)
        if part.node_list and part.elapsed_seconds > 0 and started is not None and ended is not None:
            nodes = hosts(part.node_list)
            yield Allocated(job.job, nodes, started, ended, part.energy_said, whole_nodes)


def _lacking(allocations: list[Allocated], books: list[ExternalReading], told: Told) -> Iterator[str]:
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


def of_job(
    job: sacct.Job, told: Told, whole_nodes: bool | None, now: float, before: Sequence[ExternalReading] = ()
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
