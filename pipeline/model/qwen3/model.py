"""The Qwen3 architecture (Yang et al. 2025) in plain PyTorch, with the axes of `pipeline.model.decoder`.

A Llama whose queries and keys are normalised, each head by itself and before it is rotated, with one weight for all
heads of a layer (Dehghani et al. 2023, section 2; Henry et al. 2020). Its attention's scores stay bounded.
"""

from __future__ import annotations

from torch import Tensor, nn

from pipeline.model import attention
from pipeline.model.llama import model
from pipeline.model.settings import Architecture


class Attention(attention.Attention):
    """Causal self-attention with normalised queries and keys."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        self.query_norm = nn.RMSNorm(architecture.head_dimension, eps=architecture.norm_epsilon)
        self.key_norm = nn.RMSNorm(architecture.head_dimension, eps=architecture.norm_epsilon)

    def heads(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, T, H, E) and keys (B, T, K, E), normalised, and values (B, T, K, E)."""
        q_BTHE, k_BTKE, v_BTKE = super().heads(x_BTD)
        return self.query_norm(q_BTHE), self.key_norm(k_BTKE), v_BTKE


class Block(model.Block):
    """A layer of a Llama with this attention."""

    attention_kind = Attention


class Qwen3(model.Llama):
    """Such blocks between an embedding and a normalised output."""

    block = Block
