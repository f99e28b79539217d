"""The decoder-only transformer that every architecture is made of; an architecture defines its blocks.

Names end in the axes of their tensor: B batch, T time, D width, H heads, K key-value heads, E head dimension,
F feed-forward width, V vocabulary. The modules hold parameters only, no buffers, so a model can be made on the meta
device. Parallelism and the options of `set_execution_options` reach the parts by the names that they have here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.attention.varlen  # declares its operator
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from pipeline.model.attention import Attention, attention_limits, rotary_angles
from pipeline.model.loss import linear_cross_entropy
from pipeline.model.settings import Architecture


class FeedForward(nn.Module):
    """SwiGLU: a gated linear unit with the SiLU as gate (Shazeer 2020)."""

    tiles = 1
    """Into how many parts the sequence is cut; each is computed again for its gradient, so that one is held at a time
    (Bekman et al. 2025, Arctic Long Sequence Training)."""
    gate: nn.Module
    up: nn.Module
    down: nn.Module

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.gate = nn.Linear(architecture.width, architecture.hidden, bias=False)
        self.up = nn.Linear(architecture.width, architecture.hidden, bias=False)
        self.down = nn.Linear(architecture.hidden, architecture.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return (B, T, D)."""
        if self.tiles == 1:
            return self._part(x_BTD)
        return torch.cat([checkpoint_activations(self._part, part) for part in x_BTD.chunk(self.tiles, dim=1)], dim=1)

    def _part(self, x_BTD: Tensor) -> Tensor:
        y_BTD: Tensor = self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))
        return y_BTD


class Block(nn.Module, ABC):
    """One layer of the stream; an architecture says its parts and what it computes."""

    recomputation: Recomputation = "none"
    attention: Attention
    feed_forward: FeedForward

    def forward(self, x_BTD: Tensor, cosine_TE: Tensor, sine_TE: Tensor, limits: Tensor | None = None) -> Tensor:
        """Return the stream after this layer, (B, T, D)."""
        return checkpoint_activations(self.layer, x_BTD, cosine_TE, sine_TE, limits, how=self.recomputation)

    @abstractmethod
    def layer(self, x_BTD: Tensor, cosine_TE: Tensor, sine_TE: Tensor, limits: Tensor | None) -> Tensor:
        """Return the same; the angles are those of `rotary_angles`, the limits those of `attention_limits`."""


class OutputHead(nn.Linear):
    """From the stream to the vocabulary: logits, or with targets their loss."""

    z_loss = 0.0
    """Weight of the z-loss in the gradients of the loss: see `pipeline.model.loss`."""
    compiled = False
    """Whether the loss is compiled."""

    def forward(self, x_BTD: Tensor, target_BT: Tensor | None = None) -> Tensor:
        """Return logits (B, T, V), or the sum of the token losses in nats, which takes a fraction of their memory."""
        if target_BT is None:
            return super().forward(x_BTD)
        if isinstance(self.weight, DTensor) and isinstance(x_BTD, DTensor):  # split by vocabulary
            group = self.weight.device_mesh.get_group()
            x_BTD = x_BTD.to_local(grad_placements=[Partial()])
            return linear_cross_entropy(x_BTD, self.weight.to_local(), target_BT, group, z_loss=self.z_loss)
        return linear_cross_entropy(x_BTD, self.weight, target_BT, z_loss=self.z_loss, compiled=self.compiled)


class Decoder(nn.Module):
    """Token ids in, next-token logits or their loss out."""

    block: ClassVar[type[Block]]
    """The layer, made from the shape."""

    def __init__(self, architecture: Architecture, vocabulary_size: int) -> None:
        super().__init__()
        self.architecture = architecture
        self.embedding = nn.Embedding(vocabulary_size, architecture.width)
        blocks = [self.block(architecture) for _ in range(architecture.layers)]
        for block, window in zip(blocks, architecture.windows(), strict=True):
            block.attention.window = window
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(architecture.width, eps=architecture.norm_epsilon)
        self.output = OutputHead(architecture.width, vocabulary_size, bias=False)
        if architecture.tie_embeddings:
            self.output.weight = self.embedding.weight

    def forward(self, tokens_BT: Tensor, target_BT: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """Return logits (B, T, V); with targets the sum of the token losses in nats, a float32 scalar.

        A target of -100 does not count. `documents` says where in the joined rows each document begins and the last
        one ends, int32 (documents + 1,), every row with a begin: no position reads another document than its own; an
        empty one is none. The loss is made in here, while a sharded output weight is gathered.
        """
        x_BTD = self.run_layers(range(len(self.blocks)), self.embedding(tokens_BT), tokens_BT, documents)
        result: Tensor = self.output(self.norm(x_BTD), target_BT)
        return result

    def run_layers(self, layers: Iterable[int], x_BTD: Tensor, tokens_BT: Tensor, documents: Tensor | None) -> Tensor:
        """Return the stream of these tokens after these layers, (B, T, D)."""
        cosine_TE, sine_TE = rotary_angles(tokens_BT.shape[1], self.architecture, tokens_BT.device)
        windows = {layer: self.architecture.windows()[layer] for layer in layers}
        dtype = x_BTD.dtype
        limits = {each: attention_limits(tokens_BT, documents, each, dtype) for each in {*windows.values()}}
        for layer, window in windows.items():
            x_BTD = self.blocks[layer](x_BTD, cosine_TE, sine_TE, limits[window])
        return x_BTD


# Activation recomputation (Chen et al. 2016): what a module computes is forgotten and computed again when its
# gradient is due.
#
# Full keeps a block's input only. Selective keeps, beside it, the results of the matrix products and of the
# attention, which take the time, and computes norms, rotations, activations and sums again (Korthikanti et al. 2022).


Recomputation = Literal["none", "selective", "full"]

_SAVED_OPERATORS = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._grouped_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.torch_attn._varlen_attn.default,
}


def _selective_policy(context: SelectiveCheckpointContext, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _SAVED_OPERATORS else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_activations(
    function: Callable[..., Tensor], *arguments: Tensor | None, how: Recomputation = "full"
) -> Tensor:
    """Return function(*arguments), its intermediate results kept or not as `how` says; it may hold no randomness."""
    if how == "none" or not torch.is_grad_enabled():
        return function(*arguments)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if how == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _selective_policy)
    result: Tensor = checkpoint(function, *arguments, **options)
    return result
