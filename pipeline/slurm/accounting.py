"""What the jobs of a run have cost by Slurm's books: one file for each, written when the job is over.

`polder accounting results/RUN` writes `provenance/accounting/CLUSTER.JOB.json` of every job that any
snakemake has submitted for the run on this cluster, failed ones and all that was put back into the queue included:
every cluster counts its jobs from 1. What is written is written once, but for an energy that is not there yet
(`energy_final` is false): it is asked for again. The folder `books` there has the tables of meters that the
configuration names, and `problems.json` says what could not be asked the last time: one source takes nothing from the
others. Like the attempts they grow after the report and the crate are written, so they lie outside of the crate; what
the report says of them stands in it. A run without Slurm and without such tables has none.
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
from pipeline.config.keys import sentence
from pipeline.config.platforms import described
from pipeline.core.atomic_files import write_json
from pipeline.core.attestation_log import KEY
from pipeline.core.errors import InputError
from pipeline.energy.external_meters.ear_meter import METER, read_ear
from pipeline.energy.external_meters.meter_tables import ExternalReadings, ExternalReadingsFile
from pipeline.energy.external_meters.smart_meter import read_smart_meter
from pipeline.energy.readings import ExternalReading, MeterInterval
from pipeline.energy.settings import Energy
from pipeline.job import frozen
from pipeline.provenance.evidence import attest
from pipeline.slurm import job_energy, sacct, takeover
from pipeline.slurm.executor.interface import UNFINISHED_STATES
from pipeline.slurm.takeover import SlurmInvocation
from pipeline.slurm.values import list_hosts

TRIES, SECONDS_BETWEEN = 6, 5.0  # slurmdbd learns of a job's end a little later than squeue, or is away for a moment


def query_processors() -> dict[str, int]:
    """Return how many logical processors each node of this cluster has; nothing where Slurm does not say."""
    words = ["sinfo", "--noheader", "--Node", "--format=%N|%c"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return {}
    rows = (line.split("|") for line in done.stdout.splitlines())
    return {node: int(number) for node, number in rows if number.isdigit()}


def has_whole_nodes(job: sacct.AccountedJob, node_processors: dict[str, int]) -> bool | None:
    """Return whether a job had all processors of its nodes, so that their energy is its own; None if nobody knows."""
    had = [allocation for allocation in job.allocations if allocation.node_list]
    if not node_processors or not had:
        return None
    return all(
        allocation.cpus >= sum(node_processors.get(node, 0) for node in list_hosts(str(allocation.node_list)))
        for allocation in had
    )


def describe_job(
    cluster: str | None, job: sacct.AccountedJob, cost: job_energy.JobEnergy, whole_nodes: bool | None
) -> dict[str, Any]:
    """Return what is written of a job: its allocations, their sums, and the energy that Slurm and EAR have read."""
    of_ear = [book for book in cost.books if any(reading.meter == METER for reading in book.readings)]
    nodes = job_energy.node_energies(of_ear) or None
    told = job.allocations
    measured = [allocation.energy_joules for allocation in told if allocation.energy_joules is not None]
    billed = [part.billing * part.elapsed_seconds for part in told if part.billing is not None]
    peaks = [allocation.peak_memory_bytes for allocation in told if allocation.peak_memory_bytes is not None]
    return {
        "cluster": cluster,
        "job": job.job,
        "comment": job.comment,
        "cause": told[-1].cause,
        "allocations": [{**allocation.model_dump(), "cause": allocation.cause} for allocation in told],
        "whole_nodes": whole_nodes,
        "ear": None if nodes is None else [{**node.model_dump(), "joules": node.joules} for node in nodes],
        "books": [book.model_dump(mode="json") for book in cost.books],
        "energy_final": cost.final,
        "energy_problems": cost.problems,
        "total": {
            "allocations": len(told),
            "elapsed_seconds": sum(allocation.elapsed_seconds for allocation in told),
            "cpu_seconds": round(sum(allocation.cpu_seconds for allocation in told), 3),
            "allocated_cpu_seconds": sum(allocation.allocated_cpu_seconds for allocation in told),
            "billed_unit_seconds": sum(billed) if len(billed) == len(told) else None,
            "node_seconds": sum(allocation.elapsed_seconds * allocation.nodes for allocation in told),
            "gpu_seconds": sum(allocation.elapsed_seconds * allocation.gpus for allocation in told),
            "peak_memory_bytes": max(peaks, default=None),
            "slurm_energy_joules": sum(measured) if measured else None,
            "slurm_energy_allocations": len(measured),
            "ear_energy_joules": sum(node.joules for node in nodes) if nodes else None,
        },
    }


def _known(paths: list[Path], prefix: str) -> tuple[set[str], set[str]]:
    """Return the jobs that are written, and those of them whose energy is not final."""
    late = {path for path in paths if '"energy_final": false' in path.read_text(encoding="utf-8", errors="replace")}
    known, unsure = ({path.stem.removeprefix(prefix) for path in some} for some in (paths, late))
    return known, unsure


def _ask(names: list[str], since: datetime, known: set[str]) -> dict[str, sacct.AccountedJob]:
    """Return the jobs that are not written yet, once the database knows that all that are over are so."""
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
        queued = takeover.query_jobs(names, ended=True)
        alive = {number for number, job in (queued or {}).items() if job.state in UNFINISHED_STATES}
        if queued is None or not (queued.keys() | jobs.keys()) - alive - there:
            return jobs
    if problem is not None:
        raise problem
    return jobs


def _collect(
    folder: Path, cluster: str | None, begun: list[takeover.SlurmInvocation], has_ear: bool
) -> tuple[int, list[str]]:
    """Write the files of the jobs of these starts, which have the same cluster; return how many, and what is wrong.

    Where the cluster of a start is not known, the names of its files are without it.
    """
    prefix = f"{cluster}." if cluster else ""
    known, late = _known([*folder.glob(f"{prefix}[!.]*.json")], prefix)
    since = min(datetime.fromisoformat(start.started) for start in begun) - timedelta(minutes=1)
    jobs = _ask([start.name for start in begun], since, known - late)
    over = [number for number, job in jobs.items() if job.allocations[-1].is_over]
    if not over:
        return 0, []
    node_processors = query_processors()
    told = job_energy.query_meters(over, ear_expected=has_ear)
    for number in over:
        whole_nodes = has_whole_nodes(jobs[number], node_processors)
        path = folder / f"{prefix}{number}.json"
        before = ExternalReadingsFile.model_validate_json(path.read_bytes()).books if number in late else []
        cost = job_energy.job_energy(jobs[number], told, whole_nodes, time.time(), before)
        write_json(path, describe_job(cluster, jobs[number], cost, whole_nodes))
    unplaced = [problem for problem in told.problems if not re.search(r"\bjob \d", problem)]
    return len({*over} - known), [*told.failures, *unplaced]


def collect_accounting(run_directory: Path, say: Callable[[str], None] = lambda sentence: None) -> int:
    """Write the files of the jobs of this cluster that are over, and the tables of meters; return how many are new.

    A job whose energy is not final is written again. A source that does not answer, or that is not what it should be,
    is a sentence that is said and kept in `problems.json`; the others are written all the same.

    Raises:
        InputError: the configuration of the run has no sense.
    """
    settings, platform_has_ear = load_energy_settings(run_directory)
    begun: dict[str | None, list[takeover.SlurmInvocation]] = {}
    for start in takeover.load_invocations(run_directory):
        begun.setdefault(start.cluster, []).append(start)
    problems = write_meter_tables(run_directory, settings, [start for some in begun.values() for start in some])
    here, written = takeover.query_cluster_name() if begun else None, 0
    for cluster, of_cluster in begun.items():
        if here is None or cluster in (None, here):
            try:
                new, wrong = _collect(run_directory / layout.ACCOUNTING, cluster, of_cluster, platform_has_ear)
            except InputError as error:
                new, wrong = 0, [str(error)]
            written, problems = written + new, problems + wrong
    for problem in problems:
        say(problem)
    if begun or problems or (run_directory / layout.ACCOUNTING_PROBLEMS).exists():
        (run_directory / layout.ACCOUNTING_PROBLEMS).parent.mkdir(parents=True, exist_ok=True)
        write_json(
            run_directory / layout.ACCOUNTING_PROBLEMS,
            {"asked": takeover.utc_timestamp(), "problems": list(dict.fromkeys(problems))},
        )
    return written


def end(run_directory: Path, say: Callable[[str], None]) -> None:
    """Write down what the jobs of this snakemake have cost, and that it leaves none of them to the next one."""
    if takeover.current is None:
        return
    try:
        if takeover.query_jobs([takeover.current.name]) == {}:
            takeover.current.end(run_directory)
        collect_accounting(run_directory, say)
    except InputError as error:
        say(str(error))


def update_accounting(run_directory: Path) -> None:
    """Write down what Slurm, EAR and other meters know of a run's jobs, and attest it.

    What could not be asked is said on stderr and kept with the accounting; only an invalid configuration is an error.

    Raises:
        InputError: the section `energy` of the run is invalid, or the log of attestations was changed.
    """
    written = collect_accounting(
        run_directory, lambda problem: print(f"the books are incomplete: {problem}", file=sys.stderr)
    )
    if (run_directory / layout.PUBLIC_KEY).is_file() and KEY not in os.environ:
        print("the next start of snakemake signs what is new here: it has the key", file=sys.stderr)
    else:
        attest(run_directory)
    if written:
        print(f"{written} more jobs of Slurm are accounted for in {run_directory / layout.ACCOUNTING}")


def load_energy_settings(run_directory: Path) -> tuple[Energy, bool]:
    """Return the section `energy` of the run as it was last started, and whether its platform has EAR.

    Raises:
        InputError: the section has no sense, or there is no such platform.
    """
    content: dict[str, Any] = (frozen.newest(run_directory) or {}).get("configuration") or {}
    try:
        settings = Energy.model_validate(content.get("energy") or {})
    except ValidationError as error:
        raise InputError(sentence(error, Energy, f"{run_directory}/{layout.FROZEN}, section energy")) from None
    platform = content.get("platform")
    return settings, bool(platform and described(str(platform)).ear)


def _began(run_directory: Path, begun: list[SlurmInvocation]) -> float | None:
    """Return when the run began, in seconds of Unix time, by its starts and its meters; None where neither says."""
    moments = [datetime.fromisoformat(start.started).timestamp() for start in begun]
    for path in (run_directory / layout.READINGS).glob("*.jsonl"):
        try:
            with path.open(encoding="utf-8") as lines:
                moments.append(MeterInterval.model_validate_json(next(lines)).started)
        except (OSError, ValueError, StopIteration):
            continue  # the account says what is wrong with it
    return min(moments, default=None)


def _read(readers: list[Callable[[], ExternalReadings]]) -> ExternalReadings:
    """Return what all readers find; a table that cannot be read is a sentence."""
    books: list[ExternalReading] = []
    problems: list[str] = []
    for read in readers:
        try:
            found = read()
        except InputError as error:
            problems.append(str(error))
            continue
        books += found
        problems += found.problems
    return ExternalReadings(books, problems)


def write_meter_tables(run_directory: Path, settings: Energy, begun: list[SlurmInvocation]) -> list[str]:
    """Write the books of the tables that the settings name, and return what is wrong with them, in sentences."""
    since, until = _began(run_directory, begun), time.time()
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
        found = _read(readers)
        path.parent.mkdir(parents=True, exist_ok=True)
        books = [book.model_dump(mode="json") for book in found]
        write_json(path, {"books": books, "problems": found.problems})
        problems += found.problems
    return problems
