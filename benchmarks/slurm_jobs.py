"""What many jobs of a run ask of the login node, of the nodes and of Slurm: memory, core-seconds, questions.

    PYTHONPATH=. python benchmarks/slurm_jobs.py --units 10000 --jobs 2000 --queue 100 [--file-calls]

Brings up the cluster of the tests and reads a corpus of that many small files with `snakemake sources --profile slurm`,
as a user does: nearly all that its jobs do is start. `--file-calls` counts those of one job's start by strace.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.run import copy_project
from pipeline.slurm.sacct import seconds_of
from tests.slurm.cluster import ACCOUNT, Cluster

PLATFORM = """
name: loopback
devices: 1
partitions:
  cpu: {name: cpu, cpus: 8, memory_megabytes: 16000, minutes: 120}
"""
CLIENTS = ("sacct", "squeue", "sbatch")
# Writes down that a command was called, and calls it.
COUNTED = '#!/bin/sh\necho {name} >> {calls}\nexec {command} "$@"\n'


def write_project(folder: Path, units: int, jobs: int, queue: int) -> None:
    """Write a project whose only source has so many units, in so many batches."""
    copy_project(folder)
    (folder / "slurm").symlink_to("workflow/profiles/slurm")
    (folder / "workflow/platforms/loopback.yaml").write_text(PLATFORM)
    (folder / "data").mkdir()
    for number in range(units):
        (folder / f"data/{number}.txt").write_text(f"Brief {number}.")
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
    """Return, of each job of a name, its seconds and its CPU seconds, in the words of sacct."""
    fields = ("--noheader", "--parsable2", "--starttime=now-12hours", "--format=JobID,ElapsedRaw,TotalCPU")
    rows = (line.split("|") for line in cluster.ask("sacct", f"--name={name}", *fields).splitlines())
    return [row[1:] for row in rows if "." not in row[0]]


def file_calls(cluster: Cluster, project: Path) -> int:
    """Return the file calls of one job that does its work again, counted by strace."""
    (file, *_) = sorted((project / ".snakemake/allocations").glob("*/*.json"))
    (task,) = json.loads(file.read_text())
    for name in task["outputs"]:
        (project / name).unlink()
    table = project / "calls"
    traced = ["strace", "-f", "-c", "-e", "trace=%file", "-o", str(table), "bash", "-c", task["command"]]
    environment = {**cluster.environment(), **task["environment"]}
    subprocess.run(traced, cwd=project, env=environment, check=True, capture_output=True)
    return int(re.findall(r"(\d+)(?: +\d+)? total", table.read_text())[0])


def measure(
    cluster: Cluster, folder: Path, units: int, jobs: int, queue: int, seconds_between: int = 10
) -> dict[str, Any]:
    """Read a corpus of that many units in that many jobs and return what it took.

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
        "job_cpu_seconds_median": round(statistics.median(seconds_of(cpu) for _, cpu in rows), 2),
        "job_cpu_seconds_sum": round(sum(seconds_of(cpu) for _, cpu in rows), 1),
    }


def main() -> int:
    """Print the figures; return 1 if a job is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--queue", type=int, default=100)
    parser.add_argument("--file-calls", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    cluster = Cluster(folder / "cluster")
    cluster.folder.mkdir()
    try:
        cluster.start()
        figures = measure(cluster, folder / "project", options.units, options.jobs, options.queue)
        if options.file_calls:
            figures["job_file_calls"] = file_calls(cluster, folder / "project")
    finally:
        cluster.stop()
    print(json.dumps(figures, indent=1))
    if figures["exit_code"]:
        print(f"it failed: see {shlex.quote(str(folder / 'project/log'))}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
