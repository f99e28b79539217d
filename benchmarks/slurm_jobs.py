"""What many small jobs through Slurm ask of the login node and of Slurm: memory, length of the queue, questions.

    PYTHONPATH=. python benchmarks/slurm_jobs.py --jobs 2000 --queue 100 [--inside touch]

Brings up the cluster of the tests and runs a Snakefile of one tiny rule with the project's profile. The jobs are real
jobs of Slurm. `--inside touch` leaves out the Snakemake that starts inside of each of them, which takes 3 CPU seconds
on the nodes, here the same machine, and changes nothing on the login node.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from tests.slurm.cluster import Cluster

ROOT = Path(__file__).parents[1]
SNAKEFILE = """
import sys
from pathlib import Path
from snakemake.logging import logger
sys.path.insert(0, {root!r})
from pipeline.slurm import executor
from pipeline.slurm.queue import limit
from pipeline.slurm.settings import Slurm

limit(workflow, {queue})

onstart:
    executor.prepare(workflow, Path("run"), Slurm(), logger.warning)

rule all:
    input:
        expand("made/{{number}}", number=range({jobs})),

rule tiny:
    output:
        "made/{{number}}",
    resources:
        mem_mb=100,
        runtime=5,
    shell:
        "touch {{output}}"
"""
CLIENTS = ("sacct", "squeue", "sbatch")
# Writes down that a command was called, and calls it.
COUNTED = '#!/bin/bash\necho {name} $(date +%s.%N) >> {calls}\n{change}exec {command} "$@"\n'
# What the job does instead of starting Snakemake: its number stands at the end of its comment.
TOUCH = """args=()
for word in "$@"; do
    [ "$last" = --comment ] && number=${word##*_}
    case "$word" in --wrap=*) word="--wrap=mkdir -p made; touch made/$number";; esac
    args+=("$word"); last=$word
done
set -- "${args[@]}"
"""


def measure(
    cluster: Cluster, folder: Path, jobs: int, queue: int, inside: str, seconds_between: int = 5
) -> dict[str, float]:
    """Run that many jobs and return what they took.

    Returns:
        jobs made, seconds, longest queue, the login node's peak memory in bytes, calls of each command, and the fewest
        seconds between two calls of sacct (infinite for one or none).
    """
    (folder / "bin").mkdir(parents=True)
    calls = folder / "calls"
    calls.touch()
    for name in CLIENTS:
        client = folder / "bin" / name
        change = TOUCH if inside == "touch" and name == "sbatch" else ""
        client.write_text(COUNTED.format(name=name, calls=calls, change=change, command=cluster.folder / "bin" / name))
        client.chmod(0o755)
    (folder / "Snakefile").write_text(SNAKEFILE.format(root=str(ROOT), jobs=jobs, queue=queue))
    profile = ROOT / "workflow" / "profiles" / "slurm"
    polling = [f"--slurm-init-seconds-before-status-checks={seconds_between}", "--seconds-between-status-checks=1"]
    command = [sys.executable, "-m", "snakemake", "--profile", str(profile), *polling, "--retries=0", "--quiet", "all"]
    environment = cluster.environment()
    environment["PATH"] = f"{folder}/bin:{environment['PATH']}"
    began, longest, peak_bytes = time.monotonic(), 0, 0
    with (folder / "log").open("w") as log:
        run = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        process = psutil.Process(run.pid)
        try:
            while run.poll() is None:
                longest = max(longest, len(cluster.jobs()))
                with contextlib.suppress(psutil.Error):
                    peak_bytes = max(peak_bytes, process.memory_info().rss)
                time.sleep(0.2)
        finally:
            run.kill()
            run.wait()
    called = [line.split() for line in calls.read_text().splitlines()]
    asked = [float(moment) for name, moment in called if name == "sacct"]
    made = len([*(folder / "made").glob("*")]) if (folder / "made").is_dir() else 0
    return {
        "jobs": made,
        "seconds": round(time.monotonic() - began, 1),
        "longest_queue": longest,
        "peak_memory_bytes": peak_bytes,
        **dict(Counter(name for name, _ in called)),
        "seconds_between_sacct": min((b - a for a, b in itertools.pairwise(asked)), default=float("inf")),
    }


def main() -> int:
    """Print the figures; return 1 where a job is missing or more than the queue's limit were in it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--queue", type=int, default=100)
    parser.add_argument("--inside", choices=("snakemake", "touch"), default="snakemake")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    cluster = Cluster(folder / "c")
    (folder / "c").mkdir()
    try:
        cluster.start()
        figures = measure(cluster, folder / "run", options.jobs, options.queue, options.inside)
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"processors": os.cpu_count(), **figures}))
    return int(figures["jobs"] < options.jobs or figures["longest_queue"] > options.queue)


if __name__ == "__main__":
    sys.exit(main())
