"""Context parallelism: a sequence is split over processes, see docs/explanation/parallel-training.md.

After Ulysses (Jacobs et al. 2023) an all-to-all before the attention exchanges positions for heads, one after it heads
for positions. Key-value heads that do not divide are repeated until they do (Fang & Zhao 2024, USP, section 3.1).
Where more processes share a sequence than divide its heads, groups of them compute the queries of different positions
(Grattafiori et al. 2024, Llama 3, section 3.3.2), in two chunks, so that all read as much.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.model.decoder import Block, Decoder
from pipeline.model.torch_private import all_to_all_single_autograd


def repeat_heads_until_divisible(x_BTX: Tensor, head_dimension: int, parts: int) -> Tensor:
    """Repeat each head until `parts` divides the number of heads; copies of a head are adjacent."""
    heads = x_BTX.shape[-1] // head_dimension
    times = math.lcm(heads, parts) // heads
    x_BTHE = x_BTX.view(*x_BTX.shape[:-1], heads, head_dimension)
    return x_BTHE.repeat_interleave(times, dim=2).flatten(2)


class ContextGroup:
    """The C processes that share a sequence: C / P groups of P neighbors (`parts`), which divide the heads."""

    def __init__(self, group: dist.ProcessGroup, parts: int) -> None:
        self.group, self.parts = group, parts
        self.groups = group.size() // parts
        self._own, self._part = divmod(group.rank(), self.parts)

    def query_spans(self, length: int) -> list[range]:
        """Return the positions of the queries that this process's group computes."""
        if self.groups == 1:
            return [range(length)]
        chunk = length // (2 * self.groups)
        return [range(n * chunk, (n + 1) * chunk) for n in (self._own, 2 * self.groups - 1 - self._own)]

    def positions(self, length: int, device: torch.device) -> Tensor:
        """Return the positions of this process, (T / C)."""
        of_group = torch.cat([torch.arange(span.start, span.stop, device=device) for span in self.query_spans(length)])
        return of_group.chunk(self.parts)[self._part]

    def select_local_positions(self, x_BT: Tensor) -> Tensor:
        """Return this process's positions of a full tensor."""
        return x_BT[:, self.positions(x_BT.shape[1], x_BT.device)]

    def _exchange(self, parts: Tensor) -> Tensor:
        """All-to-all: send part i to process i of the sequence, or of the own group; return the received parts."""
        numbers = [0] * self.group.size()
        first = 0 if len(parts) == len(numbers) else self._own * self.parts
        numbers[first : first + len(parts)] = [parts[0].numel()] * len(parts)
        return all_to_all_single_autograd(parts.flatten(), numbers, numbers, self.group).view(parts.shape)

    def to_heads(self, x_BTX: Tensor) -> Tensor:
        """Exchange (B, T / C, X) with all heads for (B, T P / C, X / P) with the positions of `query_spans`."""
        parts = torch.stack(x_BTX.chunk(self.parts, dim=-1))
        return self._exchange(parts).transpose(0, 1).flatten(1, 2)

    def to_all_positions(self, x_BTX: Tensor) -> Tensor:
        """Exchange (B, T / C, X) with all heads for (B, T, X / P) with all positions in order."""
        parts = torch.stack(x_BTX.chunk(self.parts, dim=-1)).repeat(self.groups, 1, 1, 1)
        received_CBTX = self._exchange(parts)
        if self.groups == 1:
            return received_CBTX.transpose(0, 1).flatten(1, 2)
        of_groups = received_CBTX.view(self.groups, self.parts, *received_CBTX.shape[1:]).transpose(1, 2).flatten(2, 3)
        early, late = of_groups.chunk(2, dim=2)
        return torch.cat([early, late.flip(0)]).transpose(0, 1).flatten(1, 2)

    def to_positions(self, x_BTX: Tensor) -> Tensor:
        """Exchange (B, T P / C, X / P) for (B, T / C, X): the inverse of to_heads."""
        parts = torch.stack(x_BTX.chunk(self.parts, dim=1))
        return self._exchange(parts).permute(1, 2, 0, 3).flatten(2)


def apply(model: Decoder, context: ContextGroup) -> None:
    """Let a model, or a stage of it, take full sequences and compute this process's positions."""

    def select_local_inputs(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (context.select_local_positions(inputs[0]), *inputs[1:])

    def exchange_queries(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return context.to_heads(output)

    def gather_keys_and_values(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return context.to_all_positions(
            repeat_heads_until_divisible(output, model.architecture.head_dimension, context.parts)
        )

    def exchange_outputs(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (context.to_positions(inputs[0]), *inputs[1:])

    if isinstance(model.embedding, nn.Embedding):
        model.embedding.register_forward_pre_hook(select_local_inputs, prepend=True)
    for block in model.blocks:
        if isinstance(block, Block):
            attention = block.attention
            attention.query_spans = context.query_spans
            attention.query.register_forward_hook(exchange_queries)
            for projection in (attention.key, attention.value):
                projection.register_forward_hook(gather_keys_and_values)
            attention.output.register_forward_pre_hook(exchange_outputs, prepend=True)
