"""A job of Snakemake as Slurm gets it: its command, its share of an allocation, and the allocation of several."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.slurm import retry
from pipeline.slurm.allocation import Task
from pipeline.slurm.packing import Request, allocations

STEP = ("--nodes=1", "--ntasks=1")
SPECIAL = {"mpi", "gres", "nodes", "constraint", "qos"}  # of these a job has its allocation to itself
THREADS = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB", "GOTO")


@dataclass(frozen=True)
class Ready:
    """A job of Snakemake that waits for its submission."""

    job: Any
    task: Task
    resources: dict[str, Any]
    request: Request
    log: Path


def prepared(job: Any, prefix: str, logs: Path, *, modules: bool) -> Ready:
    """Return what a job of Snakemake is to Slurm.

    Args:
        job: Snakemake's job, whose command and resources are those of this moment.
        prefix: what its command begins with.
        logs: the folder of Slurm's logs.
        modules: whether it loads its environment modules.
    """
    wildcards = [str(value) for value in job.wildcards]
    resources = {"cpus_per_task": job.threads, **dict(job.resources.items())}
    command = f"{prefix}{job.shellcmd}"
    if modules and job.env_modules:
        command = job.env_modules.shellcmd(command)
    starts_its_own = bool(resources.get("mpi"))  # a training over several processes calls srun by itself
    threads = job.threads if starts_its_own else min(job.threads, resources["cpus_per_task"])
    task = Task(
        what=retry.what(job.rule.name, wildcards),
        command=command,
        srun=[] if starts_its_own else ["srun", *STEP, f"--cpus-per-task={resources['cpus_per_task']}"],
        environment={
            **{f"{library}_NUM_THREADS": str(threads) for library in THREADS},
            "RAYON_NUM_THREADS": str(resources["cpus_per_task"]),
        },
        outputs=[str(path) for path in job.output],
    )
    request = Request(
        partition=resources.get("slurm_partition", ""),
        cpus=resources["cpus_per_task"],
        memory_megabytes=resources.get("mem_mb", 0),
        minutes=resources.get("runtime", 0),
        allocation_cpus=resources.get("allocation_cpus"),
        allocation_memory_megabytes=resources.get("allocation_mem_mb"),
        alone=not SPECIAL.isdisjoint(resources),
    )
    log = logs / f"rule_{job.rule.name}" / "_".join(wildcards) / "%j.log"
    return Ready(job, task, resources, request, log)


def whole(group: list[Ready]) -> dict[str, Any]:
    """Return the resources of an allocation: what its jobs need together, or the smallest that is billed anyway."""
    first = group[0]
    cpus, megabytes = (sum(getattr(one.request, key) for one in group) for key in ("cpus", "memory_megabytes"))
    size, of_megabytes = first.request.allocation_cpus, first.request.allocation_memory_megabytes
    if size and not first.request.alone:
        count = allocations(cpus, megabytes, size, of_megabytes)
        cpus, megabytes = count * size, max(megabytes, count * (of_megabytes or 0))
    minutes = max(one.request.minutes for one in group)
    return {**first.resources, "cpus_per_task": cpus, "mem_mb": megabytes, "runtime": minutes}


def side_by_side(group: list[Ready]) -> list[Task]:
    """Return the tasks of an allocation, each with its share of it."""
    if len(group) == 1:
        return [group[0].task]
    shares = ["--exact"]
    return [replace(one.task, srun=[*one.task.srun, *shares, f"--mem={one.request.memory_megabytes}"]) for one in group]
