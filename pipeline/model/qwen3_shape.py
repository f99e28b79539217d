"""The Qwen3 architecture without torch: the presets are the dense models that one node or less trains.

A Llama that normalizes queries and keys; these norms multiply no matrices, so that a token costs a Llama's operations.

Layers, heads and ties are those of Yang et al. 2025 (Qwen3 Technical Report, arXiv 2505.09388), table 1; widths, angles
and epsilon those of config.json of Qwen/Qwen3-0.6B, -1.7B, -4B and -8B on Hugging Face. Their heads are 128 wide, which
is not the width divided by the heads in the smallest and in the third.
"""

from __future__ import annotations

from typing import Any

from pipeline.model import llama_shape
from pipeline.model.architectures import ArchitectureFormulas, DeviceWork
from pipeline.model.llama_shape import flops_per_token
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import replicated_key_value_heads

_ALL = {"rope_theta": 1_000_000.0, "norm_epsilon": 1e-6}


def _make_preset(layers: int, width: int, feed_forward_width: int, heads: int, *, tied: bool) -> dict[str, Any]:
    shape = llama_shape.make_preset(layers, width, feed_forward_width, heads, 8)
    return {**_ALL, **shape, "head_width": 128, "tie_embeddings": tied}


PRESETS: dict[str, dict[str, Any]] = {
    "qwen3": _ALL,
    "qwen3-0.6b": _make_preset(28, 1024, 3072, 16, tied=True),
    "qwen3-1.7b": _make_preset(28, 2048, 6144, 16, tied=True),
    "qwen3-4b": _make_preset(36, 2560, 9728, 32, tied=True),
    "qwen3-8b": _make_preset(36, 4096, 12288, 32, tied=False),
}
"""By name, the fields of `pipeline.model.settings.Architecture` that it fills."""


def parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return the number of trainable parameters: a Llama's, and the norms of queries and keys in each layer."""
    norms = 2 * architecture.layers * architecture.head_dimension
    return llama_shape.parameter_count(architecture, vocabulary_size) + norms


def activation_bytes(architecture: Architecture, vocabulary_size: int, work: DeviceWork) -> float:
    """Return the bytes that one device holds at most for the backward pass of its tokens, besides model state.

    A Llama's, and of each token the queries and keys of a block before their norms, H + K elements, H and K the joint
    widths of the heads; with recomputation those of one block.
    """
    a = architecture
    blocks = 1 if work.recomputation else a.layers
    heads = a.heads + replicated_key_value_heads(a, work.tensor, work.context)
    before_norms = work.tokens * work.element_bytes * blocks * heads * a.head_dimension
    return llama_shape.activation_bytes(a, vocabulary_size, work) + before_norms


FORMULAS = ArchitectureFormulas(PRESETS, parameter_count, flops_per_token, activation_bytes)
