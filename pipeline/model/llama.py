"""The Llama 3 architecture in plain PyTorch.

Names end in the axes of their tensor: B batch, T time, D width, H heads, K key-value heads,
E head dimension, F feed-forward width, V vocabulary. Grouped-query attention (Ainslie et al. 2023), rotary position
embeddings (Su et al. 2021) on the two halves of a head, SwiGLU (Shazeer 2020), RMSNorm (Zhang & Sennrich 2019) before
each block. The modules hold parameters only, no buffers, so a model can be made on the meta device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.model.settings import Architecture

INITIAL_DEVIATION = 0.02


def rotary_angles(length: int, architecture: Architecture, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of position times frequency, each (T, E/2), float32."""
    exponent = torch.arange(0, architecture.head_dimension, 2, device=device, dtype=torch.float32)
    frequency = 1.0 / architecture.rope_theta ** (exponent / architecture.head_dimension)
    angle_TE = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency)
    return angle_TE.cos(), angle_TE.sin()


def rotate(x_BHTE: Tensor, cosine_TE: Tensor, sine_TE: Tensor) -> Tensor:
    """Return the heads with dimension i and i + E/2 rotated by their position's angle."""
    first, second = x_BHTE.chunk(2, dim=-1)
    cosine_TE, sine_TE = cosine_TE.to(x_BHTE.dtype), sine_TE.to(x_BHTE.dtype)
    return torch.cat((first * cosine_TE - second * sine_TE, second * cosine_TE + first * sine_TE), dim=-1)


class Attention(nn.Module):
    """Causal self-attention in which groups of heads share keys and values."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a = architecture
        self.heads, self.groups = a.heads, a.groups
        self.query = nn.Linear(a.width, a.heads * a.head_dimension, bias=False)
        self.key = nn.Linear(a.width, a.groups * a.head_dimension, bias=False)
        self.value = nn.Linear(a.width, a.groups * a.head_dimension, bias=False)
        self.output = nn.Linear(a.heads * a.head_dimension, a.width, bias=False)

    def forward(self, x_BTD: Tensor, cosine_TE: Tensor, sine_TE: Tensor) -> Tensor:
        """Return what each position reads from itself and those before it, (B, T, D)."""
        q_BHTE = self.query(x_BTD).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k_BKTE = self.key(x_BTD).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        v_BKTE = self.value(x_BTD).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        q_BHTE, k_BKTE = rotate(q_BHTE, cosine_TE, sine_TE), rotate(k_BKTE, cosine_TE, sine_TE)
        y_BHTE = F.scaled_dot_product_attention(
            q_BHTE, k_BKTE, v_BKTE, is_causal=True, enable_gqa=self.groups < self.heads
        )
        y_BTD: Tensor = self.output(y_BHTE.transpose(1, 2).flatten(2))
        return y_BTD


class FeedForward(nn.Module):
    """SwiGLU: a gated linear unit with the SiLU as gate."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.gate = nn.Linear(architecture.width, architecture.hidden, bias=False)
        self.up = nn.Linear(architecture.width, architecture.hidden, bias=False)
        self.down = nn.Linear(architecture.hidden, architecture.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return (B, T, D)."""
        y_BTD: Tensor = self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))
        return y_BTD


class Block(nn.Module):
    """One layer: attention and feed-forward, each on normalised input and added to the stream."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(architecture.width, eps=architecture.norm_epsilon)
        self.attention = Attention(architecture)
        self.feed_forward_norm = nn.RMSNorm(architecture.width, eps=architecture.norm_epsilon)
        self.feed_forward = FeedForward(architecture)

    def forward(self, x_BTD: Tensor, cosine_TE: Tensor, sine_TE: Tensor) -> Tensor:
        """Return the stream after this layer, (B, T, D)."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cosine_TE, sine_TE)
        y_BTD: Tensor = x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))
        return y_BTD


class Llama(nn.Module):
    """Token ids in, next-token logits out."""

    def __init__(self, architecture: Architecture, vocabulary_size: int) -> None:
        super().__init__()
        self.architecture = architecture
        self.embedding = nn.Embedding(vocabulary_size, architecture.width)
        self.blocks = nn.ModuleList(Block(architecture) for _ in range(architecture.layers))
        self.norm = nn.RMSNorm(architecture.width, eps=architecture.norm_epsilon)
        self.output = nn.Linear(architecture.width, vocabulary_size, bias=False)
        if architecture.tie_embeddings:
            self.output.weight = self.embedding.weight

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        x_BTD = self.embedding(tokens_BT)
        cosine_TE, sine_TE = rotary_angles(tokens_BT.shape[1], self.architecture, tokens_BT.device)
        for block in self.blocks:
            x_BTD = block(x_BTD, cosine_TE, sine_TE)
        logits_BTV: Tensor = self.output(self.norm(x_BTD))
        return logits_BTV


def initial_tensors(architecture: Architecture, vocabulary_size: int, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights that training starts from, float32, by parameter name; the same for every world size.

    Norms are one; matrices are normal with deviation 0.02, and the two that write into the stream 0.02 / sqrt(2 L), so
    that its variance does not grow with the L layers (Radford et al. 2019).
    """
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in Llama(architecture, vocabulary_size).named_parameters()}
    generator = torch.Generator().manual_seed(seed)
    for name, shape in shapes.items():
        if len(shape) == 1:
            yield name, torch.ones(shape)
            continue
        writes = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
        deviation = INITIAL_DEVIATION / math.sqrt(2 * architecture.layers) if writes else INITIAL_DEVIATION
        yield name, torch.empty(shape).normal_(0.0, deviation, generator=generator)


def initial_state(architecture: Architecture, vocabulary_size: int, seed: int) -> dict[str, Tensor]:
    """Return `initial_tensors` all at once."""
    return dict(initial_tensors(architecture, vocabulary_size, seed))
