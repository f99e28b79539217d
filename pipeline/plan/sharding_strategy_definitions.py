"""Declare the sharding strategies: the placement of weights, gradients and optimizer state, for plan and training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

Backend = Literal["fsdp", "deepspeed"]
Placement = Literal["all", "share", "node", "host", "disk"]
"""Every device holds all of it, all devices or those of a node share it, or it is in main memory or on a disk."""


class ConflictingKey(NamedTuple):
    """A value of a key of `training` that a strategy does not support, and what to choose instead."""

    key: str
    value: object
    fix: str


@dataclass(frozen=True)
class Strategy:
    """A backend and the placement of a model's state, from which the backends derive what they do.

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
    def state_placements(self) -> tuple[Placement, Placement, Placement]:
        """Return the placement of weights, gradients and optimizer state, in this order."""
        return self.parameters, self.gradients, self.optimizer

    @property
    def zero_stage(self) -> int:
        """Return the ZeRO stage: how many of optimizer state, gradients and parameters, in this order, are sharded."""
        return sum(place != "all" for place in self.state_placements)

    @property
    def is_replicated(self) -> bool:
        """Return whether every device holds everything."""
        return not self.zero_stage

    @property
    def is_hybrid(self) -> bool:
        """Return whether each group of devices, by default a node, holds a copy of the state."""
        return "node" in self.state_placements

    @property
    def reshards_after_forward(self) -> bool:
        """Return whether a block's parameters are gathered again for the backward pass."""
        return self.parameters != "all"

    @property
    def reduces_gradients_once(self) -> bool:
        """Return whether a device of the native backend sums whole gradients over the micro-batches of a step.

        It keeps gathered weights too, so that each travels once in a step.
        """
        return self.backend == "fsdp" and self.gradients == "all" and self.optimizer != "all"

    @property
    def offloads_optimizer(self) -> bool:
        """Return whether the optimizer steps in main memory, with its state there or on a disk."""
        return self.optimizer in ("host", "disk")

    @property
    def optimizer_on_disk(self) -> bool:
        """Return whether the optimizer's state, including the float32 weights, is on a disk of the node."""
        return self.optimizer == "disk"

    @property
    def offloads_parameters(self) -> bool:
        return self.parameters == "host"


# In the order in which a run without enough memory proposes them.
STRATEGIES: dict[str, Strategy] = {
    "no_shard": Strategy("fsdp", "all", "all", "all"),
    "shard_optimizer": Strategy(  # in bf16 the sum over micro-batches would lose digits
        "fsdp", "all", "all", "share", (ConflictingKey("gradient_reduction", "bf16", "choose fp32"),)
    ),
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
else:  # the schema and the error of an unknown strategy list these names
    StrategyName = Literal[tuple(STRATEGIES)]


def hybrid_group_size(sharing: int, devices_of_a_node: int, tensor: int) -> int:
    """Return how many devices share one copy of the state in a hybrid strategy: those of a node.

    Args:
        sharing: devices that share the model over all nodes, each with a part of the batch or of the sequence.
        tensor: tensor-parallel devices, which count as one.
    """
    return math.gcd(sharing, max(devices_of_a_node // tensor, 1))


def list_backend_strategies(backend: Backend) -> tuple[str, ...]:
    """Return the names of a backend's strategies, in their order."""
    return tuple(name for name, strategy in STRATEGIES.items() if strategy.backend == backend)
