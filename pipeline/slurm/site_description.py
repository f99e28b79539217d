"""Describe a cluster by what its Slurm says, as lines of a platform file.

A partition is chosen if sbatch would take a job there, and the others are next to it as comments.
"""

from __future__ import annotations

import getpass
import json
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import yaml

from pipeline.core.errors import InputError
from pipeline.energy.external_meters.slurm_energy import parse_energy_plugin
from pipeline.slurm.executor.slurm_commands import ask_sbatch, query_configuration
from pipeline.slurm.output_parsing import count_gpus, list_hosts, parse_minutes, parse_state
from pipeline.slurm.site_checks import run_command

MINUTES_WITHOUT_LIMIT = 1440
# A partition, the CPUs, megabytes and GRES of a kind of node, the number of such nodes, and their names.
_NODE_KINDS = "--format=%R|%c|%m|%G|%D|%N"
_AMD = re.compile(r"mi\d{2,3}", re.IGNORECASE)
_NVIDIA = re.compile(
    r"nvidia|geforce|quadro|rtx|tesla|titan|(?<![a-z])(?:[kp]\d0{1,2}|v100|t4|l4|l40s?|g?[hb][1-3]00|gb[1-3]00"
    r"|a(?:2|10|16|30|40|100|800|[2-6]000))(?!\d)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class PartitionDescription:
    """A partition by its most frequent node; `minutes` is None without a limit, `refusal` empty if jobs are taken."""

    name: str
    default: bool
    priority_tier: int
    whole_nodes: bool
    minutes: int | None
    nodes: int
    cpus: int
    cores: int
    memory_megabytes: int
    gpus: int
    gpu_type: str
    architecture: str
    refusal: str

    def format_partition_entry(self) -> str:
        """Return the partition as an entry of `partitions` in YAML."""
        sizes = {"cpus": self.cpus, "memory_megabytes": self.memory_megabytes, "gpus": self.gpus}
        written = ", ".join(f"{key}: {value}" for key, value in sizes.items() if value)
        minutes = f"minutes: {self.minutes or MINUTES_WITHOUT_LIMIT}"
        allocation = f", allocation: {{{written}}}" if self.whole_nodes else ""
        name = self.name if yaml.safe_load(self.name) == self.name else json.dumps(self.name)  # a name may be a number
        return f"{{name: {name}, {written}, {minutes}{allocation}}}"

    def format_facts(self) -> str:
        """Return what the entry does not say, in one line."""
        kind = f" ({self.architecture})" if self.architecture else ""
        facts = [f"{self.nodes} {'node' if self.nodes == 1 else 'nodes'} of {self.cores} cores{kind} for jobs"]
        if self.cpus != self.cores:
            facts.append(f"{self.cpus} hardware threads, which are Slurm's CPUs")
        facts += ["jobs get whole nodes"] if self.whole_nodes else []
        facts += [f"GPUs of the type {self.gpu_type}"] if self.gpu_type else []
        facts += [f"no time limit: {MINUTES_WITHOUT_LIMIT} is a guess"] if self.minutes is None else []
        facts += [f"sbatch would refuse a job ({self.refusal})"] if self.refusal else []
        return "; ".join(facts)


def list_partitions(account: str | None = None) -> list[PartitionDescription]:
    """Return the partitions that take jobs and have nodes.

    Args:
        account: for which sbatch judges a job; without it, the user's default.

    Raises:
        InputError: Slurm does not answer.
    """
    lines = run_command("scontrol", "--oneliner", "show", "partition").splitlines()
    shown = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines]
    kinds: dict[str, list[tuple[int, str]]] = {}
    for line in run_command("sinfo", "--noheader", _NODE_KINDS).splitlines():
        name, *_, number, hosts = line.split("|")
        kinds.setdefault(name, []).append((int(number), hosts))
    return [
        _describe_partition(partition, kinds[partition["PartitionName"]], account)
        for partition in shown
        if parse_state(partition.get("State", "")) == "UP" and partition.get("PartitionName") in kinds
    ]


def _describe_partition(
    shown: Mapping[str, str], kinds: list[tuple[int, str]], account: str | None
) -> PartitionDescription:
    name = shown["PartitionName"]
    host = list_hosts(max(kinds)[1])[0]
    node = dict(re.findall(r"(\w+)=(\S*)", run_command("scontrol", "--oneliner", "show", "node", host)))
    # Cores and memory that the site keeps for the system are no job's: CPUEfctv and MemSpecLimit.
    cpus = int(node.get("CPUEfctv") or node["CPUTot"])
    most = shown.get("MaxMemPerNode", "")
    megabytes = int(node["RealMemory"]) - int(node.get("MemSpecLimit") or 0)
    gpus = count_gpus(node.get("Gres", ""))
    words = [f"--partition={name}", "--nodes=1", "--time=1", *([f"--gres=gpu:{gpus}"] if gpus else [])]
    words += [f"--account={account}"] if account else []
    answer = ask_sbatch(words)
    gpu_type = re.search(r"gpu:([^:(,]*[^\d:(,][^:(,]*)", node.get("Gres", ""))
    return PartitionDescription(
        name=name,
        default=shown.get("Default") == "YES",
        priority_tier=int(shown.get("PriorityTier") or 1),
        whole_nodes=shown.get("OverSubscribe") == "EXCLUSIVE",
        minutes=_find_time_limit(shown),
        nodes=sum(number for number, _ in kinds),
        cpus=cpus,
        cores=cpus // int(node.get("ThreadsPerCore") or 1),
        memory_megabytes=min(megabytes, int(most)) if most.isdigit() and int(most) else megabytes,
        gpus=gpus,
        gpu_type=gpu_type[1] if gpus and gpu_type else "",
        architecture=node.get("Arch", ""),
        refusal=answer.said if answer.outcome == "refused" else "",
    )


