"""The machine that a run is for: a file of workflow/platforms. It may change without changing any result."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from pipeline.errors import InputError
from pipeline.settings import Settings

PLATFORMS = Path(__file__).parents[1] / "workflow" / "platforms"


class Partition(Settings):
    """A partition of Slurm and one of its nodes."""

    name: str
    cpus: int = Field(ge=1, description="of one node")
    memory_megabytes: int = Field(ge=1, description="of one node, what a job may ask for")
    minutes: int = Field(ge=1, description="the longest time limit")
    gpus: int = Field(default=0, ge=0, description="of one node")


class Platform(Settings):
    """What is known of a machine; what is not known of it is left out."""

    name: str = "local"
    device: Literal["cuda", "rocm"] | None = Field(
        default=None, description="what training must find there; none takes GPUs where there are any, else the CPU"
    )
    devices: int = Field(default=1, ge=1, description="of one node")
    partitions: dict[Literal["cpu", "gpu"], Partition] = Field(
        default={}, description="where jobs go: training and evaluation to gpu where there is one, all else to cpu"
    )
    launch: str | None = Field(default=None, description="how to start one process per device, unless a job is told")
    environment: dict[str, str] = Field(
        default={}, description="variables of training; those that are already set stay as they are"
    )
    node_disk: str | None = Field(
        default=None, description="a folder of each node alone, for copies of the tokens; $VARIABLES are a job's"
    )
    peak_flops_per_second: float | None = None
    device_power_watts: float | None = None
    memory_bytes_per_device: int | None = None
    model_flops_utilization: float | None = None
    price_euros_per_device_hour: float | None = None


def content(name: str) -> dict[str, Any]:
    """Return what the file of a platform says.

    Raises:
        InputError: there is no such platform.
    """
    path = PLATFORMS / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in PLATFORMS.glob("*.yaml")))
        raise InputError(f"configuration: platform: there is no {name!r}: choose one of {known}")
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded
