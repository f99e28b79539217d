"""What a site has of what a platform's file says: asked of Slurm and of the file system, without a job.

Each answer is a `Finding`; what is not ok carries the way out.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.platforms import Platform
from pipeline.core import platform_files
from pipeline.core.errors import InputError
from pipeline.slurm.values import count_gpus, parse_minutes, parse_state

COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "sinfo", "scancel", "sacct")
SECONDS = 60


@dataclass(frozen=True)
class SiteFinding:
    """One thing: what was found and, where that is not ok, the way out; None where it could not be looked at."""

    ok: bool | None
    what: str
    way_out: str = ""

    def __str__(self) -> str:
        if self.ok is None:
            return f"unknown {self.what}"
        return f"ok      {self.what}" if self.ok else f"not ok  {self.what}: {self.way_out}"


@dataclass(frozen=True)
class PartitionLimits:
    """A partition as Slurm knows it; its largest node counts. What has no limit is None."""

    takes_jobs: bool
    nodes: int
    nodes_of_a_job: int
    minutes: int | None
    cpus: int
    memory_megabytes: int
    gpus: int


def run_command(*words: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return what a command answers.

    Raises:
        InputError: it fails, with its own last words.
    """
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{words[0]} does not answer ({error})") from None
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise InputError(said[-1].strip() if said else f"{words[0]} ends with {done.returncode}")
    return done.stdout


def check_commands() -> SiteFinding:
    """Look for Slurm's commands."""
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        return SiteFinding(
            False,
            f"there is no {', '.join(missing)} here",
            "start on a login node of the cluster, or take --profile local",
        )
    return SiteFinding(True, f"Slurm's commands are here: {', '.join(COMMANDS)}")


def query_partition(name: str) -> PartitionLimits:
    """Return a partition as Slurm knows it.

    Raises:
        InputError: there is none of that name, or Slurm does not answer.
    """
    told = dict(re.findall(r"(\w+)=(\S*)", run_command("scontrol", "--oneliner", "show", "partition", name)))
    nodes = run_command("sinfo", "--noheader", f"--partition={name}", "--format=%c|%m|%G").splitlines()
    sizes = [(int(c.rstrip("+")), int(m.rstrip("+")), count_gpus(g)) for c, m, g in (line.split("|") for line in nodes)]
    number = int(told["TotalNodes"])
    most = told.get("MaxNodes", "UNLIMITED")
    return PartitionLimits(
        takes_jobs=parse_state(told["State"]) in ("UP", "DOWN"),  # where it is down they wait
        nodes=number,
        nodes_of_a_job=min(int(most), number) if most.isdigit() else number,
        minutes=parse_minutes(told["MaxTime"]),
        cpus=max((size[0] for size in sizes), default=0),
        memory_megabytes=max((size[1] for size in sizes), default=0),
        gpus=max((size[2] for size in sizes), default=0),
    )


def query_default_partition() -> str | None:
    """Return the partition that Slurm takes where a job names none."""
    names = run_command("sinfo", "--noheader", "--format=%P").split()
    return next((name.rstrip("*") for name in names if name.endswith("*")), None)


def check_partitions(platform: Platform, nodes: int) -> Iterator[SiteFinding]:
    """Look for the platform's partitions, and for as many nodes where training goes."""
    file = f"workflow/platforms/{platform.name}.yaml"
    where: dict[str, str] = {kind: entry.name for kind, entry in platform.partitions.items()}
    try:
        if not where:
            where = {"default": query_default_partition() or ""}
            if not where["default"]:
                way_out = "choose one with --config platform=NAME"
                yield SiteFinding(
                    False, f"platform {platform.name} names no partition and Slurm has no default", way_out
                )
                return
    except InputError as error:
        yield SiteFinding(False, f"Slurm does not answer ({error})", "is this a login node, and is Slurm up?")
        return
    trains = next(kind for kind in ("gpu", "cpu", "default") if kind in where)
    gpu = platform.partitions.get("gpu")
    for kind, name in where.items():
        try:
            seen = query_partition(name)
        except InputError as error:
            known = "`sinfo --summarize` shows those that there are: write one into"
            yield SiteFinding(False, f"there is no partition {name} ({error})", f"{known} {file}")
            continue
        found = f"partition {name} ({kind}): {seen.nodes} nodes of {seen.cpus} CPUs, {seen.memory_megabytes} MB"
        found += f", {seen.gpus} GPUs" if seen.gpus else ""
        if not seen.takes_jobs:
            yield SiteFinding(False, f"partition {name} takes no jobs", f"write another into {file}, or wait")
        elif kind == trains and nodes > seen.nodes_of_a_job:
            yield SiteFinding(
                False,
                f"slurm.nodes is {nodes}, but a job of the partition {name} gets {seen.nodes_of_a_job} nodes at most",
                "ask for fewer, or write another partition into " + file,
            )
        elif kind == "gpu" and gpu and gpu.gpus and not seen.gpus:
            yield SiteFinding(False, f"the nodes of the partition {name} have no GPUs", f"write another into {file}")
        else:
            yield SiteFinding(True, found)


def check_partition_sizes(platform: Platform) -> Iterator[SiteFinding]:
    """Compare what the platform's file says of a partition with what Slurm does."""
    fits = True
    for kind, said in platform.partitions.items():
        try:
            seen = query_partition(said.name)
        except InputError:
            continue  # told already
        for key in ("cpus", "memory_megabytes", "gpus", "minutes"):
            asked, had = getattr(said, key), getattr(seen, key)
            if had is not None and asked > had:
                fits = False
                way_out = f"write {had} into workflow/platforms/{platform.name}.yaml"
                yield SiteFinding(False, f"partitions.{kind}.{key} is {asked}, but {said.name} has {had}", way_out)
    if fits and platform.partitions:
        yield SiteFinding(True, f"workflow/platforms/{platform.name}.yaml asks for no more than Slurm has")


def check_account(name: str | None) -> SiteFinding:
    """Look whether this user may use an account; where Slurm keeps none, none is refused."""
    user = getpass.getuser()
    words = ("sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user}", "format=Account")
    try:
        accounts = sorted(set(run_command(*words).split()))
    except InputError as error:
        return SiteFinding(None, f"accounts cannot be looked up ({error})")
    if name is None:
        return SiteFinding(True, "no account is given: jobs go to the user's default")
    if accounts and name.lower() not in accounts:
        way_out = f"write slurm: {{account: …}} with one of {', '.join(accounts)}"
        return SiteFinding(False, f"there is no account {name} for this user", way_out)
    return SiteFinding(True, f"account {name}")


def check_writable(what: str, path: str | Path) -> SiteFinding:
    """Look whether files can be written into a folder, which is made where it is not there."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except OSError as error:
        return SiteFinding(
            False, f"{what} {path} cannot be written ({error.strerror})", "name another folder, or ask for the right"
        )
    return SiteFinding(True, f"{what} {path} can be written, {shutil.disk_usage(path).free / 1e9:.0f} GB are free")


def check_scratch(platform: Platform, account: str | None) -> Iterator[SiteFinding]:
    """Look whether the platform's folder for large files can be written."""
    if platform.scratch is None:
        return
    try:
        yield check_writable("scratch", platform_files.folder(platform.scratch, account))
    except InputError as error:
        yield SiteFinding(False, "scratch is not known", str(error))
