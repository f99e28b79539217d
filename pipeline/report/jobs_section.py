"""Summarize jobs by step: their Slurm requests and use, and the machines that they ran on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple

from pipeline import layout
from pipeline.core.display_text import format_duration
from pipeline.core.job_records import SEGMENT_STEP, Attempt, Record
from pipeline.core.markup import format_bytes, format_number
from pipeline.report.run_reader import Artifact, Json, RunReader, link_job
from pipeline.report.training_section import known_values_by_step

# A request was far off where less than this share was used and what was left over is worth asking for less.
LOW_USE = 0.5
HIGH_MEMORY_USE = 0.9  # of the memory: the next job may fail for it
SPARE_BYTES, SPARE_SECONDS = 4e9, 7200.0
HEADROOM = 1.25  # above the most that was used


@dataclass(frozen=True)
class StepUse:
    """Requests of the jobs of a step and their use; shares are of the request, None where not measured.

    What is billed counts the site's units, which are cores where no GPU is: `billed_share` is by how much more of them
    was billed than cores were busy.
    """

    name: str
    jobs: int
    allocations: int
    unfinished: list[tuple[str, int]]
    elapsed_seconds: float
    node_seconds: float
    gpu_seconds: float
    cpu_seconds: float
    billed_unit_seconds: float | None
    billed_share: float | None
    cpu_share: float | None
    memory_share: float | None
    gpu_share: float | None
    time_share: float | None
    slurm_joules: float | None
    ear_joules: float | None
    unmeasured: int
    is_shared: bool
    suggestions: list[str]


@dataclass(frozen=True)
class Efficiency:
    """All steps, their sum, the jobs that did not simply finish, and how many jobs have no accounting data."""

    steps: list[StepUse]
    total: StepUse
    troubled: list[Artifact]
    missing: int


def parse_step_name(comment: str | None) -> str:
    """Return the step that the comment of a job names, `rule_corpus_filter_wildcards_…`: corpus.filter."""
    match = re.fullmatch(r"rule_([a-z]+)_(.+?)(_wildcards_.*)?", comment or "")
    return f"{match[1]}.{match[2]}" if match else comment or "not known"


def _ratio(used: float | None, requested: float | None) -> float | None:
    return used / requested if used is not None and requested else None


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _largest_share(allocations: list[Json], used: str, requested: str) -> tuple[float, Json] | None:
    """Return the greatest share of a request that an allocation has used, and the allocation."""
    shares = [(share, part) for part in allocations if (share := _ratio(part[used], part[requested])) is not None]
    return max(shares, key=lambda pair: pair[0], default=None)


def _suggest_requests(cpu_share: float | None, gpu_share: float | None, allocations: list[Json]) -> list[str]:
    """Return what to ask for instead, where a request was far off."""
    suggestions = []
    cpus = max((int(part["tres"].get("cpu", 0)) for part in allocations), default=0)
    if cpu_share is not None and cpu_share < LOW_USE:
        needed = max(ceil(cpus * cpu_share * HEADROOM), 1)
        if needed < cpus:
            suggestions.append(
                f"{format_number(cpus * cpu_share, 2)} of {cpus} processors were busy: {needed} would do"
            )
    memory = _largest_share(allocations, "peak_memory_bytes", "requested_memory_bytes")
    if memory is not None:
        share, part = memory
        peak, requested = part["peak_memory_bytes"], part["requested_memory_bytes"]
        if share >= HIGH_MEMORY_USE:
            suggestions.append(f"{format_bytes(peak)} of {format_bytes(requested)} memory were in use: ask for more")
        elif share < LOW_USE and requested - peak > SPARE_BYTES:
            suggestions.append(
                f"{format_bytes(peak)} of {format_bytes(requested)} memory were in use: "
                f"{ceil(peak * HEADROOM / 1e9)} GB would do"
            )
    time = _largest_share(allocations, "elapsed_seconds", "time_limit_seconds")
    if time is not None:
        share, part = time
        elapsed, limit = part["elapsed_seconds"], part["time_limit_seconds"]
        if share < LOW_USE and limit - elapsed > SPARE_SECONDS:
            suggestions.append(
                f"the longest took {format_duration(elapsed)} of {format_duration(limit)}: "
                "with less it would start sooner"
            )
    if gpu_share is not None and gpu_share < LOW_USE:
        suggestions.append(
            f"the GPUs were busy {100 * gpu_share:.0f} % of the time: ask for fewer, or give them more at once"
        )
    return suggestions


def _summarize_jobs(name: str, jobs: list[Json], training: float | None = None) -> StepUse:
    """Return the sum of some jobs; `training` is the share of time that training itself saw its devices busy."""
    allocations = [part for job in jobs for part in job["allocations"]]
    causes = Counter(part["cause"] for part in allocations if part["cause"] != "finished")
    cpu_seconds = sum(part["cpu_seconds"] for part in allocations)
    cpu_share = _ratio(cpu_seconds, sum(part["allocated_cpu_seconds"] for part in allocations))
    billed = [job["total"].get("billed_unit_seconds") for job in jobs]  # accounting data of earlier versions have none
    billed_unit_seconds = None if None in billed else sum(billed)
    measured = [part for part in allocations if part["gpu_utilization"] is not None and part["elapsed_seconds"]]
    totals = [job["total"] for job in jobs]
    gpu_seconds = sum(total["gpu_seconds"] for total in totals)
    gpu_share = training if gpu_seconds else None
    if measured:
        busy = sum(part["gpu_utilization"] * part["elapsed_seconds"] for part in measured)
        gpu_share = busy / sum(part["elapsed_seconds"] for part in measured)
    memory, time = (
        _largest_share(allocations, used, requested)
        for used, requested in (
            ("peak_memory_bytes", "requested_memory_bytes"),
            ("elapsed_seconds", "time_limit_seconds"),
        )
    )
    return StepUse(
        name=name,
        jobs=len(jobs),
        allocations=len(allocations),
        unfinished=sorted(causes.items()),
        elapsed_seconds=sum(total["elapsed_seconds"] for total in totals),
        node_seconds=sum(total["node_seconds"] for total in totals),
        gpu_seconds=gpu_seconds,
        cpu_seconds=cpu_seconds,
        billed_unit_seconds=billed_unit_seconds,
        billed_share=None if gpu_seconds else _ratio(billed_unit_seconds, cpu_seconds),
        cpu_share=cpu_share,
        memory_share=memory and memory[0],
        gpu_share=gpu_share,
        time_share=time and time[0],
        slurm_joules=_sum([total["slurm_energy_joules"] for total in totals]),
        ear_joules=_sum([total["ear_energy_joules"] for total in totals]),
        unmeasured=sum(total["slurm_energy_joules"] is None and total["ear_energy_joules"] is None for total in totals),
        is_shared=any(job["whole_nodes"] is False for job in jobs),
        suggestions=_suggest_requests(cpu_share, gpu_share, allocations),
    )


def summarize_slurm_jobs(reader: RunReader) -> Efficiency | None:
    """Return the requests and use of Slurm jobs; None for a run without any."""
    if not reader.accounting:
        return None
    # Every cluster counts its jobs from 1. Accounting data of earlier versions name no cluster and match any.
    clusters: dict[str, set[str | None]] = {}
    for entry in reader.accounting:
        clusters.setdefault(entry.content["job"], set()).add(entry.content.get("cluster"))
    steps_of: dict[tuple[str | None, str], set[str]] = {}
    jobs: list[Attempt | Record] = [*reader.attempts, *reader.records]
    for job_file in jobs:
        slurm = job_file.slurm or {}
        if (job := slurm.get("slurm_job_id")) is not None:
            cluster, job_clusters = slurm.get("slurm_cluster_name"), clusters.get(job, set())
            matching = job_clusters & {cluster, None} if cluster else job_clusters
            for of_cluster in matching or {cluster}:
                steps_of.setdefault((of_cluster, job), set()).add(job_file.step)
    by_stage: dict[str, list[Json]] = {}
    for entry in reader.accounting:
        known = steps_of.get((entry.content.get("cluster"), entry.content["job"]))
        name = " + ".join(sorted(known)) if known else parse_step_name(entry.content["comment"])
        by_stage.setdefault(name, []).append(entry.content)
    busy = [
        value for metrics in reader.metrics for _, value in known_values_by_step(metrics.lines, "device_utilization")
    ]
    training = sum(busy) / len(busy) if busy else None
    all_jobs = [entry.content for entry in reader.accounting]
    return Efficiency(
        steps=[
            _summarize_jobs(name, jobs, training if SEGMENT_STEP in name else None)
            for name, jobs in sorted(by_stage.items())
        ],
        total=_summarize_jobs("all jobs", all_jobs),
        troubled=[
            entry
            for entry in reader.accounting
            if any(part["cause"] != "finished" for part in entry.content["allocations"])
        ],
        missing=len(steps_of.keys() - {(job.get("cluster"), job["job"]) for job in all_jobs}),
    )


LIBRARIES = ("torch", "cuda", "hip", "nccl")  # as the process of a training reports them
GIB = 2**30


class HostKind(NamedTuple):
    """Properties shared by machines of one kind; empty where not recorded."""

    processor: str
    gpus: str
    driver: str
    system: str
    image: str


@dataclass
class Machines:
    """The machines of one kind, their names, the records of the jobs on them, and one of these to look at."""

    kind: HostKind
    link: str
    hosts: set[str] = field(default_factory=set)
    jobs: int = 0


class LibraryDifference(NamedTuple):
    """A distribution that a platform has of its own: the version that computed, the lock's, and in how many jobs."""

    name: str
    installed: str
    locked: str
    jobs: int


