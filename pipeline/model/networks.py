"""List the networks of the architectures, which need torch, a line each, and make their first weights.

The two lists are two modules so that a change of a network does not change the code of a plan.
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
"""How tensor parallelism splits a part of a block: what normalises a branch's input works on a share of the positions,
matrices that open the branch are split by columns, those that close it by rows; what normalises heads works on a share
of them, (B, T, H, E). With a part that stays whole there is no tensor parallelism."""


@dataclass(frozen=True)
class Network:
    """An architecture as training and exchange know it."""

    model: type[Decoder]
    """Made from the shape and the vocabulary size."""
    initial_weight: Callable[[str, torch.Size, Architecture, int, Sequence[slice] | None], Tensor]
    """Returns one parameter, by name, as training with a seed starts from it, or a part of it: see `initial_weight`."""
    splits: Mapping[str, Split]
    """By name within a block, every part that has parameters; their order is that of the communication."""
    model_types: tuple[str, ...]
    """What Transformers calls the architecture in config.json, and shapes of it that it tells apart."""
    huggingface_name: Callable[[str], str]
    """Returns Transformers' name of a parameter; with a star where that has one for each matrix of a stack."""
    huggingface_config: Callable[[Architecture, int, int], dict[str, object]]
    """Returns the content of config.json for a shape, a vocabulary size and a longest sequence."""
    read_huggingface_config: Callable[[Mapping[str, Any], Path], Architecture]
    """Returns the shape that config.json, at a path, describes; an InputError names a value that cannot be computed."""


def get_network(name: str) -> Network:
    """Return what the architecture of that name declares."""
    found: Network = import_module(NETWORKS[name]).NETWORK
    return found


@cache
def parameter_shapes(architecture: Architecture, vocabulary_size: int) -> dict[str, torch.Size]:
    """Return every parameter's shape by name, in the model's order; a tied output is the embedding and not named."""
    with torch.device("meta"):
        model = get_network(architecture.name).model(architecture, vocabulary_size)
        return {name: p.shape for name, p in model.named_parameters()}


def initial_weight(
    name: str, shape: torch.Size, architecture: Architecture, seed: int, part: Sequence[slice] | None = None
) -> Tensor:
    """Return a parameter, or the slices `part` of it, as training starts from it, float32, on the CPU."""
    return get_network(architecture.name).initial_weight(name, shape, architecture, seed, part)


def initial_state(architecture: Architecture, vocabulary_size: int, seed: int) -> dict[str, Tensor]:
    """Return all parameters that training starts from by name; the same for every strategy and world size."""
    shapes = parameter_shapes(architecture, vocabulary_size)
    return {name: initial_weight(name, shape, architecture, seed) for name, shape in shapes.items()}


# Random normal weights, drawn in blocks, so that a process makes little more than what it holds of them.


BLOCK_ELEMENTS = 2**20
"""Of a flattened parameter. Larger ones waste more at the ends of what a process holds; below 2**16 a block's generator
costs as much as its numbers."""


def _draw_block(name: str, elements: int, number: int, deviation: float, seed: int) -> Tensor:
    """Return one block of a flattened parameter of so many elements, drawn by a generator of its own."""
    drawn_by = f"{seed}/{name}/{number}" if number else f"{seed}/{name}"
    digest = hashlib.sha256(drawn_by.encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
    length = min(BLOCK_ELEMENTS, elements - number * BLOCK_ELEMENTS)
    # Always the whole block in memory of its own: which numbers torch draws depends on how many are asked for.
    return torch.empty(length).normal_(0.0, deviation, generator=generator)


def draw_normal(
    name: str, shape: Sequence[int], deviation: float, seed: int, part: Sequence[slice] | None = None
) -> Tensor:
    """Return a parameter of that shape with normal elements, or a part of it: float32, on the CPU.

    `part` has a slice for every dimension. The same elements come out for every part: block k of the flattened
    parameter is drawn by a generator that is seeded with the first 8 bytes of SHA-256 of `SEED/NAME/k`, block 0 of
    `SEED/NAME`. Only the blocks that the part meets are drawn, each once, and one is in memory at a time.
    """
    spans = [range(size)[one] for size, one in zip(shape, part or [slice(None)] * len(shape), strict=True)]
    found = torch.empty([len(span) for span in spans])
    flat = found.view(-1)
    # Elements follow each other in the flattened parameter from the last dimension that is cut on.
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
                held, block = number, _draw_block(name, prod(shape), number, deviation, seed)
            length = min(end - filled, len(block) - offset)
            flat[filled : filled + length] = block[offset : offset + length]
            filled, position = filled + length, position + length
    return found