def _find_time_limit(shown: Mapping[str, str]) -> int | None:
    """Return the minutes that a partition, or its own QOS, gives a job at most; None without a limit."""
    limits = [parse_minutes(shown.get("MaxTime", "UNLIMITED"))]
    if (qos := shown.get("QoS", "N/A")) != "N/A":
        words = ("sacctmgr", "--noheader", "--parsable2", "show", "qos", f"name={qos}", "format=MaxWall")
        with suppress(InputError):  # without accounting a QOS limits nothing
            limits.append(parse_minutes(run_command(*words).strip() or "UNLIMITED"))
    return min((limit for limit in limits if limit is not None), default=None)


def choose_partitions(partitions: list[PartitionDescription]) -> dict[str, PartitionDescription]:
    """Choose the partitions of a platform file: `cpu`, `gpu`, and `evaluation` where nodes of `gpu` are not shared.

    Partitions that take a job come first, then those with more nodes, of a lower priority tier (a higher one is for
    urgent jobs), and with more time. For CPU work Slurm's default comes before the larger ones.
    """

    def partition_sort_key(one: PartitionDescription) -> tuple[bool, bool, int, int, int]:
        default = one.default and not one.gpus
        return not one.refusal, default, one.nodes, -one.priority_tier, one.minutes or MINUTES_WITHOUT_LIMIT

    ordered = sorted(partitions, key=partition_sort_key, reverse=True)
    with_gpus = [one for one in ordered if one.gpus]
    chosen = {"cpu": next((one for one in ordered if not one.gpus), None), "gpu": next(iter(with_gpus), None)}
    if chosen["gpu"] and chosen["gpu"].whole_nodes:
        chosen["evaluation"] = next((one for one in with_gpus if not one.whole_nodes and not one.refusal), None)
    return {kind: one for kind, one in chosen.items() if one}


def find_device_backend(gpu_type: str) -> str | None:
    """Return `rocm` or `cuda` for the type of a GPU in Slurm, such as mi250 or h100; None if it does not say."""
    if _AMD.search(gpu_type):
        return "rocm"
    return "cuda" if _NVIDIA.search(gpu_type) else None


def describe_site(date: str, account: str | None = None) -> dict[str, str]:
    """Return the platform keys that Slurm answers, each with its YAML and comments of where it is from.

    Args:
        date: of today, for the comments.
        account: for which sbatch judges a job; without it, the user's default.

    Raises:
        InputError: Slurm does not answer.
    """
    partitions = list_partitions(account)
    chosen = choose_partitions(partitions)
    lines = [f"  # By sinfo and scontrol show partition, {date}."]
    lines += [] if "cpu" in chosen else ["  # All partitions have GPUs: name one here for CPU work as well."]
    for kind, one in chosen.items():
        lines += [f"  # {one.format_facts()}.", f"  {kind}: {one.format_partition_entry()}"]
    others = [one for one in partitions if one not in chosen.values()]
    lines += ["  # Others:"] if others else []
    lines += [f"  # {one.format_partition_entry()}  # {one.format_facts()}" for one in others]
    known = {"partitions": "\n".join(["partitions:", *lines])} if chosen else {}
    if "gpu" in chosen:
        known |= _describe_devices(chosen["gpu"])
    return known | _describe_energy()


def _describe_devices(gpu: PartitionDescription) -> dict[str, str]:
    device = find_device_backend(gpu.gpu_type)
    by_type = f"# by its GPUs' type in Slurm, {gpu.gpu_type}"
    device_setting = {"device": f"device: {device} {by_type}"} if device else {}
    threads = " --threads-per-core=1" if gpu.cpus != gpu.cores else ""
    tasks = f"--ntasks-per-node={gpu.gpus} --cpus-per-task={max(1, gpu.cores // gpu.gpus)}"
    launch = f"launch: srun {tasks}{threads} # the cores of a node through its GPUs; see `nvidia-smi topo -m` there"
    return {**device_setting, "devices": f"devices: {gpu.gpus} # of one node of {gpu.name}", "launch": launch}


def _describe_energy() -> dict[str, str]:
    settings = {}
    try:
        if re.search(r"--ear\b", run_command("srun", "--help")) and shutil.which("eacct"):
            settings["ear"] = "ear: --ear=on --ear-policy=monitoring # srun --help has --ear"
    except InputError:
        pass
    plugin = parse_energy_plugin(query_configuration())
    if plugin not in (None, "none"):
        settings["energy_plugin"] = f"energy_plugin: {plugin} # scontrol show config"
    return settings


def list_accounts() -> list[str]:
    """Return the accounts of this user with their partitions and QOS; empty if Slurm does not say.

    They are for the terminal: a configuration names the account, and a platform file is for everybody.
    """
    words = ("sacctmgr", "--noheader", "--parsable2", "show", "associations")
    try:
        rows = run_command(*words, f"user={getpass.getuser()}", "format=Account,Partition,QOS").splitlines()
    except InputError:
        return []
    return [
        account + (f" on {partition}" if partition else "") + (f" (QOS {qos})" if qos else "")
        for account, partition, qos in (row.split("|") for row in dict.fromkeys(rows))
    ]
