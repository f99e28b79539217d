"""Prepare Snakemake jobs for Slurm: command, request of each attempt, and packing into allocations.

Jobs share an allocation if the smallest billed one is larger than their requests. A retry gets more memory if memory
was the cause of the failure, more time if time was. A job that was preempted, canceled, lost with its node or that
crashed keeps its request, because a larger one would wait longer. Snakemake only counts failures; Slurm knows their
causes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.slurm.executor import snakemake_private
from pipeline.slurm.executor.allocation_runner import AllocationTask
from pipeline.slurm.executor.host_interface import Cause

ONE_TASK = ("--export=ALL", "--nodes=1", "--ntasks=1")
EXCLUSIVE_RESOURCES = {"mpi", "gres", "nodes"}  # of these a job has its allocation to itself
SHARED_OPTIONS = ("slurm_account", "qos", "constraint", "reservation", "slurm_extra")  # equal within an allocation
THREAD_LIBRARIES = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB", "GOTO")
MAX_MINUTES_RATIO = 4  # longest to shortest time limit in a group, because the group ends with its longest job
GROWTH_FACTOR = 2.0  # of each failure by memory or by time

_causes: dict[str, Counter[Cause]] = {}  # of the jobs of this process, by name; filled by the executor


@dataclass(frozen=True)
class ResourceRequest:
    """The request of one job, and the smallest allocation of its partition; None if the platform's file has none.

    `options` are the options of sbatch that all jobs of an allocation must share.
    """

    partition: str
    cpus: int
    memory_megabytes: int
    minutes: int
    allocation_cpus: int | None
    allocation_memory_megabytes: int | None
    alone: bool = False
    options: tuple[str, ...] = ()


def count_smallest_allocations(cpus: int, memory_megabytes: int, of_cpus: int, of_memory_megabytes: int | None) -> int:
    """Return the number of smallest allocations that hold these cores and this memory."""
    by_memory = -(-memory_megabytes // of_memory_megabytes) if of_memory_megabytes else 0
    return max(-(-cpus // of_cpus), by_memory, 1)


def pack_jobs(requests: Sequence[ResourceRequest]) -> list[list[int]]:
    """Group requests into allocations; return the indices of the requests of each group.

    A group has the smallest allocations that its largest job needs, and others join while they fit. The longest come
    first, so that jobs with similar time limits share a group, because the longest time is billed. A job has a group of
    its own if it asks for it, and if its partition bills exact requests.
    """
    groups: list[list[int]] = []
    open_groups: dict[tuple[Any, ...], list[tuple[list[int], int, int | None]]] = {}
    by_size = sorted(range(len(requests)), key=lambda n: (-requests[n].minutes, -requests[n].cpus, n))
    for number in by_size:
        request = requests[number]
        size, memory = request.allocation_cpus, request.allocation_memory_megabytes
        if request.alone or size is None:
            groups.append([number])
            continue
        candidates = open_groups.setdefault((request.partition, request.options, size, memory), [])
        for group, cpus, megabytes in candidates:
            joined = [*(requests[other] for other in group), request]
            if (
                requests[group[0]].minutes <= MAX_MINUTES_RATIO * request.minutes
                and sum(job.cpus for job in joined) <= cpus
                and (megabytes is None or sum(job.memory_megabytes for job in joined) <= megabytes)
            ):
                group.append(number)
                break
        else:
            count = count_smallest_allocations(request.cpus, request.memory_megabytes, size, memory)
            groups.append([number])
            candidates.append((groups[-1], count * size, memory and count * memory))
    return sorted(sorted(group) for group in groups)


def make_resource_request(resources: Mapping[str, Any]) -> ResourceRequest:
    """Return the request of a job with these resources of Snakemake."""
    return ResourceRequest(
        partition=resources.get("slurm_partition", ""),
        cpus=resources["cpus_per_task"],
        memory_megabytes=resources.get("mem_mb", 0),
        minutes=resources.get("runtime", 0),
        allocation_cpus=resources.get("allocation_cpus"),
        allocation_memory_megabytes=resources.get("allocation_mem_mb"),
        alone=not EXCLUSIVE_RESOURCES.isdisjoint(resources),
        options=tuple(str(resources.get(key) or "") for key in SHARED_OPTIONS),
    )


@dataclass(frozen=True)
class PreparedJob:
    """A Snakemake job that is ready for submission."""

    job: Any
    task: AllocationTask
    resources: dict[str, Any]
    request: ResourceRequest
    log: Path


def prepare_job(job: Any, prefix: str, logs: Path, *, modules: bool) -> PreparedJob:
    """Prepare a Snakemake job for Slurm.

    Args:
        job: Snakemake's job, with its current command and resources.
        prefix: the first words of its command.
        logs: the folder of Slurm's logs.
        modules: whether it loads its environment modules.
    """
    wildcards = [str(value) for value in job.wildcards]
    resources = {"cpus_per_task": job.threads, **dict(job.resources.items())}
    starts_its_own = bool(resources.get("mpi"))  # a training over several processes calls srun by itself
    threads = job.threads if starts_its_own else min(job.threads, resources["cpus_per_task"])
    task = AllocationTask(
        what=job_comment(job.rule.name, wildcards),
        command=snakemake_private.shell_command(job, prefix, modules=modules),
        srun=[] if starts_its_own else ["srun", *ONE_TASK, f"--cpus-per-task={resources['cpus_per_task']}"],
        environment={
            **{f"{library}_NUM_THREADS": str(threads) for library in THREAD_LIBRARIES},
            "RAYON_NUM_THREADS": str(resources["cpus_per_task"]),
        },
        outputs=[str(path) for path in job.output],
    )
    log = logs / f"rule_{job.rule.name}" / "_".join(wildcards) / "%j.log"
    return PreparedJob(job, task, resources, make_resource_request(resources), log)


def allocation_resources(group: list[PreparedJob]) -> dict[str, Any]:
    """Return the resources of an allocation: the sum of its jobs, rounded up to the smallest billed allocation."""
    first = group[0]
    cpus, megabytes = (sum(getattr(one.request, key) for one in group) for key in ("cpus", "memory_megabytes"))
    size, of_megabytes = first.request.allocation_cpus, first.request.allocation_memory_megabytes
    if size and not first.request.alone:
        count = count_smallest_allocations(cpus, megabytes, size, of_megabytes)
        cpus, megabytes = count * size, max(megabytes, count * (of_megabytes or 0))
    elif share := first.resources.get("cpu_mem_mb"):  # jobs name no memory: as many cores as bring it
        tasks_of_node = max((first.resources.get("tasks") or 1) // (first.resources.get("nodes") or 1), 1)
        cpus = max(cpus, -(-megabytes // (share * tasks_of_node)))
    minutes = max(one.request.minutes for one in group)
    return {**first.resources, "cpus_per_task": cpus, "mem_mb": megabytes, "runtime": minutes}


def split_allocation_into_tasks(group: list[PreparedJob]) -> list[AllocationTask]:
    """Return the tasks of an allocation, each with its share of it."""
    first = group[0]
    if len(group) == 1 and first.task.srun and first.resources.get("cpu_mem_mb"):
        # Where memory follows the cores, that of a step does too, unless it asks for all of the allocation's.
        return [replace(first.task, srun=[*first.task.srun, "--mem=0"])]
    if len(group) == 1:
        return [first.task]
    shares = ["--exact"]
    return [replace(one.task, srun=[*one.task.srun, *shares, f"--mem={one.request.memory_megabytes}"]) for one in group]


@dataclass(frozen=True)
class RequestGrowth:
    memory: float = 1.0
    time: float = 1.0


def job_comment(rule: str, wildcards: Iterable[str]) -> str:
    """Return the name of a job in Slurm's comments: its rule and its wildcards, in their order."""
    values = "_".join(wildcards).replace("/", "_")
    return f"rule_{rule}_wildcards_{values}" if values else f"rule_{rule}"


def record_failure(name: str, cause: Cause) -> None:
    """Record why a job failed, before Snakemake asks for its next request."""
    _causes.setdefault(name, Counter())[cause] += 1


def compute_request_growth(rule: str, wildcards: Iterable[str], attempt: int) -> RequestGrowth:
    """Return the growth of a job's memory and time at this attempt.

    Each failure for lack of memory doubles the memory, each timeout doubles the time; other failures change nothing. No
    command is run, because Snakemake's main loop waits.
    """
    if attempt == 1:
        return RequestGrowth()
    causes = _causes.get(job_comment(rule, wildcards), Counter())
    return RequestGrowth(memory=GROWTH_FACTOR ** causes["memory"], time=GROWTH_FACTOR ** causes["time"])
