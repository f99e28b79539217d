"""A job of Snakemake as Slurm gets it: its command, its request at each attempt, and who shares its allocation.

Jobs share one where the smallest allocation that is billed is larger than what they ask for. A job that is tried again
asks for more memory if memory was the cause, more time if time was. One that was preempted, cancelled, lost with its
node or that crashed gets the same again: more would only make it wait longer. Attempts alone tell nothing, since
Snakemake counts all failures alike; Slurm tells the cause of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.slurm.executor import snakemake_private
from pipeline.slurm.executor.allocation import AllocationTask
from pipeline.slurm.executor.interface import Cause

ONE_TASK = ("--nodes=1", "--ntasks=1")
UNSHARED = {"mpi", "gres", "nodes", "constraint", "qos"}  # of these a job has its allocation to itself
THREAD_LIBRARIES = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB", "GOTO")
SIMILAR = 4  # a job joins one that may last so many times as long, not longer: a group ends with its longest
GROWTH_FACTOR = 2.0  # of each failure by memory or by time

_causes: dict[str, Counter[Cause]] = {}  # of this process's jobs, by what they are; told by the executor


@dataclass(frozen=True)
class ResourceRequest:
    """What one job asks for, and the smallest allocation of its partition; None where the platform's file has none."""

    partition: str
    cpus: int
    memory_megabytes: int
    minutes: int
    allocation_cpus: int | None
    allocation_memory_megabytes: int | None
    alone: bool = False


def count_allocations(cpus: int, memory_megabytes: int, of_cpus: int, of_memory_megabytes: int | None) -> int:
    """Return how many smallest allocations hold so many cores and so much memory."""
    by_memory = -(-memory_megabytes // of_memory_megabytes) if of_memory_megabytes else 0
    return max(-(-cpus // of_cpus), by_memory, 1)


def pack_jobs(requests: Sequence[ResourceRequest]) -> list[list[int]]:
    """Return the numbers of the requests that run side by side, group by group, all of them once.

    A group is billed as many smallest allocations as its largest job needs, and others join it as long as they fit in
    there. The longest come first, so that jobs of like time limits lie together: what is billed is the longest's time.
    A job is by itself where it asks to be, and where its partition bills what is asked for.
    """
    groups: list[list[int]] = []
    open_groups: dict[tuple[str, int, int | None], list[tuple[list[int], int, int | None]]] = {}
    by_size = sorted(range(len(requests)), key=lambda n: (-requests[n].minutes, -requests[n].cpus, n))
    for number in by_size:
        request = requests[number]
        size, memory = request.allocation_cpus, request.allocation_memory_megabytes
        if request.alone or size is None:
            groups.append([number])
            continue
        candidates = open_groups.setdefault((request.partition, size, memory), [])
        for group, cpus, megabytes in candidates:
            joined = [*(requests[other] for other in group), request]
            if (
                requests[group[0]].minutes <= SIMILAR * request.minutes
                and sum(job.cpus for job in joined) <= cpus
                and (megabytes is None or sum(job.memory_megabytes for job in joined) <= megabytes)
            ):
                group.append(number)
                break
        else:
            count = count_allocations(request.cpus, request.memory_megabytes, size, memory)
            groups.append([number])
            candidates.append((groups[-1], count * size, memory and count * memory))
    return sorted(sorted(group) for group in groups)


@dataclass(frozen=True)
class PreparedJob:
    """A job of Snakemake that waits for its submission."""

    job: Any
    task: AllocationTask
    resources: dict[str, Any]
    request: ResourceRequest
    log: Path


def prepare_job(job: Any, prefix: str, logs: Path, *, modules: bool) -> PreparedJob:
    """Return what a job of Snakemake is to Slurm.

    Args:
        job: Snakemake's job, whose command and resources are those of this moment.
        prefix: what its command begins with.
        logs: the folder of Slurm's logs.
        modules: whether it loads its environment modules.
    """
    wildcards = [str(value) for value in job.wildcards]
    resources = {"cpus_per_task": job.threads, **dict(job.resources.items())}
    starts_its_own = bool(resources.get("mpi"))  # a training over several processes calls srun by itself
    threads = job.threads if starts_its_own else min(job.threads, resources["cpus_per_task"])
    task = AllocationTask(
        what=job_name(job.rule.name, wildcards),
        command=snakemake_private.shell_command(job, prefix, modules=modules),
        srun=[] if starts_its_own else ["srun", *ONE_TASK, f"--cpus-per-task={resources['cpus_per_task']}"],
        environment={
            **{f"{library}_NUM_THREADS": str(threads) for library in THREAD_LIBRARIES},
            "RAYON_NUM_THREADS": str(resources["cpus_per_task"]),
        },
        outputs=[str(path) for path in job.output],
    )
    request = ResourceRequest(
        partition=resources.get("slurm_partition", ""),
        cpus=resources["cpus_per_task"],
        memory_megabytes=resources.get("mem_mb", 0),
        minutes=resources.get("runtime", 0),
        allocation_cpus=resources.get("allocation_cpus"),
        allocation_memory_megabytes=resources.get("allocation_mem_mb"),
        alone=not UNSHARED.isdisjoint(resources),
    )
    log = logs / f"rule_{job.rule.name}" / "_".join(wildcards) / "%j.log"
    return PreparedJob(job, task, resources, request, log)


def allocation_resources(group: list[PreparedJob]) -> dict[str, Any]:
    """Return the resources of an allocation: what its jobs need together, or the smallest that is billed anyway."""
    first = group[0]
    cpus, megabytes = (sum(getattr(one.request, key) for one in group) for key in ("cpus", "memory_megabytes"))
    size, of_megabytes = first.request.allocation_cpus, first.request.allocation_memory_megabytes
    if size and not first.request.alone:
        count = count_allocations(cpus, megabytes, size, of_megabytes)
        cpus, megabytes = count * size, max(megabytes, count * (of_megabytes or 0))
    minutes = max(one.request.minutes for one in group)
    return {**first.resources, "cpus_per_task": cpus, "mem_mb": megabytes, "runtime": minutes}


def allocation_tasks(group: list[PreparedJob]) -> list[AllocationTask]:
    """Return the tasks of an allocation, each with its share of it."""
    if len(group) == 1:
        return [group[0].task]
    shares = ["--exact"]
    return [replace(one.task, srun=[*one.task.srun, *shares, f"--mem={one.request.memory_megabytes}"]) for one in group]


@dataclass(frozen=True)
class RequestGrowth:
    """By what to multiply the first request."""

    memory: float = 1.0
    time: float = 1.0


def job_name(rule: str, wildcards: Iterable[str]) -> str:
    """Return the name of a job in Slurm's comments: its rule and its wildcards, in their order."""
    values = "_".join(wildcards).replace("/", "_")
    return f"rule_{rule}_wildcards_{values}" if values else f"rule_{rule}"


def record_failure(name: str, cause: Cause) -> None:
    """Remember why a job failed, before Snakemake asks for its next request."""
    _causes.setdefault(name, Counter())[cause] += 1


def request_growth(rule: str, wildcards: Iterable[str], attempt: int) -> RequestGrowth:
    """Return by how much a job's memory and time grow at this attempt.

    Each attempt that ended for lack of memory doubles the memory, each that ran out of time doubles the time; any other
    end changes nothing. Nobody is asked: Snakemake's main loop waits for the answer.
    """
    if attempt == 1:
        return RequestGrowth()
    causes = _causes.get(job_name(rule, wildcards), Counter())
    return RequestGrowth(memory=GROWTH_FACTOR ** causes["memory"], time=GROWTH_FACTOR ** causes["time"])
