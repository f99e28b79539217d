"""Compare a site with its platform file by asking Slurm and the file system, without a job.

Each result is a `SiteFinding`; one that is not ok says what to do.
"""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.platforms import KEY_OPTIONS, JobOptions, Partition, Platform
from pipeline.core import platform_files
from pipeline.core.errors import InputError
from pipeline.slurm.executor.slurm_commands import ask_sbatch, run_slurm_command
from pipeline.slurm.output_parsing import count_gpus, parse_minutes, parse_state

COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "sinfo", "scancel", "sacct")
COMMAND_SECONDS = 60


@dataclass(frozen=True)
class SiteFinding:
    """The result of one check; `ok` is None if it could not be made, and `way_out` says what to do."""

    ok: bool | None
    what: str
    way_out: str = ""

    def __str__(self) -> str:
        if self.ok is None:
            return f"unknown {self.what}"
        return f"ok      {self.what}" if self.ok else f"not ok  {self.what}: {self.way_out}"


@dataclass(frozen=True)
class PartitionLimits:
    """The limits of a partition by its largest node; None is no limit."""

    takes_jobs: bool
    nodes: int
    nodes_of_a_job: int
    minutes: int | None
    cpus: int
    memory_megabytes: int
    gpus: int


def run_command(*words: str) -> str:
    """Return the output of a command.

    Raises:
        InputError: it fails, with its last line.
    """
    try:
        done = run_slurm_command(words, COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{words[0]} does not answer ({error})") from None
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise InputError(said[-1].strip() if said else f"{words[0]} ends with {done.returncode}")
    return done.stdout


def check_commands() -> SiteFinding:
    """Check that Slurm's commands are installed."""
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        return SiteFinding(
            False,
            f"there is no {', '.join(missing)} here",
            "use a login node of the cluster, or --profile local",
        )
    return SiteFinding(True, f"Slurm's commands are here: {', '.join(COMMANDS)}")


def query_partition(name: str) -> PartitionLimits:
    """Return the limits of a partition.

    Raises:
        InputError: there is no partition of that name, or Slurm does not answer.
    """
    partition = dict(re.findall(r"(\w+)=(\S*)", run_command("scontrol", "--oneliner", "show", "partition", name)))
    nodes = run_command("sinfo", "--noheader", f"--partition={name}", "--format=%c|%m|%G").splitlines()
    sizes = [(int(c.rstrip("+")), int(m.rstrip("+")), count_gpus(g)) for c, m, g in (line.split("|") for line in nodes)]
    number = int(partition["TotalNodes"])
    most = partition.get("MaxNodes", "UNLIMITED")
    return PartitionLimits(
        takes_jobs=parse_state(partition["State"]) in ("UP", "DOWN"),  # jobs wait while it is down
        nodes=number,
        nodes_of_a_job=min(int(most), number) if most.isdigit() else number,
        minutes=parse_minutes(partition["MaxTime"]),
        cpus=max((size[0] for size in sizes), default=0),
        memory_megabytes=max((size[1] for size in sizes), default=0),
        gpus=max((size[2] for size in sizes), default=0),
    )


def query_default_partition() -> str | None:
    names = run_command("sinfo", "--noheader", "--format=%P").split()
    return next((name.rstrip("*") for name in names if name.endswith("*")), None)


def check_partitions(platform: Platform, nodes: int) -> Iterator[SiteFinding]:
    """Check the platform's partitions, and the number of nodes of the training partition."""
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
        yield SiteFinding(
            False, f"Slurm does not answer ({error})", "check that this is a login node and that Slurm is up"
        )
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
        description = f"partition {name} ({kind}): {seen.nodes} nodes of {seen.cpus} CPUs, {seen.memory_megabytes} MB"
        description += f", {seen.gpus} GPUs" if seen.gpus else ""
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
            yield SiteFinding(True, description)


def check_partition_sizes(platform: Platform) -> Iterator[SiteFinding]:
    """Compare the partitions of the platform's file with those of Slurm."""
    fits = True
    for kind, said in platform.partitions.items():
        try:
            seen = query_partition(said.name)
        except InputError:
            continue  # reported by check_partitions
        for key in ("cpus", "memory_megabytes", "gpus", "minutes"):
            requested, limit = getattr(said, key), getattr(seen, key)
            if limit is not None and requested > limit:
                fits = False
                way_out = f"write {limit} into workflow/platforms/{platform.name}.yaml"
                yield SiteFinding(
                    False, f"partitions.{kind}.{key} is {requested}, but {said.name} has {limit}", way_out
                )
    if fits and platform.partitions:
        yield SiteFinding(True, f"workflow/platforms/{platform.name}.yaml asks for no more than Slurm has")


def check_account(name: str | None) -> SiteFinding:
    """Check that this user may use an account; without accounts in Slurm, every name passes."""
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


def format_job_options(options: JobOptions) -> list[str]:
    """Return the options of sbatch and srun that a site wants of the jobs of a partition."""
    given = options.model_dump(include={*KEY_OPTIONS}, exclude_none=True)
    return [*(f"--{key}={value}" for key, value in given.items()), *options.options]


def slurm_options_for_whole_node(partition: Partition | None, memory_megabytes: int | None = None) -> list[str]:
    """Return the options of sbatch and srun for a small job on a node with all its GPUs, each with its cores.

    Args:
        partition: of the platform's file; None is Slurm's default.
        memory_megabytes: what the job needs; None leaves it to Slurm.
    """
    share = partition.memory_megabytes_per_cpu if partition else None
    cpus = -(-memory_megabytes // share) if memory_megabytes and share else 1
    words = [f"--partition={partition.name}"] if partition else []
    if partition and partition.gpus:
        cpus = partition.cpus  # some sites refuse a GPU without its cores
        words += [f"--gres=gpu:{partition.gpus}"]
    words += [f"--mem={memory_megabytes}"] if memory_megabytes and not share else []
    return [*words, f"--cpus-per-task={cpus}"]


def check_submission(kind: str, partition: Partition | None, options: JobOptions, nodes: int = 1) -> SiteFinding:
    """Let sbatch judge a job of a minute without submitting it: account, QOS, constraint, reservation, options, GPUs.

    Args:
        kind: the key of the partition in the platform's file.
        partition: of the platform's file; None is Slurm's default.
        options: of the jobs of this partition.
        nodes: of the job.
    """
    words = [*slurm_options_for_whole_node(partition), f"--nodes={nodes}", "--time=1", *format_job_options(options)]
    answer = ask_sbatch(words)
    shown = " ".join(words)
    if answer.outcome == "taken":
        return SiteFinding(True, f"Slurm would take a job of {kind}: sbatch {shown}")
    if answer.outcome != "refused":  # a limit that passes, or a controller that is away: the submission waits for it
        return SiteFinding(None, f"whether Slurm would take a job of {kind} ({answer.said})")
    where = f"account, qos, constraint, reservation or options of slurm.partitions.{kind}"
    return SiteFinding(
        False, f"Slurm would refuse the jobs of {kind} ({answer.said}; sbatch {shown})", f"change {where}"
    )


def check_writable(what: str, path: str | Path) -> SiteFinding:
    """Check that files can be written into a folder, which is created if it is missing."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except OSError as error:
        return SiteFinding(
            False, f"{what} {path} cannot be written ({error.strerror})", "name another folder, or get write access"
        )
    return SiteFinding(True, f"{what} {path} can be written, {shutil.disk_usage(path).free / 1e9:.0f} GB are free")


def check_scratch(platform: Platform, account: str | None) -> Iterator[SiteFinding]:
    """Check that the platform's folder for large files can be written."""
    if platform.scratch is None:
        return
    try:
        yield check_writable("scratch", platform_files.fill_folder_template(platform.scratch, account))
    except InputError as error:
        yield SiteFinding(False, "scratch is not known", str(error))
