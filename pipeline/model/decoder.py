"""The decoder-only transformer of every architecture; an architecture defines its blocks.

Names end in the axes of their tensor: B batch, T time, D width, H heads, K key-value heads, E head dimension,
F feed-forward width, V vocabulary. The modules hold parameters only, no buffers, so a model can be made on the meta
device. Parallelism and `set_execution_options` find the parts by these names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar, cast

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

from pipeline.model.attention import Attention, make_attention_mask, rotary_angles
from pipeline.model.loss import linear_cross_entropy, token_cross_entropies
from pipeline.model.settings import Architecture


class FeedForward(nn.Module):
    """SwiGLU: a gated linear unit with the SiLU as gate (Shazeer 2020)."""

    tiles = 1
    """Parts of the sequence, each recomputed in the backward pass, so that one is in memory at a time (Bekman et al.
    2025, Arctic Long Sequence Training)."""
    gate: nn.Module
    up: nn.Module
    down: nn.Module

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.gate = nn.Linear(architecture.width, architecture.intermediate_width, bias=False)
        self.up = nn.Linear(architecture.width, architecture.intermediate_width, bias=False)
        self.down = nn.Linear(architecture.intermediate_width, architecture.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return (B, T, D)."""
        if self.tiles == 1:
            return self._part(x_BTD)
        return torch.cat([checkpoint_activations(self._part, part) for part in x_BTD.chunk(self.tiles, dim=1)], dim=1)

    def _part(self, x_BTD: Tensor) -> Tensor:
        y_BTD: Tensor = self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))
        return y_BTD


LayerResult = Tensor | tuple[Tensor, Tensor]
"""The hidden states after a layer, (B, T, D); with experts also how many tokens visit each, (N,)."""


class Block(nn.Module, ABC):
    """One layer; an architecture defines its parts and its computation."""

    recomputation: Recomputation = "none"
    attention: Attention
    feed_forward: FeedForward

    def forward(self, x_BTD: Tensor, cosine_TE: Tensor, sine_TE: Tensor, limits: Tensor | None = None) -> LayerResult:
        """Return the result of `compute_layer` under the mode of recomputation."""
        return checkpoint_activations(self.compute_layer, x_BTD, cosine_TE, sine_TE, limits, how=self.recomputation)

    @abstractmethod
    def compute_layer(self, x_BTD: Tensor, cosine_TE: Tensor, sine_TE: Tensor, limits: Tensor | None) -> LayerResult:
        """Return the result for the angles of `rotary_angles` and the limits of `make_attention_mask`.

        It stores nothing in the module, because compilation with recomputation excludes side effects.
        """


class OutputHead(nn.Linear):
    """From hidden states to logits, or with targets to their loss."""

    z_loss = 0.0
    """Weight of the z-loss in the gradients of the loss: see `pipeline.model.loss`."""
    compiled = False
    """Whether the loss is compiled."""

    def forward(self, x_BTD: Tensor, target_BT: Tensor | None = None) -> Tensor:
        """Return logits (B, T, V), or the sum of the token losses in nats, in a fraction of the memory."""
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
    """The class of the layers."""

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
        self.visits: dict[int, Tensor] = {}
        """By layer, how many training tokens visited each of its experts, (N,), since it was cleared."""

    def forward(
        self,
        tokens_BT: Tensor,
        target_BT: Tensor | None = None,
        documents: Tensor | None = None,
        *,
        after_layer: Callable[[Block], None] | None = None,
    ) -> Tensor:
        """Return logits (B, T, V); with targets the sum of the token losses in nats, a float32 scalar.

        The loss is computed inside the model, while a sharded output weight is gathered.

        Args:
            target_BT: targets; -100 is ignored.
            documents: offsets of the documents in the joined rows, int32 (documents + 1,), with every start of a row;
                positions attend to their own document only. Empty documents are allowed.
            after_layer: called after each layer. With it, without gradients, all rows pass a layer one by one before
                the next layer, and the result is the loss of each token, (B, T). The losses of a row do not depend on
                the others, not even by rounding, and memory holds the hidden states of all rows once. `documents` has
                the offsets of each row by itself, (B, documents + 1), the last one repeated.
        """
        layers = range(len(self.blocks))
        x_BTD = self.embedding(tokens_BT)
        if after_layer is None:
            x_BTD = self.run_layers(layers, x_BTD, tokens_BT, documents)
            result: Tensor = self.output(self.norm(x_BTD), target_BT)
            return result
        assert target_BT is not None and not torch.is_grad_enabled()
        for layer in layers:
            for number in range(len(x_BTD)):
                row = slice(number, number + 1)
                own = None if documents is None else documents[number]
                x_BTD[row] = self.run_layers([layer], x_BTD[row], tokens_BT[row], own)
            after_layer(cast(Block, self.blocks[layer]))
        return self.token_losses(x_BTD, target_BT)

    def token_losses(self, x_BTD: Tensor, target_BT: Tensor) -> Tensor:
        """Return the loss of each token from the hidden states after the last layer, (B, T), with one row's logits."""
        rows = zip(torch.split(x_BTD, 1), torch.split(target_BT, 1), strict=True)
        return torch.cat([token_cross_entropies(self.output(self.norm(x)), target) for x, target in rows])

    def run_layers(self, layers: Iterable[int], x_BTD: Tensor, tokens_BT: Tensor, documents: Tensor | None) -> Tensor:
        """Return the hidden states of these tokens after these layers, (B, T, D)."""
        cosine_TE, sine_TE = rotary_angles(tokens_BT.shape[1], self.architecture, tokens_BT.device)
        windows = {layer: self.architecture.windows()[layer] for layer in layers}
        dtype = x_BTD.dtype
        limits = {each: make_attention_mask(tokens_BT, documents, each, dtype) for each in {*windows.values()}}
        for layer, window in windows.items():
            result: LayerResult = self.blocks[layer](x_BTD, cosine_TE, sine_TE, limits[window])
            if isinstance(result, Tensor):
                x_BTD = result
                continue
            x_BTD, visits_N = result
            if torch.is_grad_enabled():
                self.visits[layer] = visits_N + self.visits.get(layer, 0)
        return x_BTD


# Activation recomputation (Chen et al. 2016): a module's activations are freed and recomputed in the backward pass.
#
# Full recomputation keeps a block's input only. Selective recomputation also keeps the expensive results of matrix
# products and attention, and recomputes norms, rotations, activations and sums (Korthikanti et al. 2022).


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


Result = TypeVar("Result")


def checkpoint_activations(
    function: Callable[..., Result], *arguments: Tensor | None, how: Recomputation = "full"
) -> Result:
    """Return function(*arguments) under a mode of recomputation; the function must be deterministic."""
    if how == "none" or not torch.is_grad_enabled():
        return function(*arguments)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if how == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _selective_policy)
    result: Result = checkpoint(function, *arguments, **options)
    return result
