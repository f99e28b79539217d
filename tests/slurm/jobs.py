"""A corpus of many small files read by many jobs, and its load on the login node, the nodes and Slurm."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import yaml

from pipeline.slurm.output_parsing import parse_seconds
from tests.conftest import new_project
from tests.slurm.cluster import ACCOUNT, Cluster

PLATFORM = """
name: loopback
devices: 1
partitions:
  cpu: {name: cpu, cpus: 8, memory_megabytes: 16000, minutes: 120}
"""
CLIENTS = ("sacct", "squeue", "sbatch")
# Record that a command was called, and call it.
COUNTED = '#!/bin/sh\necho {name} >> {calls}\nexec {command} "$@"\n'


def write_project(folder: Path, units: int, jobs: int, queue: int) -> None:
    """Write a project with one source of the given units and batches."""
    new_project(folder)
    (folder / "workflow/platforms/loopback.yaml").write_text(PLATFORM)
    (folder / "data").mkdir()
    text = 100 * " Het is mooi weer."  # enough for a tokenizer
    for number in range(units):
        (folder / f"data/{number}.txt").write_text(f"Brief {number}.{text}")
    rights = {"basis": "public-domain", "holder": "nobody"}
    source = {"name": "many", "path": "data/*.txt", "language": "nl", "license": "CC0-1.0", "rights": rights}
    configuration = {
        "run": {"name": "many"},
        "platform": "loopback",
        "slurm": {"account": ACCOUNT, "queue": queue},
        "sources": [{**source, "units": units, "units_per_job": max(units // jobs, 1)}],
    }
    (folder / "many.yaml").write_text(yaml.safe_dump(configuration))


def accounted(cluster: Cluster, name: str) -> list[list[str]]:
    """Return the seconds and CPU seconds of each job of a name, as printed by sacct."""
    fields = ("--noheader", "--parsable2", "--starttime=now-12hours", "--format=JobID,ElapsedRaw,TotalCPU")
    rows = (line.split("|") for line in cluster.ask("sacct", f"--name={name}", *fields).splitlines())
    return [row[1:] for row in rows if "." not in row[0]]


def measure(
    cluster: Cluster, folder: Path, units: int, jobs: int, queue: int, seconds_between: int = 10
) -> dict[str, Any]:
    """Read a corpus of that many units in that many jobs and return its cost.

    Returns:
        jobs made, seconds, CPU seconds and peak memory in bytes of the login node, the longest queue, calls of each
        command, and of the jobs on the nodes the median seconds and CPU seconds.
    """
    write_project(folder, units, jobs, queue)
    (folder / "bin").mkdir()
    calls = folder / "called"
    calls.touch()
    for name in CLIENTS:
        client = folder / "bin" / name
        client.write_text(COUNTED.format(name=name, calls=calls, command=cluster.folder / "bin" / name))
        client.chmod(0o755)
    polling = [f"--seconds-between-status-checks={seconds_between}", "--retries=0"]
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "sources",
        "--profile",
        "slurm",
        *polling,
        "--configfile",
        "many.yaml",
    ]
    environment = cluster.environment()
    environment["PATH"] = f"{folder}/bin:{environment['PATH']}"
    began, longest, peak_bytes, cpu_seconds = time.monotonic(), 0, 0, 0.0
    with (folder / "log").open("w") as log:
        run = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        process = psutil.Process(run.pid)
        try:
            while run.poll() is None:
                longest = max(longest, len(cluster.jobs()))
                with contextlib.suppress(psutil.Error):
                    peak_bytes = max(peak_bytes, process.memory_info().rss)
                    times = process.cpu_times()
                    cpu_seconds = times.user + times.system + times.children_user + times.children_system
                time.sleep(0.5)
        finally:
            run.kill()
            run.wait()
    seconds = time.monotonic() - began
    (name,) = (path.name for path in (folder / ".snakemake/allocations").iterdir())
    rows = accounted(cluster, name)
    return {
        "exit_code": run.returncode,
        "jobs": len([*(folder / "results/many/provenance/batches").glob("sources.fingerprint.*")]),
        "seconds": round(seconds, 1),
        "login_cpu_seconds": round(cpu_seconds, 1),
        "login_peak_memory_bytes": peak_bytes,
        "longest_queue": longest,
        **dict(Counter(calls.read_text().split())),
        "job_seconds_median": statistics.median(float(elapsed) for elapsed, _ in rows),
        "job_cpu_seconds_median": round(statistics.median(parse_seconds(cpu) for _, cpu in rows), 2),
        "job_cpu_seconds_sum": round(sum(parse_seconds(cpu) for _, cpu in rows), 1),
    }
