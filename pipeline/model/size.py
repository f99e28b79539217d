"""The size of a model, the cost of a token and the heads of a device, from the shape alone."""

from __future__ import annotations

import math

from pipeline.core.training_steps import BatchSchedule
from pipeline.model.architectures import DeviceWork, get_shape
from pipeline.model.settings import Architecture


def parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return the number of trainable parameters; a tied embedding counts once."""
    return get_shape(architecture.name).parameter_count(architecture, vocabulary_size)


def active_parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return how many of these one token uses: all, or of experts those that it visits."""
    of = get_shape(architecture.name)
    return (of.active_parameter_count or of.parameter_count)(architecture, vocabulary_size)


def flops_per_token(
    architecture: Architecture, vocabulary_size: int, sequence_length: int, *, recomputation: bool = False
) -> int:
    """Return the floating-point operations that training on one token takes, forward and backward.

    `recomputation`: those of the hardware, which computes every block a second time for the backward pass.
    """
    count = get_shape(architecture.name).flops_per_token
    return count(architecture, vocabulary_size, sequence_length, recomputation=recomputation)


def training_flops(
    architecture: Architecture, vocabulary_size: int, batches: BatchSchedule, first_step: int, last_step: int
) -> int:
    """Return the operations of the steps behind `first_step`, each with its own number and length of sequences."""
    return sum(
        stretch.steps
        * stretch.batch_size
        * batches.sequence_length
        * flops_per_token(architecture, vocabulary_size, stretch.sequence_length)
        for stretch in batches.stretches(first_step, last_step)
    )


def activation_bytes(architecture: Architecture, vocabulary_size: int, work: DeviceWork) -> float:
    """Return the bytes that one device holds at most for the backward pass of its tokens, besides model state."""
    return get_shape(architecture.name).activation_bytes(architecture, vocabulary_size, work)


def head_parts(architecture: Architecture, tensor: int, context: int) -> int:
    """Return how many of the `context` devices of a sequence divide the heads; the rest divide its queries."""
    return math.gcd(architecture.heads // tensor, context)


def key_value_heads(architecture: Architecture, tensor: int, context: int) -> int:
    """Return of how many key-value heads a device holds keys and values, times the devices, for each of its tokens."""
    parts = head_parts(architecture, tensor, context)
    return math.lcm(architecture.groups, tensor * parts) * context // parts


# Maximal update parametrisation: the learning rate that is best for a narrow model is best for a wide one.
#
# Yang et al. 2022 (Tensor Programs V), table 3, for Adam. With m the width over the base width: the matrices of a
# block begin with a deviation divided by the root of m, the output with one divided by m, and all of these learn m
# times as slowly; embedding and norms stay. No factor is left in the model, so that it is an ordinary one of its
# architecture. Weight decay, which AdamW multiplies by the learning rate, pulls as much at each width. This holds as
# long as a head stays as wide and everything else grows with the width.


def learning_rate_factor(name: str, dimensions: int, architecture: Architecture) -> float:
    """Return by what the learning rate of a parameter with so many dimensions is multiplied; 1 without a base width."""
    if architecture.base_width is None or dimensions < 2 or name == "embedding.weight":
        return 1.0
    return architecture.base_width / architecture.width
