"""The machine that a run is for: a file of workflow/platforms. It may change without changing any result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from pipeline.config.configuration_errors import format_validation_error
from pipeline.core.errors import InputError, suggest_name
from pipeline.core.platform_files import TEMPLATE, list_platforms, load_platform
from pipeline.core.settings import Settings
from pipeline.energy.power_model import PowerModel
from pipeline.energy.settings import Energy
from pipeline.pretrain.processes.launch_command import parse_cpus_per_task


class Allocation(Settings):
    """The smallest part of a node that a job is billed for: a job that asks for less pays for as much."""

    cpus: int = Field(ge=1, description="cores that are billed at least")
    memory_megabytes: int = Field(ge=1, description="memory that is billed at least")
    gpus: int = Field(default=0, ge=0, description="GPUs that are billed at least")


PartitionKind = Literal["cpu", "gpu", "evaluation"]
KEY_OPTIONS = ("account", "qos", "constraint", "reservation")  # of sbatch, each with a key of its own
# Those that Polder sets by itself, from the plan of each job.
PLANNED_OPTIONS = (
    *("array", "chdir", "comment", "cpus-per-task", "error", "export", "gres", "job-name", "mem", "nodes", "ntasks"),
    *("ntasks-per-node", "open-mode", "output", "parsable", "partition", "requeue", "no-requeue", "signal", "time"),
    *("test-only", "wait", "wrap"),
)


class JobOptions(Settings):
    """What a site wants of the jobs of a partition, as options of sbatch. None of it reaches a step."""

    account: str | None = Field(
        default=None,
        pattern=r"^[\w.@+-]+$",
        description="who pays; none: slurm.account or the user's default",
    )
    qos: str | None = Field(default=None, pattern=r"^[\w.,+-]+$", description="the quality of service")
    constraint: str | None = Field(default=None, pattern=r"^[^\s'\"]+$", description="features of the nodes")
    reservation: str | None = Field(default=None, pattern=r"^[\w.,+-]+$", description="the reservation of nodes")
    options: list[str] = Field(default=[], description="further options of sbatch, such as --exclude=gcn7")

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: list[str]) -> list[str]:
        for option in options:
            name = re.fullmatch(r"--([a-z][a-z-]*)(=.*)?", option)
            if not name:
                raise ValueError(f"{option!r} is not an option of sbatch in its long form, such as --exclude=gcn7")
            if name[1] in KEY_OPTIONS:
                raise ValueError(f"{option}: write it as the key {name[1]}")
            if name[1] in PLANNED_OPTIONS:
                raise ValueError(f"{option}: leave it out, because Polder sets it for each job")
        return options


class Partition(JobOptions):
    """A partition of Slurm and one of its nodes."""

    name: str = Field(description="the partition's name in Slurm")
    cpus: int = Field(ge=1, description="of one node")
    memory_megabytes: int = Field(ge=1, description="of one node, what a job may ask for")
    minutes: int = Field(ge=1, description="the longest time limit")
    gpus: int = Field(default=0, ge=0, description="of one node")
    allocation: Allocation | None = Field(
        default=None, description="the smallest that is billed; none: what a job asks for"
    )
    memory_follows_cpus: bool = Field(
        default=False,
        description="the site gives each core its share of the memory of `allocation`, and jobs must name no memory",
    )
    power: PowerModel | None = Field(
        default=None, description="of one node without its GPUs, calibrated; none: a wide interval for any machine"
    )

    @model_validator(mode="after")
    def _check_allocation_fits_node(self) -> Partition:
        for key in ("cpus", "memory_megabytes", "gpus"):
            if self.allocation and getattr(self.allocation, key) > getattr(self, key):
                raise ValueError(f"allocation.{key} is more than the {getattr(self, key)} of a node")
        if self.memory_follows_cpus and self.allocation is None:
            raise ValueError("memory_follows_cpus needs allocation, which says how much memory a core brings")
        return self

    @property
    def memory_megabytes_per_cpu(self) -> int | None:
        """Return the memory that a core brings, where jobs must name none."""
        if self.allocation is None or not self.memory_follows_cpus:
            return None
        return self.allocation.memory_megabytes // self.allocation.cpus


class Platform(Settings):
    """What is known of a machine; what is not known of it is left out."""

    name: str = Field(default="local", description="the name of the file")
    device: Literal["cuda", "rocm"] | None = Field(
        default=None, description="what training must find there; none takes GPUs where there are any, else the CPU"
    )
    devices: int = Field(default=1, ge=1, description="of one node")
    partitions: dict[PartitionKind, Partition] = Field(
        default={},
        description="where jobs go: training to gpu where there is one, evaluation to evaluation, else to gpu where "
        "there is one, all else to cpu",
    )
    launch: str | None = Field(default=None, description="how to start one process per device, unless a job sets it")
    environment: dict[str, str] = Field(
        default={}, description="variables of training and evaluation; those that are already set stay as they are"
    )
    address_suffix: str | None = Field(
        default=None, description="what a node's name needs at its end to be its address for a training's processes"
    )
    modules: list[str] = Field(default=[], description="that every job loads, with --sdm env-modules")
    container: str | None = Field(default=None, description="the image whose Python runs every job, if any")
    own_versions: list[str] = Field(
        default=[], description="distributions that the machine brings itself: they may be other than the lock's"
    )
    scratch: str | None = Field(
        default=None,
        description="the folder for large files that all nodes see; it may hold $VARIABLES and {account}",
    )
    node_disk: str | None = Field(
        default=None,
        description="a folder of each node alone, for copies of tokens and an optimizer's state; may hold $VARIABLES",
    )
    node_disk_constraint: str | None = Field(
        default=None, description="what sbatch's --constraint must say for nodes that have that disk"
    )
    ear: str | None = Field(default=None, description="options of sbatch and srun that turn EAR's measurements on")
    energy_policies: dict[str, str] = Field(
        default={},
        description="by name, options of sbatch and srun that a training may ask for in place of `ear`: EAR policies, "
        "caps of power or frequency",
    )
    energy_plugin: str | None = Field(
        default=None, description="Slurm's acct_gather_energy plugin, from which sacct has its joules"
    )
    energy: Energy = Field(
        default=Energy(), description="PUE and carbon intensity of the site; the run's own section energy comes first"
    )
    peak_flops_per_second: float | None = Field(
        default=None, description="of one device, dense bf16, from its data sheet"
    )
    float8: bool | None = Field(
        default=None, description="whether matrix units of the devices multiply numbers of 8 bits, as from Hopper on"
    )
    matrix_flops_per_second: float | None = Field(
        default=None, description="measured products of bf16 matrices of one device"
    )
    attention_flops_per_second: float | None = Field(
        default=None, description="FlashAttention of one device in a training; default: 0.6 of the matrix products"
    )
    memory_bytes_per_second: float | None = Field(default=None, description="memory bandwidth of one device")
    node_bytes_per_second: float | None = Field(
        default=None, description="of one device's link to others of its node, in one direction"
    )
    network_bytes_per_second: float | None = Field(
        default=None, description="of one device's link to other nodes, in one direction"
    )
    storage_bytes_per_second: float | None = Field(default=None, description="of the file system, for checkpoints")
    failures_per_device_hour: float | None = Field(
        default=None, description="failures that end a training; default: those of Llama 3 405B"
    )
    job_start_seconds: float | None = Field(default=None, description="from the start of a job to its first step")
    job_queue_seconds: float | None = Field(default=None, description="time that a job waits in the queue")
    device_power_watts: float | None = Field(default=None, description="of one device with its share of the node")
    memory_bytes_per_device: int | None = Field(default=None, description="memory of one device")
    model_flops_utilization: float | None = Field(
        default=None, description="MFU of trainings on this machine, where rates are missing"
    )
    price_euros_per_device_hour: float | None = Field(default=None, ge=0, description="price of one device for an hour")
    price_source: str | None = Field(default=None, description="where that price is published")

    @field_validator("launch")
    @classmethod
    def _check_launch_command(cls, launch: str | None) -> str | None:
        try:
            parse_cpus_per_task(launch)
        except InputError as error:
            raise ValueError(str(error).removeprefix("launch: ")) from None
        return launch

    @model_validator(mode="after")
    def _check_devices_match_partition(self) -> Platform:
        gpu = self.partitions.get("gpu")
        if gpu and gpu.gpus and gpu.gpus != self.devices:
            raise ValueError(
                f"devices is {self.devices}, but a node of the partition gpu has {gpu.gpus} gpus: write devices: "
                f"{gpu.gpus}, or leave gpus out where training is on cores"
            )
        return self

    def partition_for_work(self, kind: PartitionKind) -> PartitionKind:
        """Return the partition that work of a kind goes to: without one of its own, that of training, else cpu."""
        asked: list[PartitionKind] = [kind, "gpu"] if kind == "evaluation" else [kind]
        return next((one for one in asked if one in self.partitions), "cpu")

    def job_options(
        self, kind: str, account: str | None = None, partitions: Mapping[PartitionKind, JobOptions] | None = None
    ) -> JobOptions:
        """Return the options of the jobs of a partition: those of the run, else of this file.

        Args:
            kind: the key of the partition; it may be none of this file's.
            account: of the run, for all partitions.
            partitions: of the run, by partition; these come first.
        """
        entry = {str(name): one for name, one in self.partitions.items()}.get(kind)
        own = {str(name): one for name, one in (partitions or {}).items()}.get(kind, JobOptions())
        site = entry.model_dump(include={*JobOptions.model_fields}, exclude_unset=True) if entry else {}
        general = {"account": account} if account else {}
        return JobOptions.model_validate({**site, **general, **own.model_dump(exclude_unset=True)})

    def merge_emission_settings(self, written: Energy) -> Energy:
        """Return PUE and carbon intensity: what the run has written itself, else the site's, else the defaults."""
        return Energy.model_validate(
            {**self.energy.model_dump(exclude_unset=True), **written.model_dump(exclude_unset=True)}
        )


def load_platform_settings(name: str) -> Platform:
    """Return a platform by its name.

    Raises:
        InputError: there is no such platform, or its file says something that a platform has not.
    """
    if name not in (*(known := list_platforms()), TEMPLATE):
        raise InputError(f"configuration: platform: there is no {name!r}: {suggest_name(name, known)}")
    try:
        return Platform.model_validate(load_platform(name))
    except ValidationError as error:
        raise InputError(format_validation_error(error, Platform, f"workflow/platforms/{name}.yaml")) from None
