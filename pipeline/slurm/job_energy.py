"""Query the energy of ended jobs from all meters of the cluster, and report what each lacks.

Slurm and EAR know the energy of a job some time after its end: a job without energy is queried again for an hour. A
meter that does not answer becomes a sentence and is queried again; it does not affect the others.
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
from pipeline.energy.external_meters.slurm_energy import AllocationEnergy, parse_energy_plugin, read_slurm_energy
from pipeline.energy.readings import ExternalReading, Reading
from pipeline.slurm import sacct
from pipeline.slurm.executor.slurm_commands import query_configuration
from pipeline.slurm.output_parsing import list_hosts

EACCT_SECONDS = 300
NO_JOBS = re.compile(r"\bno (jobs?|applications?|loops?)\b.*\bfound\b", re.IGNORECASE)
PATIENCE_SECONDS = 3600.0  # after the end of a job; then what is not there will not come


class MeterAnswers(NamedTuple):
    """The answers of a cluster's meters.

    Attributes:
        plugin: the energy plugin of Slurm; None if Slurm does not answer.
        has_ear: whether the cluster has EAR.
        ear_readings: None if EAR does not answer, empty if there is no EAR.
        problems: sentences about single readings.
        failures: a sentence for each meter that did not answer.
    """

    plugin: str | None
    has_ear: bool
    ear_readings: list[ExternalReading] | None
    problems: list[str]
    failures: list[str]


class JobEnergy(NamedTuple):
    """The readings of a job, their problems, and whether another query would add nothing."""

    readings: list[ExternalReading]
    problems: list[str]
    final: bool


def query_meter_readings(jobs: list[str], *, ear_expected: bool = False) -> MeterAnswers:
    """Query all meters of the cluster for these jobs; `ear_expected` says that the platform's file has EAR."""
    failures, plugin = [], parse_energy_plugin(query_configuration())
    if plugin is None:
        failures.append("scontrol does not show Slurm's energy plugin: collect the accounting again later")
    has_ear, readings, problems = has_eacct() or ear_expected, None, []
    if has_ear:
        try:
            answer = query_eacct(jobs)
            known = {reading.problem for node in answer for reading in node.readings}
            readings, problems = list(answer), [problem for problem in answer.problems if problem not in known]
        except InputError as error:
            failures.append(str(error))
    return MeterAnswers(plugin, has_ear, readings if has_ear else [], problems, failures)


def _unix_seconds(moment: str | None) -> float | None:
    return datetime.fromisoformat(moment).timestamp() if moment else None


def _used_allocations(job: sacct.AccountedJob, whole_nodes: bool | None) -> Iterator[AllocationEnergy]:
    """Yield the allocations of a job that had time and nodes."""
    for part in job.allocations:
        started, ended = _unix_seconds(part.started), _unix_seconds(part.ended)
        if part.node_list and part.elapsed_seconds > 0 and started is not None and ended is not None:
            nodes = list_hosts(part.node_list)
            yield AllocationEnergy(job.job, nodes, started, ended, part.energy_said, whole_nodes)


def _missing_energies(
    allocations: list[AllocationEnergy], readings: list[ExternalReading], answers: MeterAnswers
) -> Iterator[str]:
    """Yield a sentence for each meter of the cluster that has no energy of a job."""
    job = allocations[0].job
    if answers.plugin not in (None, "none") and not any(
        _has_joules(reading) for reading in readings if _is_from_meter(reading, "slurm")
    ):
        yield f"job {job}: Slurm's plugin {answers.plugin} has no energy"
    known = {reading.node for reading in readings if _is_from_meter(reading, "ear") and _has_joules(reading)}
    without = sorted({node for allocation in allocations for node in allocation.nodes} - known)
    if answers.has_ear and answers.ear_readings is not None and without:
        yield f"job {job}: EAR has no energy of {', '.join(without)}"


def _is_from_meter(reading: ExternalReading, meter: str) -> bool:
    return any(reading.meter == meter for reading in reading.readings)


