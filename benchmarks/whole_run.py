"""Seconds of a run from nothing, without installation, and peak memory of all its processes together.

    python benchmarks/whole_run.py CONFIG FOLDER [KEY=VALUE …]

The benchmark copies the project into FOLDER, which must not exist; the results stay there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
PARTS = ("Snakefile", "rules", "workflow", "pipeline", "envs", "config", "local")
SAMPLE_SECONDS = 0.5


def memory_bytes(process: psutil.Process) -> int:
    """Return the proportional memory (PSS) of a process and all below it: shared pages count once."""
    total = 0
    for member in [process, *process.children(recursive=True)]:
        try:
            total += member.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total


def copy_project(target: Path) -> None:
    """Copy what a run needs into a new folder."""
    target.mkdir(parents=True)
    for part in PARTS:
        source = ROOT / part
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, target / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target / part, follow_symlinks=False)


def main(configuration: str, folder: str, *pairs: str) -> int:
    """Run the configuration in the folder and print seconds, cores and peak memory; return Snakemake's exit code."""
    target = Path(folder)
    copy_project(target)
    command = [sys.executable, "-m", "snakemake", "--profile", "local", "--configfile", configuration]
    command += ["--config", *pairs] if pairs else []
    start, peak_bytes = time.monotonic(), 0
    with subprocess.Popen(command, cwd=target, env={**os.environ, "DS_ACCELERATOR": "cpu"}) as run:
        process = psutil.Process(run.pid)
        while run.poll() is None:
            try:
                peak_bytes = max(peak_bytes, memory_bytes(process))
            except psutil.NoSuchProcess:
                break
            time.sleep(SAMPLE_SECONDS)
    seconds = time.monotonic() - start
    cores = len(os.sched_getaffinity(0))
    print(f"{configuration}: {seconds:.0f} s on {cores} cores, exit code {run.returncode}")
    print(f"peak memory of all processes: {peak_bytes / 1e9:.2f} GB")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
