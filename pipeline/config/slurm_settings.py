"""How a run uses Slurm. None of it reaches a step, so a change reruns nothing."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.settings import Settings


class Slurm(Settings):
    """The section `slurm` of the configuration."""

    account: str | None = Field(
        default=None, pattern=r"^[\w.-]+$", description="who pays; none takes the user's default account"
    )
    nodes: int = Field(default=1, ge=1, description="that a model is trained on, at most; no result depends on it")
    evaluation_nodes: int = Field(
        default=0, ge=0, description="whole nodes that a checkpoint is evaluated on; 0 takes one device of a node"
    )
    queue: int = Field(default=100, ge=1, description="most jobs in Slurm's queue at once")
    start_minutes: int = Field(
        default=1440, ge=1, description="how long a job may wait for its start before the run says so"
    )
    warning_seconds: int = Field(
        default=300,
        ge=10,
        description="before its time limit a training is warned; must suffice for a step and a checkpoint",
    )
