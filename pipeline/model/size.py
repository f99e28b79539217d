"""How large a model is and what one token of training costs, from its shape alone, as its architecture counts it."""

from __future__ import annotations

from pipeline.core.ramp import Batches
from pipeline.model.architectures import Precision, shape
from pipeline.model.settings import Architecture


def parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return the number of trainable parameters; a tied embedding counts once."""
    return shape(architecture.name).parameter_count(architecture, vocabulary_size)


def active_parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return how many of these one token uses: all, or of experts those that it visits."""
    of = shape(architecture.name)
    return (of.active_parameter_count or of.parameter_count)(architecture, vocabulary_size)


def flops_per_token(
    architecture: Architecture, vocabulary_size: int, sequence_length: int, *, recomputation: bool = False
) -> int:
    """Return the floating-point operations that training on one token takes, forward and backward.

    `recomputation`: what the hardware does where every block is computed a second time for the backward pass, for the
    utilization of the hardware; that of the model counts what is useful, whatever is recomputed.
    """
    count = shape(architecture.name).flops_per_token
    return count(architecture, vocabulary_size, sequence_length, recomputation=recomputation)


def training_flops(
    architecture: Architecture, vocabulary_size: int, batches: Batches, first_step: int, last_step: int
) -> int:
    """Return the operations of the steps behind `first_step`, each with its own number and length of sequences."""
    return sum(
        stretch.steps
        * stretch.batch_size
        * batches.sequence_length
        * flops_per_token(architecture, vocabulary_size, stretch.sequence_length)
        for stretch in batches.stretches(first_step, last_step)
    )


def activation_bytes(
    architecture: Architecture,
    vocabulary_size: int,
    *,
    tokens: int,
    precision: Precision,
    recomputation: bool = False,
    tensor: int = 1,
    context: int = 1,
) -> float:
    """Return the bytes that one device holds at most for the backward pass of `tokens` tokens, besides model state.

    With recomputation only the input of each block stays, and one block at a time in full. Where `tensor` devices split
    the model or `context` devices a sequence, `tokens` is the share of one of them.
    """
    return shape(architecture.name).activation_bytes(
        architecture,
        vocabulary_size,
        tokens=tokens,
        precision=precision,
        recomputation=recomputation,
        tensor=tensor,
        context=context,
    )
