"""Tensor parallelism with sequence parallelism (Shoeybi et al. 2020, Korthikanti et al. 2022).

Matrices that open a branch are split by columns, those that close it by rows; between them the stream is split by
position. Embedding, norms and output take part, so that every parameter lies on the same mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
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
from pipeline.model.networks import Split, network

_POSITIONS = Shard(1)


class _Vocabulary(ParallelStyle):
    """Splits the output by vocabulary: from positions to the logits of all, or with targets to their loss."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in module.named_parameters(recurse=False):
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter, device_mesh, [Shard(0)])))

        def gathered(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (inputs[0].redistribute(placements=[Replicate()]), *inputs[1:])

        def joined(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            return output.redistribute(placements=[Replicate()]).to_local() if isinstance(output, DTensor) else output

        module.register_forward_pre_hook(gathered)
        module.register_forward_hook(joined)
        return module


_TOP: dict[str, ParallelStyle] = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=_POSITIONS),
    "norm": SequenceParallel(),
    "output": _Vocabulary(),
}

_SPLIT: dict[Split, ParallelStyle] = {
    "positions": SequenceParallel(),
    "columns": ColwiseParallel(),
    "rows": RowwiseParallel(output_layouts=_POSITIONS),
    "heads": SequenceParallel(sequence_dim=2, use_local_output=True),
}
# Once for all matrices that read the same input, not by each of them.
_GATHER = PrepareModuleOutput(output_layouts=_POSITIONS, desired_output_layouts=Replicate(), use_local_output=False)
# Each tile of a feed-forward block has positions of all processes: they are split when the tiles are one again.
_TILED_ROWS = RowwiseParallel(output_layouts=Partial(), use_local_output=False)
_TILES = PrepareModuleOutput(output_layouts=Partial(), desired_output_layouts=_POSITIONS)


def _apply_to_block(block: Block, mesh: DeviceMesh, splits: Mapping[str, Split]) -> None:
    styles = {name: _SPLIT[split] for name, split in splits.items()}
    if block.feed_forward.tiles > 1:
        rows = [name for name in styles if name.startswith("feed_forward.") and splits[name] == "rows"]
        styles |= {**dict.fromkeys(rows, _TILED_ROWS), "feed_forward": _TILES}
    parallelize_module(block, mesh, styles)
    parallelize_module(block, mesh, {name: _GATHER for name, split in splits.items() if split == "positions"})


def apply(model: Decoder, mesh: DeviceMesh, *, asynchronous: bool) -> None:
    """Split the parameters of a model, or of a pipeline's stage of it, over a mesh of one dimension.

    `asynchronous` lets the compiler overlap communication with matrix products, on NVIDIA GPUs that see each other's
    memory.
    """
    present = {name: style for name, style in _TOP.items() if next(getattr(model, name).parameters(), None) is not None}
    parallelize_module(model, mesh, present)
    if model.architecture.tie_embeddings:
        model.output.weight = model.embedding.weight
    for block in model.blocks:
        if isinstance(block, Block):
            _apply_to_block(block, mesh, network(model.architecture.name).splits)
    if asynchronous:
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        torch._inductor.config._micro_pipeline_tp = True
        enable_symm_mem_for_group(mesh.get_group().group_name)
