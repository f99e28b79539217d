"""Register the networks of the architectures, which need torch, and make their initial weights.

`architectures` is a separate module, so that a change of a network does not change the code of a plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pipeline.model.decoder import Decoder
from pipeline.model.settings import Architecture

NETWORKS = {
    "llama": "pipeline.model.llama_network",
    "qwen3": "pipeline.model.qwen3_network",
    "qwen3_moe": "pipeline.model.qwen3_moe_network",
}
"""By name, the module that declares its `NETWORK`."""

Split = Literal["positions", "columns", "rows", "heads", "whole"]
"""How tensor parallelism splits a part of a block: norms of a branch's input by positions, the first matrices of a
branch by columns, the last by rows, and norms of heads, (B, T, H, E), by heads. A part that is `whole` excludes tensor
parallelism."""


@dataclass(frozen=True)
class Network:
    """The declaration of an architecture for training and for Hugging Face."""

    model: type[Decoder]
    """Called with the shape and the vocabulary size."""
    initial_weight: Callable[[str, torch.Size, Architecture, int, Sequence[slice] | None], Tensor]
    """Returns the initial value of a parameter for a seed, or a part of it: see `initial_weight`."""
    splits: Mapping[str, Split]
    """Every part of a block with parameters by name, in the order of communication."""
    model_types: tuple[str, ...]
    """The model types of the architecture in Transformers' config.json."""
    huggingface_name: Callable[[str], str]
    """Returns Transformers' name of a parameter, with a star for the number of an expert in stacked weights."""
    huggingface_config: Callable[[Architecture, int, int], dict[str, object]]
    """Returns the content of config.json for a shape, a vocabulary size and a maximum sequence length."""
    read_huggingface_config: Callable[[Mapping[str, Any], Path], Architecture]
    """Returns the shape of a config.json, read from a path; raises InputError for an unsupported value."""


def get_network(name: str) -> Network:
    network: Network = import_module(NETWORKS[name]).NETWORK
    return network


@cache
def parameter_shapes(architecture: Architecture, vocabulary_size: int) -> dict[str, torch.Size]:
    """Return every parameter's shape by name, in the model's order; a tied output is not listed."""
    with torch.device("meta"):
        model = get_network(architecture.name).model(architecture, vocabulary_size)
        return {name: p.shape for name, p in model.named_parameters()}


def initial_weight(
    name: str, shape: torch.Size, architecture: Architecture, seed: int, part: Sequence[slice] | None = None
) -> Tensor:
    """Return the initial value of a parameter, or of its slices `part`, float32, on the CPU."""
    return get_network(architecture.name).initial_weight(name, shape, architecture, seed, part)


def initial_state(architecture: Architecture, vocabulary_size: int, seed: int) -> dict[str, Tensor]:
    """Return the initial values of all parameters by name, equal for every strategy and world size."""
    shapes = parameter_shapes(architecture, vocabulary_size)
    return {name: initial_weight(name, shape, architecture, seed) for name, shape in shapes.items()}


# Random normal weights, drawn in blocks, so that a process draws little more than its shard.


BLOCK_ELEMENTS = 2**20
"""Elements of a block of a flattened parameter. Larger blocks waste more at the ends of a shard; below 2**16 elements
the generator costs as much as its numbers."""


def _sample_normal_chunk(name: str, elements: int, number: int, deviation: float, seed: int) -> Tensor:
    """Draw one block of a flattened parameter with its own generator."""
    drawn_by = f"{seed}/{name}/{number}" if number else f"{seed}/{name}"
    digest = hashlib.sha256(drawn_by.encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
    length = min(BLOCK_ELEMENTS, elements - number * BLOCK_ELEMENTS)
    # Always draw a full block, because the numbers that torch draws depend on their count.
    return torch.empty(length).normal_(0.0, deviation, generator=generator)


def draw_normal(
    name: str, shape: Sequence[int], deviation: float, seed: int, part: Sequence[slice] | None = None
) -> Tensor:
    """Draw a parameter with normal elements, or a part of it: float32, on the CPU.

    Every part has the same elements: block k of the flattened parameter is drawn by a generator with the first 8 bytes
    of SHA-256 of `SEED/NAME/k` as seed, block 0 of `SEED/NAME`. Only the blocks that overlap the part are drawn, each
    once, and one is in memory at a time.

    Args:
        part: a slice for every dimension; default: all.
    """
    spans = [range(size)[one] for size, one in zip(shape, part or [slice(None)] * len(shape), strict=True)]
    tensor = torch.empty([len(span) for span in spans])
    flat = tensor.view(-1)
    # From the last sliced dimension on, elements are contiguous in the flattened parameter.
    cut = max((place for place, span in enumerate(spans) if len(span) < shape[place]), default=0)
    row = prod(shape[cut + 1 :])
    strides = [prod(shape[place + 1 :]) for place in range(cut)]
    held, block = -1, flat
    filled = 0
    for places in product(*spans[:cut]):
        position = sum(place * stride for place, stride in zip(places, strides, strict=True)) + spans[cut].start * row
        end = filled + len(spans[cut]) * row
        while filled < end:
            number, offset = divmod(position, BLOCK_ELEMENTS)
            if number != held:
                held, block = number, _sample_normal_chunk(name, prod(shape), number, deviation, seed)
            length = min(end - filled, len(block) - offset)
            flat[filled : filled + length] = block[offset : offset + length]
            filled, position = filled + length, position + length
    return tensor
