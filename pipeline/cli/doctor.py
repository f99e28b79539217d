"""What `polder doctor` looks at: Python, packages, GPUs, Slurm and disks of this machine, and what to do about each."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pipeline.cli.snakemake_command import find_cache_variable
from pipeline.core.errors import InputError
from pipeline.job.environment_lock_comparison import find_environment_problems
from pipeline.slurm.site_checks import check_commands, run_command

NEEDED_BYTES = 6_000_000_000
"""Free space that the environment and the demo need."""
GPU_QUERIES = {
    "cuda": ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"),
    "rocm": ("rocm-smi", "--showproductname", "--csv"),
}
SHOWN_PACKAGES = 3


class Finding(NamedTuple):
    """One line: what was looked at, whether it is right (None where it is not needed), and what to do."""

    subject: str
    ok: bool | None
    found: str
    advice: str = ""

    def __str__(self) -> str:
        mark = {True: "ok", False: "PROBLEM", None: "-"}[self.ok]
        return f"{mark:<8} {self.subject:<10} {self.found}" + (f"\n{'':<19} do: {self.advice}" if self.advice else "")


def check_machine(lock: str, results: Path) -> Iterator[Finding]:
    """Yield what this machine has, one part after the other.

    Args:
        lock: the lock of envs/ that the packages are compared with, without its ending.
        results: the folder of the results; it need not exist.
    """
    version = platform.python_version()
    yield Finding("Python", sys.version_info >= (3, 11), f"{version} in {sys.prefix}", _python_upgrade_advice())
    yield from _check_packages(lock)
    yield from _check_gpus(lock)
    yield from _check_slurm()
    yield from (_check_disk_space(subject, folder) for subject, folder in (("disk", Path.cwd()), ("results", results)))
    if variable := find_cache_variable(Path.cwd()):
        advice = f"export {variable}; polder run does so"
        yield Finding("home", False, "Snakemake's cache in the home folder cannot be written", advice)
    compiler = next(filter(None, map(shutil.which, ("g++", "c++"))), None)
    advice = "" if compiler else "install g++: torch.compile and DeepSpeed's CPU optimizers need it"
    yield Finding("compiler", compiler is not None, compiler or "no C++ compiler", advice)
    image = next(filter(None, map(shutil.which, ("apptainer", "singularity"))), None)
    yield Finding("container", True if image else None, image or "no apptainer; only platforms with an image need it")


def _python_upgrade_advice() -> str:
    return "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer, then make install PYTHON=…"


def _check_packages(lock: str) -> Iterator[Finding]:
    try:
        problems = [*find_environment_problems(lock, None, deep=False)]
    except InputError as error:
        yield Finding("packages", False, str(error), "name a lock of envs/ with --lock")
        return
    for problem in problems[:SHOWN_PACKAGES]:
        what, _, advice = problem.partition(": ")
        yield Finding("packages", False, what, advice.partition(", or, where")[0])
    if more := problems[SHOWN_PACKAGES:]:
        yield Finding("packages", False, f"{len(more)} more differ from envs/{lock}.lock", "polder environment")
    if not problems:
        yield Finding("packages", True, f"as envs/{lock}.lock says")


def _check_gpus(lock: str) -> Iterator[Finding]:
    has_gpu = False
    for kind, words in GPU_QUERIES.items():
        if shutil.which(words[0]) is None:
            continue
        try:
            lines = [line for line in run_command(*words).splitlines() if line.strip()]
        except InputError as error:
            yield Finding("GPU", False, f"{words[0]} fails: {error}", "look at the driver, or ask the site")
            continue
        has_gpu = True
        advice = "" if kind == lock else f"make install LOCK={kind}, and run.environment: {kind} in the configuration"
        yield Finding("GPU", not advice, f"{len(lines)} x {lines[0]}", advice)
    if not has_gpu:
        needs = lock in GPU_QUERIES
        advice = "log in to a node with GPUs, or look with polder platform check" if needs else ""
        yield Finding("GPU", False if needs else None, "none on this machine", advice)


def _check_slurm() -> Iterator[Finding]:
    if shutil.which("sinfo") is None:
        yield Finding("Slurm", None, "none on this machine; runs use --profile local")
        return
    commands = check_commands()
    if not commands.ok:
        yield Finding("Slurm", False, commands.what, commands.way_out)
    try:
        version = run_command("sinfo", "--version").strip()
        partitions = run_command("sinfo", "--noheader", "--format=%P").split()
        yield Finding("Slurm", True, f"{version}; partitions {', '.join(partitions)}")
        stored = re.search(r"AccountingStorageType\s*=\s*(\S+)", run_command("scontrol", "show", "config"))
        has_accounting = stored is not None and not stored[1].endswith("none")
        advice = "" if has_accounting else "Slurm records no usage of jobs: energy by Slurm and sacct is left out"
        yield Finding("accounting", True if has_accounting else None, stored[1] if stored else "unknown", advice)
    except InputError as error:
        advice = "ask the site whether slurmctld runs; runs with --profile local do not need it"
        yield Finding("Slurm", False, str(error), advice)


def _check_disk_space(subject: str, folder: Path) -> Finding:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    words = ["stat", "--file-system", "--format=%T", str(existing)]
    kind = subprocess.run(words, capture_output=True, text=True).stdout.strip() or "unknown file system"
    advice = "" if free >= NEEDED_BYTES else f"free some: {NEEDED_BYTES / 1e9:.0f} GB are needed, or set run.results"
    return Finding(subject, free >= NEEDED_BYTES, f"{free / 1e9:,.0f} GB free in {existing} ({kind})", advice)
