"""The Llama 3 architecture in plain PyTorch.

Names end in the axes of their tensor: B batch, T time, D width, H heads, K key-value heads,
E head dimension, F feed-forward width, V vocabulary. Grouped-query attention (Ainslie et al. 2023), rotary position
embeddings (Su et al. 2021) on the two halves of a head, SwiGLU (Shazeer 2020), RMSNorm (Zhang & Sennrich 2019) before
each block. The modules hold parameters only, no buffers, so a model can be made on the meta device.
"""

from __future__ import annotations

import hashlib
import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from pipeline.model.attention import Attention, document_limits, rotary_angles
from pipeline.model.loss import linear_cross_entropy
from pipeline.model.recompute import Recomputation, recomputed
from pipeline.model.settings import Architecture

INITIAL_DEVIATION = 0.02


class FeedForward(nn.Module):
    """SwiGLU: a gated linear unit with the SiLU as gate."""

    tiles = 1
    """Into how many parts the sequence is cut; each is computed again for its gradient, so that one is held at a time
    (Bekman et al. 2025, Arctic Long Sequence Training)."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.gate = nn.Linear(architecture.width, architecture.hidden, bias=False)
        self.up = nn.Linear(architecture.width, architecture.hidden, bias=False)
        self.down = nn.Linear(architecture.hidden, architecture.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return (B, T, D)."""
        if self.tiles == 1:
            return self._part(x_BTD)
        return torch.cat([recomputed(self._part, part) for part in x_BTD.chunk(self.tiles, dim=1)], dim=1)

    def _part(self, x_BTD: Tensor) -> Tensor:
        y_BTD: Tensor = self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))
        return y_BTD


class Block(nn.Module):
    """One layer: attention and feed-forward, each on normalised input and added to the stream."""

    recomputation: Recomputation = "none"

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(architecture.width, eps=architecture.norm_epsilon)
        self.attention = Attention(architecture)
        self.feed_forward_norm = nn.RMSNorm(architecture.width, eps=architecture.norm_epsilon)
        self.feed_forward = FeedForward(architecture)

    def forward(self, x_BTD: Tensor, cosine_TE: Tensor, sine_TE: Tensor, limits: Tensor | None = None) -> Tensor:
        """Return the stream after this layer, (B, T, D)."""
        return recomputed(self._layer, x_BTD, cosine_TE, sine_TE, limits, how=self.recomputation)

    def _layer(self, x_BTD: Tensor, cosine_TE: Tensor, sine_TE: Tensor, limits: Tensor | None) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cosine_TE, sine_TE, limits)
        y_BTD: Tensor = x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))
        return y_BTD


class Output(nn.Linear):
    """From the stream to the vocabulary: logits, or with targets their loss."""

    def forward(self, x_BTD: Tensor, target_BT: Tensor | None = None) -> Tensor:
        """Return logits (B, T, V), or the sum of the token losses in nats, which takes a fraction of their memory."""
        if target_BT is None:
            return super().forward(x_BTD)
        if isinstance(self.weight, DTensor) and isinstance(x_BTD, DTensor):  # split by vocabulary
            group = self.weight.device_mesh.get_group()
            x_BTD = x_BTD.to_local(grad_placements=[Partial()])
            return linear_cross_entropy(x_BTD, self.weight.to_local(), target_BT, group)
        return linear_cross_entropy(x_BTD, self.weight, target_BT)


class Llama(nn.Module):
    """Token ids in, next-token logits or their loss out."""

    def __init__(self, architecture: Architecture, vocabulary_size: int) -> None:
        super().__init__()
        self.architecture = architecture
        self.embedding = nn.Embedding(vocabulary_size, architecture.width)
        self.blocks = nn.ModuleList(Block(architecture) for _ in range(architecture.layers))
        self.norm = nn.RMSNorm(architecture.width, eps=architecture.norm_epsilon)
        self.output = Output(architecture.width, vocabulary_size, bias=False)
        if architecture.tie_embeddings:
            self.output.weight = self.embedding.weight

    def forward(self, tokens_BT: Tensor, target_BT: Tensor | None = None, document_BT: Tensor | None = None) -> Tensor:
        """Return logits (B, T, V); with targets the sum of the token losses in nats, a float32 scalar.

        A target of -100 does not count. `document_BT` numbers the documents packed into a row: no position reads
        another document than its own. The loss is made in here, while a sharded output weight is gathered.
        """
        x_BTD = self.embedding(tokens_BT)
        cosine_TE, sine_TE = rotary_angles(tokens_BT.shape[1], self.architecture, tokens_BT.device)
        limits = None if document_BT is None else document_limits(document_BT, x_BTD.dtype)
        for block in self.blocks:
            x_BTD = block(x_BTD, cosine_TE, sine_TE, limits)
        result: Tensor = self.output(self.norm(x_BTD), target_BT)
        return result


@cache
def parameter_shapes(architecture: Architecture, vocabulary_size: int) -> dict[str, torch.Size]:
    """Return every parameter's shape by name, in the model's order; a tied output is the embedding and not named."""
    with torch.device("meta"):
        return {name: p.shape for name, p in Llama(architecture, vocabulary_size).named_parameters()}


def initial_weight(name: str, shape: torch.Size, architecture: Architecture, seed: int) -> Tensor:
    """Return one parameter as training starts from it, float32, on the CPU, without making any other.

    Norms are one; matrices are normal with deviation 0.02, and the two that write into the stream 0.02 / sqrt(2 L), so
    that its variance does not grow with the L layers (Radford et al. 2019). The generator's seed is a hash of the
    run's seed and the parameter's name.
    """
    if len(shape) == 1:
        return torch.ones(shape)
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
    writes = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
    deviation = INITIAL_DEVIATION / math.sqrt(2 * architecture.layers) if writes else INITIAL_DEVIATION
    return torch.empty(shape).normal_(0.0, deviation, generator=generator)


def initial_state(architecture: Architecture, vocabulary_size: int, seed: int) -> dict[str, Tensor]:
    """Return all parameters that training starts from by name; the same for every strategy and world size."""
    shapes = parameter_shapes(architecture, vocabulary_size)
    return {name: initial_weight(name, shape, architecture, seed) for name, shape in shapes.items()}
