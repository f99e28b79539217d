"""How large a Qwen3 with experts is and what one token of its training costs: see `pipeline.model.size`.

As a Qwen3 whose feed-forward blocks are as wide as several experts together, and the router, a matrix more.
"""

from __future__ import annotations

from pipeline.model.architectures import Precision
from pipeline.model.llama import size as llama
from pipeline.model.qwen3 import size
from pipeline.model.settings import Architecture


def _dense(architecture: Architecture, experts: int | None) -> Architecture:
    """Return the Qwen3 whose blocks are as wide as so many experts."""
    update = {"experts": None, "experts_per_token": None, "feed_forward_width": (experts or 0) * architecture.hidden}
    return architecture.model_copy(update=update)


def _routers(architecture: Architecture) -> int:
    return architecture.layers * architecture.width * (architecture.experts or 0)


def parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return the number of trainable parameters: of all experts."""
    return size.parameter_count(_dense(architecture, architecture.experts), vocabulary_size) + _routers(architecture)


def active_parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return how many of them one token uses: of the experts that it visits."""
    dense = _dense(architecture, architecture.experts_per_token)
    return size.parameter_count(dense, vocabulary_size) + _routers(architecture)


def flops_per_token(
    architecture: Architecture, vocabulary_size: int, sequence_length: int, *, recomputation: bool
) -> int:
    """Return the floating-point operations that training on one token takes: with the experts that it visits."""
    dense = _dense(architecture, architecture.experts_per_token)
    of_dense = llama.flops_per_token(dense, vocabulary_size, sequence_length, recomputation=recomputation)
    return of_dense + (8 if recomputation else 6) * _routers(architecture)


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

    A Qwen3's as wide as the experts that a token visits, C of them, and in each block, of a token: its rows in their
    order and what the experts gave, twice, before and after it is in the order of the tokens (3 C D elements), the
    probabilities in float32, and where each of the rows is (4 C numbers of 8 bytes). It is exact where each process has
    all experts, and the mean of the processes that divide them, of which one gets more the less its load is balanced.
    """
    a, chosen = architecture, architecture.experts_per_token or 0
    dense = size.activation_bytes(
        _dense(a, chosen),
        vocabulary_size,
        tokens=tokens,
        precision=precision,
        recomputation=recomputation,
        tensor=tensor,
        context=context,
    )
    blocks = 1 if recomputation else a.layers
    element = 2 if precision == "bf16" else 4
    return dense + tokens * blocks * (3 * element * chosen * a.width + 4 * (a.experts or 0) + 32 * chosen)
