"""The Qwen3 architecture with experts, without torch: presets, parameters, operations of a token, bytes of activations.

Layers, heads and experts are those of Yang et al. 2025 (Qwen3 Technical Report, arXiv 2505.09388), table 2; widths,
angles and epsilon those of config.json of Qwen/Qwen3-30B-A3B and Qwen/Qwen3-235B-A22B on Hugging Face.
"""

from __future__ import annotations

from typing import Any

from pipeline.model import llama_shape, qwen3_shape
from pipeline.model.architectures import ArchitectureFormulas, DeviceWork
from pipeline.model.settings import Architecture

_ALL = {"rope_theta": 1_000_000.0, "norm_epsilon": 1e-6, "experts": 128, "experts_per_token": 8}


def _make_preset(layers: int, width: int, expert_width: int, heads: int) -> dict[str, Any]:
    return {**_ALL, **llama_shape.make_preset(layers, width, expert_width, heads, 4), "head_width": 128}


PRESETS: dict[str, dict[str, Any]] = {
    "qwen3-moe": _ALL,
    "qwen3-30b-a3b": _make_preset(48, 2048, 768, 32),
    "qwen3-235b-a22b": _make_preset(94, 4096, 1536, 64),
}
"""By name, the fields of `pipeline.model.settings.Architecture` that it fills."""


def _dense_equivalent(architecture: Architecture, experts: int | None) -> Architecture:
    """Return the Qwen3 whose blocks are as wide as so many experts."""
    update = {
        "experts": None,
        "experts_per_token": None,
        "feed_forward_width": (experts or 0) * architecture.intermediate_width,
    }
    return architecture.model_copy(update=update)


def _router_parameter_count(architecture: Architecture) -> int:
    return architecture.layers * architecture.width * (architecture.experts or 0)


def parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return the number of trainable parameters: of all experts."""
    return qwen3_shape.parameter_count(
        _dense_equivalent(architecture, architecture.experts), vocabulary_size
    ) + _router_parameter_count(architecture)


def active_parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return how many of them one token uses: of the experts that it visits."""
    dense = _dense_equivalent(architecture, architecture.experts_per_token)
    return qwen3_shape.parameter_count(dense, vocabulary_size) + _router_parameter_count(architecture)


def flops_per_token(
    architecture: Architecture, vocabulary_size: int, sequence_length: int, *, recomputation: bool
) -> int:
    """Return the floating-point operations that training on one token takes: with the experts that it visits."""
    dense = _dense_equivalent(architecture, architecture.experts_per_token)
    of_dense = llama_shape.flops_per_token(dense, vocabulary_size, sequence_length, recomputation=recomputation)
    return of_dense + (8 if recomputation else 6) * _router_parameter_count(architecture)


def activation_bytes(architecture: Architecture, vocabulary_size: int, work: DeviceWork) -> float:
    """Return the bytes that one device holds at most for the backward pass of its tokens, besides model state.

    A Qwen3's as wide as the experts that a token visits, C of them, and in each block, of a token: its rows in their
    order and what the experts gave, twice, before and after it is in the order of the tokens (3 C D elements), the
    probabilities in float32, and where each of the rows is (4 C numbers of 8 bytes). It is exact where each process has
    all experts, and the mean of the processes that divide them, of which one gets more the less its load is balanced.
    """
    a, chosen = architecture, architecture.experts_per_token or 0
    dense = qwen3_shape.activation_bytes(_dense_equivalent(a, chosen), vocabulary_size, work)
    blocks = 1 if work.recomputation else a.layers
    of_token = 3 * work.element_bytes * chosen * a.width + 4 * (a.experts or 0) + 32 * chosen
    return dense + work.tokens * blocks * of_token


FORMULAS = ArchitectureFormulas(PRESETS, parameter_count, flops_per_token, activation_bytes, active_parameter_count)
