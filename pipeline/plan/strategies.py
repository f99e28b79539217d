"""Sharding strategies: where a model's state is placed, one declaration each, read by plan and training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

Backend = Literal["fsdp", "deepspeed"]
Placement = Literal["all", "share", "node", "host", "disk"]
"""Every device holds all of it, all devices share it, those of one node do, or it lies in main memory or on a disk."""


class ConflictingKey(NamedTuple):
    """A value of a key of `training` that a strategy does not work with, and what to choose instead."""

    key: str
    value: object
    fix: str


@dataclass(frozen=True)
class Strategy:
    """Who trains with it and where the state of a model lies; what the backends do follows from the places.

    ZeRO, section 5 (Rajbhandari et al. 2020); Zhao et al. 2023 (FSDP), section 3.2; Ren et al. 2021 (ZeRO-Offload);
    Rajbhandari et al. 2021 (ZeRO-Infinity), section 5.
    Offloaded gradients pass through a share on the device.
    """

    backend: Backend
    parameters: Placement
    gradients: Placement
    optimizer: Placement
    conflicts: tuple[ConflictingKey, ...] = ()

    @property
    def placements(self) -> tuple[Placement, Placement, Placement]:
        """Return where weights, gradients and optimizer state lie, in this order."""
        return self.parameters, self.gradients, self.optimizer

    @property
    def zero_stage(self) -> int:
        """Return how many of optimizer state, gradients and parameters, in this order, no device holds in full."""
        return sum(place != "all" for place in self.placements)

    @property
    def is_replicated(self) -> bool:
        """Return whether every device holds everything."""
        return not self.zero_stage

    @property
    def is_hybrid(self) -> bool:
        """Return whether groups of devices, by default the nodes, hold a copy of the state each."""
        return "node" in self.placements

    @property
    def reshards_after_forward(self) -> bool:
        """Return whether a block's parameters are gathered again for the backward pass."""
        return self.parameters != "all"

    @property
    def offloads_optimizer(self) -> bool:
        """Return whether the optimizer steps in main memory, where its state lies or whence it is on a disk."""
        return self.optimizer in ("host", "disk")

    @property
    def optimizer_on_disk(self) -> bool:
        """Return whether the optimizer's state, the float32 weights included, lies on a disk of the node."""
        return self.optimizer == "disk"

    @property
    def offloads_parameters(self) -> bool:
        """Return whether the parameters lie in main memory."""
        return self.parameters == "host"


# In the order in which they are proposed where memory is short.
STRATEGIES: dict[str, Strategy] = {
    "no_shard": Strategy("fsdp", "all", "all", "all"),
    "shard_grad_op": Strategy("fsdp", "all", "share", "share"),
    "hybrid_shard_zero2": Strategy("fsdp", "all", "node", "node"),
    "hybrid_shard": Strategy("fsdp", "node", "node", "node"),
    "full_shard": Strategy("fsdp", "share", "share", "share"),
    "zero0": Strategy("deepspeed", "all", "all", "all", (ConflictingKey("precision", "bf16", "choose zero1 or fp32"),)),
    "zero1": Strategy("deepspeed", "all", "all", "share"),
    "zero2": Strategy("deepspeed", "all", "share", "share"),
    "zero2_offload_optimizer": Strategy("deepspeed", "all", "share", "host"),
    "zero3": Strategy("deepspeed", "share", "share", "share"),
    "zero3_offload_optimizer": Strategy("deepspeed", "share", "share", "host"),
    "zero3_offload_all": Strategy("deepspeed", "host", "share", "host"),
    "zero3_optimizer_on_disk": Strategy("deepspeed", "share", "share", "disk"),
}

if TYPE_CHECKING:
    StrategyName = str
else:  # the names above, so that another is refused with the choices, in the schema too
    StrategyName = Literal[tuple(STRATEGIES)]


def hybrid_group_size(sharing: int, devices_of_a_node: int, tensor: int) -> int:
    """Return how many of the devices that share a model hold a copy of its state in a hybrid strategy: those of a node.

    Args:
        sharing: how many share it, each with a part of the batch or of the sequence, over all nodes.
        tensor: how many of a node split each matrix, so that they count as one.
    """
    return math.gcd(sharing, max(devices_of_a_node // tensor, 1))


def list_backend_strategies(backend: Backend) -> tuple[str, ...]:
    """Return the names of a backend's strategies, in their order."""
    return tuple(name for name, strategy in STRATEGIES.items() if strategy.backend == backend)
