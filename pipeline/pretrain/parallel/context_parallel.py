"""Context parallelism after Ulysses (Jacobs et al. 2023): a sequence is split over processes, its attention by heads.

The stream of a process holds its share of the positions; before the attention an all-to-all exchanges positions for
heads, after it heads for positions. It runs with every device, kernel and mask, for the attention sees whole sequences.
Key-value heads that do not divide are repeated until they do, at most to the number of heads (Fang & Zhao 2024, USP,
section 3.1).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

from pipeline.model.decoder import Block, Decoder


def _exchange(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send part i of the first dimension to process i and return what came from each."""
    return all_to_all_single_autograd(parts.flatten(), None, None, group).view(parts.shape)


def to_heads(x_BTX: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Give (B, T / C, X) with all heads, return (B, T, X / C) with all positions; C processes."""
    parts = torch.stack(x_BTX.chunk(group.size(), dim=-1))
    return _exchange(parts, group).transpose(0, 1).flatten(1, 2)


def repeated(x_BTX: Tensor, head_dimension: int, parts: int) -> Tensor:
    """Return each head as often as it takes until `parts` divides their number, copies of one beside each other."""
    heads = x_BTX.shape[-1] // head_dimension
    times = math.lcm(heads, parts) // heads
    x_BTHE = x_BTX.view(*x_BTX.shape[:-1], heads, head_dimension)
    return x_BTHE.repeat_interleave(times, dim=2).flatten(2)


def to_positions(x_BTX: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Give (B, T, X / C), return (B, T / C, X): the reverse of to_heads."""
    parts = torch.stack(x_BTX.chunk(group.size(), dim=1))
    return _exchange(parts, group).permute(1, 2, 0, 3).flatten(2)


def share(x_BT: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return this process's positions of something that all have whole."""
    return x_BT.chunk(group.size(), dim=1)[group.rank()]


def apply(model: Decoder, group: dist.ProcessGroup) -> None:
    """Let a model, or a stage of it, take whole sequences and compute this process's positions of them."""

    def shared(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (share(inputs[0], group), *inputs[1:])

    def gathered(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return to_heads(repeated(output, model.architecture.head_dimension, group.size()), group)

    def returned(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (to_positions(inputs[0], group), *inputs[1:])

    if isinstance(model.embedding, nn.Embedding):
        model.embedding.register_forward_pre_hook(shared, prepend=True)
    for block in model.blocks:
        if isinstance(block, Block):
            attention = block.attention
            for projection in (attention.query, attention.key, attention.value):
                projection.register_forward_hook(gathered)
            attention.output.register_forward_pre_hook(returned, prepend=True)