def format_machine_gpus(node: Json) -> str:
    """Return the GPUs of a machine: how many of which, with their memory; nothing where it has none."""
    if node.get("gpus") is None and node.get("gpus_unknown"):
        return f"not known: {node['gpus_unknown']}"
    gpu_counts = Counter(
        f"{gpu['name']} ({gpu['memory_bytes'] / GIB:.0f} GiB)" if gpu.get("memory_bytes") else str(gpu["name"])
        for gpu in node.get("gpus") or []
    )
    return ", ".join(f"{number} × {name}" for name, number in sorted(gpu_counts.items()))


def format_processor(node: Json) -> str:
    """Return the processor of a machine by its own name, or its architecture, and its processors."""
    return f"{node.get('cpu_model') or node.get('architecture') or '?'}, {node.get('processors') or '?'} processors"


def _host_kind(node: Json, image: str) -> HostKind:
    runtimes = {"CUDA": node.get("driver_cuda"), "ROCm": node.get("driver_rocm")}
    driver = [node.get("driver"), *(f"{name} {version}" for name, version in runtimes.items() if version)]
    system = [f"{node.get('system') or ''} {node.get('kernel') or ''}".strip(), node.get("libc")]
    driver_text, system_text = (", ".join(str(part) for part in parts if part) for parts in (driver, system))
    return HostKind(format_processor(node), format_machine_gpus(node), driver_text, system_text, image)


