"""The Llama 3 architecture in plain PyTorch, with the axes of `pipeline.model.decoder`.

Grouped-query attention (Ainslie et al. 2023), rotary position embeddings (Su et al. 2021) on the two halves of a head,
SwiGLU (Shazeer 2020), RMSNorm (Zhang & Sennrich 2019) before each branch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from pipeline.model import decoder
from pipeline.model.attention import Attention
from pipeline.model.drawn import normal
from pipeline.model.maximal_update import deviation_factor
from pipeline.model.settings import Architecture


class Block(decoder.Block):
    """One layer: attention and feed-forward, each on normalised input and added to the stream."""

    attention_kind: ClassVar[type[Attention]] = Attention
    feed_forward_kind: ClassVar[type[decoder.FeedForward]] = decoder.FeedForward

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(architecture.width, eps=architecture.norm_epsilon)
        self.attention = self.attention_kind(architecture)
        self.feed_forward_norm = nn.RMSNorm(architecture.width, eps=architecture.norm_epsilon)
        self.feed_forward = self.feed_forward_kind(architecture)

    def layer(self, x_BTD: Tensor, cosine_TE: Tensor, sine_TE: Tensor, limits: Tensor | None) -> Tensor:
        """Return the stream after this layer, (B, T, D)."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cosine_TE, sine_TE, limits)
        y_BTD: Tensor = x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))
        return y_BTD


class Llama(decoder.Decoder):
    """Such blocks between an embedding and a normalised output."""

    block = Block


def initial_weight(
    name: str, shape: torch.Size, architecture: Architecture, seed: int, part: Sequence[slice] | None = None
) -> Tensor:
    """Return one parameter as training starts from it, or a part of it, without making any other: see `networks`.

    Norms are one; matrices are normal with one deviation, the two that write into the stream with it / sqrt(2 L), so
    that its variance does not grow with the L layers (Radford et al. 2019); with a base width, both times the factor
    of `pipeline.model.maximal_update`. How they are drawn: `pipeline.model.drawn`.
    """
    if len(shape) == 1:
        return torch.ones(shape)[part[0] if part else slice(None)]
    deviation = architecture.initial_deviation * deviation_factor(name, architecture)
    if name.endswith(("attention.output.weight", "feed_forward.down.weight")):
        deviation /= math.sqrt(2 * architecture.layers)
    return normal(name, shape, deviation, seed, part)
