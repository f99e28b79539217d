"""Memory, core-seconds and Slurm queries of many small jobs, on the login node, the nodes and Slurm.

    PYTHONPATH=. python benchmarks/slurm_jobs.py --units 10000 --jobs 2000 --queue 100 [--file-calls]

Starts the tests' cluster and reads a corpus of that many small files with `snakemake sources --profile slurm`. The
jobs do little more than start. `--file-calls` counts those of one job's start-up by strace.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.slurm.cluster import Cluster
from tests.slurm.jobs import measure


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