def _list_nodes(record: Record) -> Iterator[tuple[str, Json]]:
    """Return the machines of a job: those of its processes where recorded, else that of the job."""
    nodes = record.counts.get("nodes")
    if isinstance(nodes, dict) and nodes:
        yield from nodes.items()
    elif record.machine:
        yield str(record.host or "?"), record.machine


def _format_image(record: Record, starts: dict[str, Json]) -> str:
    """Return the name of the image that a job computed in, with the sha256 that the start of the run gave it."""
    name = record.counts.get("container") or record.container
    if not name:
        return ""
    frozen = starts.get(record.frozen.path if record.frozen else "", {})
    sha256 = (frozen.get("image") or {}).get("sha256")
    return f"{name}, sha256 {sha256}" if sha256 else f"{name}, not hashed"


def group_machines(reader: RunReader) -> list[Machines]:
    """Return the kinds of machines of jobs with valid results, the most used first."""
    starts = {f"{layout.FROZEN}/{start.link.rsplit('/', 1)[-1]}": start.content for start in reader.starts}
    groups: dict[HostKind, Machines] = {}
    # The example is a record by itself where there is one: a browser opens it, and no ZIP file.
    for record in sorted(reader.records, key=lambda record: bool(record.archive)):
        kinds = set()
        for host, node in _list_nodes(record):
            kind = _host_kind(node, _format_image(record, starts))
            groups.setdefault(kind, Machines(kind, link_job(record))).hosts.add(host)
            kinds.add(kind)
        for kind in kinds:
            groups[kind].jobs += 1
    return sorted(groups.values(), key=lambda one: (-one.jobs, one.kind))


def list_libraries(segments: list[Record]) -> list[tuple[str, str]]:
    """Return what a model's processes computed with, such as PyTorch, CUDA and NCCL, as recorded by the processes."""
    versions: dict[str, list[str]] = {}
    for segment in segments:
        for name in LIBRARIES:
            value: Any = segment.counts.get(name)
            if value and str(value) not in versions.setdefault(name, []):
                versions[name].append(str(value))
    return [(name, ", ".join(values)) for name, values in versions.items() if values]


def list_environment_lock_differences(reader: RunReader) -> list[LibraryDifference]:
    """Return what was installed other than the lock says, where the platform's file allows it."""
    jobs: Counter[tuple[str, str, str]] = Counter()
    for record in reader.records:
        environment = record.environment or {}
        for name, locked in (environment.get("other_than_lock") or {}).items():
            jobs[name, str((environment.get("packages") or {}).get(name, "?")), str(locked)] += 1
    return [LibraryDifference(*key, number) for key, number in sorted(jobs.items())]
