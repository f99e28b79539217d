"""Collect what the jobs of a run have cost by Slurm's accounting: one file for each job that is over.

`polder accounting results/RUN` writes `provenance/accounting/CLUSTER.JOB.json` of every job that any
snakemake has submitted for the run on this cluster, failed and requeued ones included. The name has the cluster because
every cluster counts its jobs from 1. A file is written once, unless its energy is not known yet (`energy_final` is
false): then the meters are queried again. The folder `books` has the tables of the meters that the configuration names.
`problems.json` lists what the last query could not read; one source that fails does not affect the others. The files
grow after the report and the crate are written, so they are not part of the crate. A run without Slurm and meter tables
has none.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline import layout
from pipeline.config.configuration_errors import format_validation_error
from pipeline.config.platforms import load_platform_settings
from pipeline.core.archived_run_files import FileStore
from pipeline.core.atomic_files import write_json
from pipeline.core.attestation_log import SIGNING_KEY_VARIABLE
from pipeline.core.errors import InputError
from pipeline.energy.external_meters.ear_meter import METER, read_ear
from pipeline.energy.external_meters.meter_tables import ExternalReadings, ExternalReadingsFile
from pipeline.energy.external_meters.smart_meter_table import read_smart_meter
from pipeline.energy.readings import ExternalReading, MeterInterval
from pipeline.energy.settings import Energy
from pipeline.job import invocation_snapshots
from pipeline.provenance.evidence_attestation import attest_evidence
from pipeline.slurm import job_energy, sacct, waiting_for_leftover_jobs
from pipeline.slurm.executor.host_interface import ENDED_STATES
from pipeline.slurm.executor.slurm_commands import QUERY_SECONDS, run_slurm_command
from pipeline.slurm.output_parsing import list_hosts
from pipeline.slurm.waiting_for_leftover_jobs import SlurmInvocation

TRIES, SECONDS_BETWEEN = 6, 5.0  # slurmdbd learns of a job's end a little later than squeue, or is away for a moment


def query_node_cpu_counts() -> dict[str, int]:
    """Return the number of logical processors of each node of this cluster; empty if Slurm does not answer."""
    try:
        done = run_slurm_command(["sinfo", "--noheader", "--Node", "--format=%N|%c"], QUERY_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    rows = (line.split("|") for line in done.stdout.splitlines())
    return {node: int(number) for node, number in rows if number.isdigit()}


def has_whole_nodes(job: sacct.AccountedJob, node_processors: dict[str, int]) -> bool | None:
    """Return whether a job had all processors of its nodes, so that their energy is its own; None if unknown."""
    had = [allocation for allocation in job.allocations if allocation.node_list]
    if not node_processors or not had:
        return None
    return all(
        allocation.cpus >= sum(node_processors.get(node, 0) for node in list_hosts(str(allocation.node_list)))
        for allocation in had
    )


def summarize_job_cost(
    cluster: str | None, job: sacct.AccountedJob, cost: job_energy.JobEnergy, whole_nodes: bool | None
) -> dict[str, Any]:
    """Return the accounting of a job: its allocations, their sums, and the energy that Slurm and EAR measured."""
    ear_readings = [reading for reading in cost.readings if any(one.meter == METER for one in reading.readings)]
    nodes = job_energy.node_energies_from_readings(ear_readings) or None
    allocations = job.allocations
    measured = [allocation.energy_joules for allocation in allocations if allocation.energy_joules is not None]
    billed = [part.billing * part.elapsed_seconds for part in allocations if part.billing is not None]
    peaks = [allocation.peak_memory_bytes for allocation in allocations if allocation.peak_memory_bytes is not None]
    return {
        "cluster": cluster,
        "job": job.job,
        "comment": job.comment,
        "cause": allocations[-1].cause,
        "allocations": [{**allocation.model_dump(), "cause": allocation.cause} for allocation in allocations],
        "whole_nodes": whole_nodes,
        "ear": None if nodes is None else [{**node.model_dump(), "joules": node.joules} for node in nodes],
        "external_readings": [reading.model_dump(mode="json") for reading in cost.readings],
        "energy_final": cost.final,
        "energy_problems": cost.problems,
        "total": {
            "allocations": len(allocations),
            "elapsed_seconds": sum(allocation.elapsed_seconds for allocation in allocations),
            "cpu_seconds": round(sum(allocation.cpu_seconds for allocation in allocations), 3),
            "allocated_cpu_seconds": sum(allocation.allocated_cpu_seconds for allocation in allocations),
            "billed_unit_seconds": sum(billed) if len(billed) == len(allocations) else None,
            "node_seconds": sum(allocation.elapsed_seconds * allocation.nodes for allocation in allocations),
            "gpu_seconds": sum(allocation.elapsed_seconds * allocation.gpus for allocation in allocations),
            "peak_memory_bytes": max(peaks, default=None),
            "slurm_energy_joules": sum(measured) if measured else None,
            "slurm_energy_allocations": len(measured),
            "ear_energy_joules": sum(node.joules for node in nodes) if nodes else None,
        },
    }


def _list_written_jobs(paths: list[Path], prefix: str) -> tuple[set[str], set[str]]:
    """Return the jobs that have a file, and those of them whose energy is not final."""
    late = {path for path in paths if re.search(rb'"energy_final": ?false', path.read_bytes())}
    known, unsure = ({path.stem.removeprefix(prefix) for path in some} for some in (paths, late))
    return known, unsure


def _query_ended_jobs(names: list[str], since: datetime, known: set[str]) -> dict[str, sacct.AccountedJob]:
    """Return the jobs without a file, once the database knows the end of every job that is over."""
    problem: InputError | None = None
    for attempt in range(TRIES):
        time.sleep(SECONDS_BETWEEN if attempt else 0)
        try:
            jobs = {number: job for number, job in sacct.query_sacct(names, since).items() if number not in known}
        except InputError as error:
            problem = error
            continue
        problem, there = None, {number for number, job in jobs.items() if job.allocations[-1].is_over} | known
        # Where Slurm does not answer, what the database has is all that anybody can wait for.
        queued = waiting_for_leftover_jobs.query_jobs(names, ended=True)
        alive = {number for number, job in (queued or {}).items() if job.state not in ENDED_STATES}
        if queued is None or not (queued.keys() | jobs.keys()) - alive - there:
            return jobs
    if problem is not None:
        raise problem
    return jobs


def _collect_cluster(
    folder: Path, cluster: str | None, begun: list[waiting_for_leftover_jobs.SlurmInvocation], has_ear: bool
) -> tuple[int, list[str]]:
    """Write the files of the jobs of invocations on one cluster; return how many are new, and the problems.

    If the cluster of an invocation is unknown, the names of its files omit it.
    """
    prefix = f"{cluster}." if cluster else ""
    known, late = _list_written_jobs([*folder.glob(f"{prefix}[!.]*.json")], prefix)
    since = min(datetime.fromisoformat(start.started) for start in begun) - timedelta(minutes=1)
    jobs = _query_ended_jobs([start.name for start in begun], since, known - late)
    over = [number for number, job in jobs.items() if job.allocations[-1].is_over]
    if not over:
        return 0, []
    node_processors = query_node_cpu_counts()
    answers = job_energy.query_meter_readings(over, ear_expected=has_ear)
    for number in over:
        whole_nodes = has_whole_nodes(jobs[number], node_processors)
        path = folder / f"{prefix}{number}.json"
        before = ExternalReadingsFile.model_validate_json(path.read_bytes()).external_readings if number in late else []
        cost = job_energy.job_energy(jobs[number], answers, whole_nodes, time.time(), before)
        write_json(path, summarize_job_cost(cluster, jobs[number], cost, whole_nodes))
    unplaced = [problem for problem in answers.problems if not re.search(r"\bjob \d", problem)]
    return len({*over} - known), [*answers.failures, *unplaced]


def collect_accounting(run_directory: Path, warn: Callable[[str], None] = lambda sentence: None) -> int:
    """Write the files of the ended jobs of this cluster, and the tables of meters; return how many are new.

    A job whose energy is not final is written again. A source that fails is reported and listed in `problems.json`;
    the other sources are written.

    Raises:
        InputError: the configuration of the run is not valid.
    """
    settings, platform_has_ear = load_energy_settings(run_directory)
    begun: dict[str | None, list[waiting_for_leftover_jobs.SlurmInvocation]] = {}
    for start in waiting_for_leftover_jobs.load_invocations(run_directory):
        begun.setdefault(start.cluster, []).append(start)
    problems = write_meter_table_readings(run_directory, settings, [start for some in begun.values() for start in some])
    here, written = waiting_for_leftover_jobs.query_cluster_name() if begun else None, 0
    for cluster, of_cluster in begun.items():
        if here is None or cluster in (None, here):
            try:
                new, wrong = _collect_cluster(run_directory / layout.ACCOUNTING, cluster, of_cluster, platform_has_ear)
            except InputError as error:
                new, wrong = 0, [str(error)]
            written, problems = written + new, problems + wrong
    for problem in problems:
        warn(problem)
    if begun or problems or (run_directory / layout.ACCOUNTING_PROBLEMS).exists():
        (run_directory / layout.ACCOUNTING_PROBLEMS).parent.mkdir(parents=True, exist_ok=True)
        write_json(
            run_directory / layout.ACCOUNTING_PROBLEMS,
            {"asked": waiting_for_leftover_jobs.utc_timestamp(), "problems": list(dict.fromkeys(problems))},
        )
    return written


def finish_invocation_accounting(run_directory: Path, warn: Callable[[str], None]) -> None:
    """Write what the jobs of this invocation have cost, and that none of them is left to the next invocation."""
    if waiting_for_leftover_jobs.current_invocation is None:
        return
    try:
        if waiting_for_leftover_jobs.query_jobs([waiting_for_leftover_jobs.current_invocation.name]) == {}:
            waiting_for_leftover_jobs.current_invocation.end(run_directory)
        collect_accounting(run_directory, warn)
    except InputError as error:
        warn(str(error))


def update_accounting(run_directory: Path) -> None:
    """Write down what Slurm, EAR and other meters know of a run's jobs, and attest it.

    What could not be asked is said on stderr and kept with the accounting; only an invalid configuration is an error.

    Raises:
        InputError: the section `energy` of the run is invalid, or the log of attestations was changed.
    """
    written = collect_accounting(
        run_directory, lambda problem: print(f"accounting is incomplete: {problem}", file=sys.stderr)
    )
    if (run_directory / layout.PUBLIC_KEY).is_file() and SIGNING_KEY_VARIABLE not in os.environ:
        print("the next snakemake, which has the key, signs the new files", file=sys.stderr)
    else:
        attest_evidence(run_directory)
    if written:
        print(f"{written} more Slurm jobs are in {run_directory / layout.ACCOUNTING}")


def load_energy_settings(run_directory: Path) -> tuple[Energy, bool]:
    """Return the section `energy` of the last invocation of the run, and whether its platform has EAR.

    Raises:
        InputError: the section is not valid, or there is no such platform.
    """
    content: dict[str, Any] = (invocation_snapshots.read_newest_snapshot(run_directory) or {}).get(
        "configuration"
    ) or {}
    try:
        settings = Energy.model_validate(content.get("energy") or {})
    except ValidationError as error:
        raise InputError(
            format_validation_error(error, Energy, f"{run_directory}/{layout.FROZEN}, section energy")
        ) from None
    platform = content.get("platform")
    return settings, bool(platform and load_platform_settings(str(platform)).ear)


def _run_start(run_directory: Path, begun: list[SlurmInvocation]) -> float | None:
    """Return when the run began, in Unix seconds, by its invocations and its meters; None if neither is known."""
    moments = [datetime.fromisoformat(start.started).timestamp() for start in begun]
    for file in FileStore(run_directory).find_all(layout.READINGS.child("*.jsonl")):
        try:
            with file.open("rb") as lines:
                moments.append(MeterInterval.model_validate_json(next(lines)).started)
        except (OSError, ValueError, StopIteration):
            continue  # the energy accounting reports the problem
    return min(moments, default=None)


def _read_meter_tables(readers: list[Callable[[], ExternalReadings]]) -> ExternalReadings:
    """Return the readings of all readers; a table that cannot be read becomes a problem."""
    readings: list[ExternalReading] = []
    problems: list[str] = []
    for read in readers:
        try:
            table = read()
        except InputError as error:
            problems.append(str(error))
            continue
        readings += table
        problems += table.problems
    return ExternalReadings(readings, problems)


def write_meter_table_readings(run_directory: Path, settings: Energy, begun: list[SlurmInvocation]) -> list[str]:
    """Write the readings of the meter tables that the settings name, and return the problems as sentences."""
    since, until = _run_start(run_directory, begun), time.time()
    kinds: dict[str, list[Callable[[], ExternalReadings]]] = {
        "ear_files": [partial(read_ear, Path(file)) for file in settings.ear_files],
        "smart_meters": [partial(read_smart_meter, meter, since=since, until=until) for meter in settings.smart_meters],
    }
    problems: list[str] = []
    for kind, readers in kinds.items():
        path = run_directory / layout.EXTERNAL_METERS / f"{kind}.json"
        if not readers:
            path.unlink(missing_ok=True)
            continue
        tables = _read_meter_tables(readers)
        path.parent.mkdir(parents=True, exist_ok=True)
        readings = [reading.model_dump(mode="json") for reading in tables]
        write_json(path, {"external_readings": readings, "problems": tables.problems})
        problems += tables.problems
    return problems
