"""What the jobs of a run have cost by Slurm's books: one file for each, written when the job is over.

`python -m pipeline accounting results/RUN` writes `provenance/accounting/CLUSTER.JOB.json` of every job that any
snakemake has submitted for the run on this cluster, failed ones and all that was put back into the queue included:
every cluster counts its jobs from 1. What is written is written once, but for an energy that is not there yet
(`energy_final` is false): it is asked for again. The folder `books` there has the tables of meters that the
configuration names, and `problems.json` says what could not be asked the last time: one source takes nothing from the
others. Like the attempts they grow after the report and the crate are written, so they lie outside of the crate; what
the report says of them stands in it. A run without Slurm and without such tables has none.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline.core.atomic_files import write_json
from pipeline.core.attestation_log import KEY
from pipeline.core.errors import InputError
from pipeline.energy.external_meters.ear_meter import METER
from pipeline.energy.external_meters.meter_tables import PROBLEMS, ExternalReadingsFile
from pipeline.provenance.evidence import attest
from pipeline.provenance.inventory import PUBLIC_KEY
from pipeline.slurm import ear, energy, queue, sacct, starts, tables
from pipeline.slurm.values import hosts

ACCOUNTING = "provenance/accounting"
TRIES, SECONDS_BETWEEN = 6, 5.0  # slurmdbd learns of a job's end a little later than squeue, or is away for a moment


def processors() -> dict[str, int]:
    """Return how many logical processors each node of this cluster has; nothing where Slurm does not say."""
    words = ["sinfo", "--noheader", "--Node", "--format=%N|%c"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return {}
    rows = (line.split("|") for line in done.stdout.splitlines())
    return {node: int(number) for node, number in rows if number.isdigit()}


def has_whole_nodes(job: sacct.Job, node_processors: dict[str, int]) -> bool | None:
    """Return whether a job had all processors of its nodes, so that their energy is its own; None if nobody knows."""
    had = [allocation for allocation in job.allocations if allocation.node_list]
    if not node_processors or not had:
        return None
    return all(
        allocation.cpus >= sum(node_processors.get(node, 0) for node in hosts(str(allocation.node_list)))
        for allocation in had
    )


def described(cluster: str | None, job: sacct.Job, cost: energy.JobEnergy, whole_nodes: bool | None) -> dict[str, Any]:
    """Return what is written of a job: its allocations, their sums, and the energy that Slurm and EAR have read."""
    of_ear = [book for book in cost.books if any(reading.meter == METER for reading in book.readings)]
    nodes = ear.nodes(of_ear) or None
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


def _ask(names: list[str], since: datetime, known: set[str]) -> dict[str, sacct.Job]:
    """Return the jobs that are not written yet, once the database knows that all that are over are so."""
    problem: InputError | None = None
    for attempt in range(TRIES):
        time.sleep(SECONDS_BETWEEN if attempt else 0)
        try:
            jobs = {number: job for number, job in sacct.ask(names, since).items() if number not in known}
        except InputError as error:
            problem = error
            continue
        problem, there = None, {number for number, job in jobs.items() if job.allocations[-1].is_over} | known
        # Where Slurm does not answer, what the database has is all that anybody can wait for.
        queued = queue.jobs(names, ended=True)
        alive = {number for number, job in (queued or {}).items() if job.state in sacct.WAITING}
        if queued is None or not (queued.keys() | jobs.keys()) - alive - there:
            return jobs
    if problem is not None:
        raise problem
    return jobs


def _collect(folder: Path, cluster: str | None, begun: list[starts.Start], has_ear: bool) -> tuple[int, list[str]]:
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
    node_processors = processors()
    told = energy.ask(over, ear_expected=has_ear)
    for number in over:
        whole_nodes = has_whole_nodes(jobs[number], node_processors)
        path = folder / f"{prefix}{number}.json"
        before = ExternalReadingsFile.model_validate_json(path.read_bytes()).books if number in late else []
        cost = energy.of_job(jobs[number], told, whole_nodes, time.time(), before)
        write_json(path, described(cluster, jobs[number], cost, whole_nodes))
    unplaced = [problem for problem in told.problems if not re.search(r"\bjob \d", problem)]
    return len({*over} - known), [*told.failures, *unplaced]


def collect(run_directory: Path, say: Callable[[str], None] = lambda sentence: None) -> int:
    """Write the files of the jobs of this cluster that are over, and the tables of meters; return how many are new.

    A job whose energy is not final is written again. A source that does not answer, or that is not what it should be,
    is a sentence that is said and kept in `problems.json`; the others are written all the same.

    Raises:
        InputError: the configuration of the run has no sense.
    """
    settings, platform_has_ear = tables.configured(run_directory)
    begun: dict[str | None, list[starts.Start]] = {}
    for start in starts.starts(run_directory):
        begun.setdefault(start.cluster, []).append(start)
    problems = tables.write(run_directory, settings, [start for some in begun.values() for start in some])
    here, written = starts.cluster() if begun else None, 0
    for cluster, of_cluster in begun.items():
        if here is None or cluster in (None, here):
            try:
                new, wrong = _collect(run_directory / ACCOUNTING, cluster, of_cluster, platform_has_ear)
            except InputError as error:
                new, wrong = 0, [str(error)]
            written, problems = written + new, problems + wrong
    for problem in problems:
        say(problem)
    if begun or problems or (run_directory / PROBLEMS).exists():
        (run_directory / PROBLEMS).parent.mkdir(parents=True, exist_ok=True)
        write_json(run_directory / PROBLEMS, {"asked": starts.now(), "problems": list(dict.fromkeys(problems))})
    return written


def end(run_directory: Path, say: Callable[[str], None]) -> None:
    """Write down what the jobs of this snakemake have cost, and that it leaves none of them to the next one."""
    if starts.current is None:
        return
    try:
        if queue.jobs([starts.current.name]) == {}:
            starts.current.end(run_directory)
        collect(run_directory, say)
    except InputError as error:
        say(str(error))


def main(arguments: list[str]) -> int:
    """`python -m pipeline accounting results/RUN`: write down what Slurm, EAR and other meters know of the run's jobs.

    What could not be asked is said on stderr and kept beside the books; only a configuration without sense is an error.
    """
    parser = argparse.ArgumentParser(prog="python -m pipeline accounting", description=main.__doc__)
    parser.add_argument("run_directory", type=Path)
    options = parser.parse_args(arguments)
    written = collect(
        options.run_directory, lambda problem: print(f"the books are incomplete: {problem}", file=sys.stderr)
    )
    if (options.run_directory / PUBLIC_KEY).is_file() and KEY not in os.environ:
        print("the next start of snakemake signs what is new here: it has the key", file=sys.stderr)
    else:
        attest(options.run_directory)
    if written:
        print(f"{written} more jobs of Slurm are accounted for in {options.run_directory / ACCOUNTING}")
    return 0
