"""How large a Qwen3 is, beyond a Llama of its shape: see `pipeline.model.size`. Its norms multiply no matrices, so that
the operations of a token are a Llama's."""

from __future__ import annotations

from pipeline.model.architectures import Precision
from pipeline.model.llama import size
from pipeline.model.settings import Architecture
from pipeline.model.shared_heads import key_value_heads


def parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return the number of trainable parameters: a Llama's, and the norms of queries and keys in each layer."""
    norms = 2 * architecture.layers * architecture.head_dimension
    return size.parameter_count(architecture, vocabulary_size) + norms


def activation_bytes(
    architecture: Architecture,
    vocabulary_size: int,
    *,
    tokens: int,
    precision: Precision,
    recomputation: bool,
    tensor: int,
    context: int,
) -> float:
    """Return the bytes that one device holds at most for the backward pass of `tokens` tokens, besides model state.

    A Llama's, and of each token the queries and keys of a block before their norms, H + K elements, H and K the joint
    widths of the heads; with recomputation those of one block.
    """
    a = architecture
    of_llama = size.activation_bytes(
        a,
        vocabulary_size,
        tokens=tokens,
        precision=precision,
        recomputation=recomputation,
        tensor=tensor,
        context=context,
    )
    blocks = 1 if recomputation else a.layers
    heads = a.heads + key_value_heads(a, tensor, context)
    return of_llama + tokens * (2 if precision == "bf16" else 4) * blocks * heads * a.head_dimension
