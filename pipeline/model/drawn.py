"""Normal weights that are drawn in blocks, so that a process makes little more than what it holds of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor

BLOCK_ELEMENTS = 2**20
"""Of a flattened parameter. Larger ones waste more at the ends of what a process holds; below 2**16 a block's generator
costs as much as its numbers."""


def _block(name: str, elements: int, number: int, deviation: float, seed: int) -> Tensor:
    """Return one block of a flattened parameter of so many elements, drawn by a generator of its own."""
    drawn_by = f"{seed}/{name}/{number}" if number else f"{seed}/{name}"
    digest = hashlib.sha256(drawn_by.encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
    length = min(BLOCK_ELEMENTS, elements - number * BLOCK_ELEMENTS)
    # Always the whole block in memory of its own: which numbers torch draws depends on how many are asked for.
    return torch.empty(length).normal_(0.0, deviation, generator=generator)


def normal(name: str, shape: Sequence[int], deviation: float, seed: int, part: Sequence[slice] | None = None) -> Tensor:
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
                held, block = number, _block(name, prod(shape), number, deviation, seed)
            length = min(end - filled, len(block) - offset)
            flat[filled : filled + length] = block[offset : offset + length]
            filled, position = filled + length, position + length
    return found
