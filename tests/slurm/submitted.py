"""Allocations of the project's own, submitted without Snakemake."""

from __future__ import annotations

from pathlib import Path

from pipeline.slurm.executor import allocation_runner
from pipeline.slurm.executor.allocation_runner import AllocationTask
from tests.slurm.cluster import Cluster

ROOT = Path(__file__).parents[2]
STEP = ["srun", "--nodes=1", "--ntasks=1", "--cpus-per-task=1"]


def submit(cluster: Cluster, folder: Path, tasks: list[AllocationTask], *options: str) -> str:
    """Submit an allocation as the executor does and return its number; its file is FOLDER/allocation.json."""
    path, script = folder / "allocation.json", folder / "allocation.sh"
    script.write_text(allocation_runner.format_batch_script(path, allocation_runner.write_allocation(path, tasks)))
    words = ["sbatch", "--parsable", "--requeue", "--open-mode=append", f"--chdir={ROOT}"]
    return cluster.ask(*words, *options, str(script))