def _has_joules(reading: ExternalReading) -> bool:
    return any(reading.joules is not None for reading in reading.readings)


def job_energy(
    job: sacct.AccountedJob,
    answers: MeterAnswers,
    whole_nodes: bool | None,
    now: float,
    before: Sequence[ExternalReading] = (),
) -> JobEnergy:
    """Return the energy of a job that is over; `now` is in seconds of Unix time.

    `before` has the readings of the query before: they stay if their meter does not answer now. The energy is final if
    every meter has answered with it, or an hour after the end. A meter that does not answer may still have it.
    """
    allocations = list(_used_allocations(job, whole_nodes))
    if not allocations:
        return JobEnergy([], [], True)  # it never ran
    readings = [reading for reading in before if _is_from_meter(reading, "slurm") and answers.plugin is None]
    readings = readings or [
        reading for allocation in allocations for reading in read_slurm_energy(allocation, answers.plugin)
    ]
    ear_readings = [reading for reading in before if _is_from_meter(reading, "ear")]
    if answers.ear_readings is not None:
        ear_readings = [reading for reading in answers.ear_readings if reading.job == job.job]
    readings += [reading.model_copy(update={"whole_node": whole_nodes}) for reading in ear_readings]
    lacking = list(_missing_energies(allocations, readings, answers))
    is_late = now - max(allocation.ended for allocation in allocations) >= PATIENCE_SECONDS
    what = "an hour after its end: it is not measured" if is_late else "yet: it is queried again"
    problems = [*(f"{problem} {what}" for problem in lacking), *answers.failures]
    problems += [problem for problem in answers.problems if re.search(rf"\bjob {job.job}\b", problem)]
    return JobEnergy(readings, list(dict.fromkeys(problems)), not answers.failures and (is_late or not lacking))


class NodeEnergy(BaseModel):
    """The energy of one node while a job ran on it, all that runs on the node included."""

    node: str
    seconds: float
    watts: float
    gpu_watts: float

    @property
    def joules(self) -> float:
        return self.watts * self.seconds


def has_eacct() -> bool:
    """Return whether there is an EAR to query."""
    return shutil.which("eacct") is not None


def _component_readings(reading: ExternalReading, component: str) -> Iterator[Reading]:
    return (reading for reading in reading.readings if reading.component == component and reading.joules is not None)


def node_energies_from_readings(readings: Iterable[ExternalReading]) -> list[NodeEnergy]:
    """Return the energy of each node by a job's readings; nodes that were not measured are omitted."""
    measured: dict[str, list[ExternalReading]] = {}
    for reading in readings:
        if any(_component_readings(reading, "node")):
            measured.setdefault(reading.node, []).append(reading)
    energies = []
    for node, of_node in sorted(measured.items()):
        seconds = sum(reading.ended - reading.started for reading in of_node)
        joules, boards = (
            sum(float(part.joules or 0) for node in of_node for part in _component_readings(node, component))
            for component in ("node", "board")
        )
        energies.append(NodeEnergy(node=node, seconds=seconds, watts=joules / seconds, gpu_watts=boards / seconds))
    return energies


def query_eacct(jobs: list[str]) -> ExternalReadings:
    """Return the readings of some jobs by EAR's `eacct`; none of a job that EAR does not know yet.

    Raises:
        InputError: there is no `eacct`, it does not answer, or its answer is not a table.
    """
    words = ["eacct", "-j", ",".join(jobs), "-l", "-n", "all", "-c", "no_file"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=EACCT_SECONDS, errors="replace")
    except FileNotFoundError:
        raise InputError("there is no eacct here: load EAR's module, or use a node that has it") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"eacct has not answered for {EACCT_SECONDS} s: collect the accounting later") from None
    said = " ".join((done.stderr or done.stdout).split())[:200]
    if done.returncode != 0:
        raise InputError(f"eacct gives no energies ({said}): collect the accounting later")
    if not done.stdout.strip() or NO_JOBS.search(done.stdout):
        return ExternalReadings()
    return read_ear(done.stdout)
