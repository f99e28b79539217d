"""Tensor parallelism with sequence parallelism (Shoeybi et al. 2020, Korthikanti et al. 2022).

The first matrices of a branch are split by columns, the last by rows; between branches, hidden states are split by
position. Embedding, norms and output take part, so that every parameter is on the same mesh. Keys and values with
indivisible heads are replicated: see `_ReplicatedHeads`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from pipeline.model.decoder import Block, Decoder
from pipeline.model.networks import Split, get_network
from pipeline.model.torch_private import overlap_tensor_parallel

_POSITIONS = Shard(1)


class _VocabularyParallel(ParallelStyle):
    """Splits the output by vocabulary: from positions to all logits, or with targets to their loss."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in module.named_parameters(recurse=False):
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter, device_mesh, [Shard(0)])))

        def replicate_input(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (inputs[0].redistribute(placements=[Replicate()]), *inputs[1:])

        def joined(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            return output.redistribute(placements=[Replicate()]).to_local() if isinstance(output, DTensor) else output

        module.register_forward_pre_hook(replicate_input)
        module.register_forward_hook(joined)
        return module


_TOP_STYLES: dict[str, ParallelStyle] = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=_POSITIONS),
    "norm": SequenceParallel(),
    "output": _VocabularyParallel(),
}

_SPLIT_STYLES: dict[Split, ParallelStyle] = {
    "positions": SequenceParallel(),
    "columns": ColwiseParallel(),
    "rows": RowwiseParallel(output_layouts=_POSITIONS),
    "heads": SequenceParallel(sequence_dim=2, use_local_output=True),
}
# Gather the input once for all matrices that read it.
_GATHER = PrepareModuleOutput(output_layouts=_POSITIONS, desired_output_layouts=Replicate(), use_local_output=False)
# A tile of a feed-forward block has positions of all processes; they are split after the tiles are joined.
_TILED_ROWS = RowwiseParallel(output_layouts=Partial(), use_local_output=False)
_TILES = PrepareModuleOutput(output_layouts=Partial(), desired_output_layouts=_POSITIONS)


class _ReplicatedHeads(nn.Module):
    """A replicated key or value matrix, for key-value heads that the process group does not divide.

    A process computes the heads that its queries read, and repeats them so that equally many queries read each; P
    processes have lcm(heads, P) heads together. Gradients are summed over the group.
    """

    def __init__(self, weight: Tensor, heads: int, head_dimension: int, mesh: DeviceMesh) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(weight, mesh, [Replicate()]))
        self.head_dimension = head_dimension
        together = math.lcm(heads, mesh.size())
        self.each, self.times = together // mesh.size(), together // heads
        begin = mesh.get_local_rank() * self.each
        first, last = begin // self.times, (begin + self.each - 1) // self.times
        self.begin = begin - first * self.times
        self.rows = slice(first * head_dimension, (last + 1) * head_dimension)

    def forward(self, x_BTD: DTensor) -> Tensor:
        """Return the keys or values of this process's queries, (B, T, K x E)."""
        assert isinstance(self.weight, DTensor)
        local_BTD, weight_KD = (x.to_local(grad_placements=[Partial()]) for x in (x_BTD, self.weight))
        computed = F.linear(local_BTD, weight_KD[self.rows])
        k_BTKE = computed.view(*computed.shape[:-1], -1, self.head_dimension)
        return k_BTKE.repeat_interleave(self.times, dim=2).narrow(2, self.begin, self.each).flatten(2)


def _apply_to_block(block: Block, mesh: DeviceMesh, splits: Mapping[str, Split], key_value_heads: int) -> None:
    styles = {name: _SPLIT_STYLES[split] for name, split in splits.items()}
    if key_value_heads % mesh.size():  # each process computes those of its own queries
        attention = block.attention
        for projection in ("key", "value"):
            weight = getattr(attention, projection).weight
            setattr(attention, projection, _ReplicatedHeads(weight, key_value_heads, attention.head_dimension, mesh))
            del styles[f"attention.{projection}"]
    if block.feed_forward.tiles > 1:
        rows = [name for name in styles if name.startswith("feed_forward.") and splits[name] == "rows"]
        styles |= {**dict.fromkeys(rows, _TILED_ROWS), "feed_forward": _TILES}
    parallelize_module(block, mesh, styles)
    parallelize_module(block, mesh, {name: _GATHER for name, split in splits.items() if split == "positions"})


def apply(model: Decoder, mesh: DeviceMesh, *, asynchronous: bool) -> None:
    """Split the parameters of a model, or of a stage; `asynchronous` lets the compiler overlap communication."""
    present = {
        name: style for name, style in _TOP_STYLES.items() if next(getattr(model, name).parameters(), None) is not None
    }
    parallelize_module(model, mesh, present)
    if model.architecture.tie_embeddings:
        model.output.weight = model.embedding.weight
    for block in model.blocks:
        if isinstance(block, Block):
            _apply_to_block(
                block, mesh, get_network(model.architecture.name).splits, model.architecture.key_value_head_count
            )
    if asynchronous:
        overlap_tensor_parallel(mesh.get_group())
