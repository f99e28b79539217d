"""Compute the size of a model, the cost of a token and the heads of a device from the shape."""

from __future__ import annotations

import math

from pipeline.core.batch_schedule import BatchSchedule
from pipeline.model.architectures import DeviceWork, get_architecture_formulas
from pipeline.model.settings import Architecture


def parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return the number of trainable parameters; a tied embedding counts once."""
    return get_architecture_formulas(architecture.name).parameter_count(architecture, vocabulary_size)


def active_parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return the number of parameters that one token uses: with experts those that it visits, otherwise all."""
    of = get_architecture_formulas(architecture.name)
    return (of.active_parameter_count or of.parameter_count)(architecture, vocabulary_size)


def flops_per_token(
    architecture: Architecture, vocabulary_size: int, sequence_length: int, *, recomputation: bool = False
) -> int:
    """Return the floating-point operations that training on one token takes, forward and backward.

    Args:
        recomputation: count the hardware's operations, which include a second forward pass of every block.
    """
    count = get_architecture_formulas(architecture.name).flops_per_token
    return count(architecture, vocabulary_size, sequence_length, recomputation=recomputation)


def training_flops(
    architecture: Architecture, vocabulary_size: int, batches: BatchSchedule, first_step: int, last_step: int
) -> int:
    """Return the operations of the steps after `first_step` up to `last_step`, each with its own batch."""
    return sum(
        stretch.steps
        * stretch.batch_size
        * batches.sequence_length
        * flops_per_token(architecture, vocabulary_size, stretch.sequence_length)
        for stretch in batches.step_ranges(first_step, last_step)
    )


def activation_bytes(architecture: Architecture, vocabulary_size: int, work: DeviceWork) -> float:
    """Return the peak bytes of activations of one device, without model state."""
    return get_architecture_formulas(architecture.name).activation_bytes(architecture, vocabulary_size, work)


def ulysses_degree(architecture: Architecture, tensor: int, context: int) -> int:
    """Return how many of the `context` devices of a sequence divide the heads; the others divide its queries."""
    return math.gcd(architecture.heads // tensor, context)


def replicated_key_value_heads(architecture: Architecture, tensor: int, context: int) -> int:
    """Return the key-value heads that a device holds, times the devices, for each of its tokens."""
    parts = ulysses_degree(architecture, tensor, context)
    return math.lcm(architecture.key_value_head_count, tensor * parts) * context // parts


# Maximal update parametrization: the best learning rate of a narrow model is the best one of a wide model.
#
# Yang et al. 2022 (Tensor Programs V), table 3, for Adam. With m the width over the base width: the initial
# deviation of a block's matrices is divided by the root of m, that of the output by m, and the learning rate of all
# these by m; embedding and norms stay the same. The model itself has no factor and is an ordinary one of its
# architecture. Weight decay, which AdamW multiplies by the learning rate, has the same effect at each width. This holds
# while the head width is constant and everything else grows with the width.


def learning_rate_factor(name: str, dimensions: int, architecture: Architecture) -> float:
    """Return the factor on the learning rate of a parameter with so many dimensions; 1 without a base width."""
    if architecture.base_width is None or dimensions < 2 or name == "embedding.weight":
        return 1.0
    return architecture.base_width / architecture.width
