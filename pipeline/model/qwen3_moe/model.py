"""The Qwen3 architecture with experts (Yang et al. 2025) in plain PyTorch: see `pipeline.model.experts`."""

from __future__ import annotations

from pipeline.model.experts import Experts
from pipeline.model.qwen3 import model


class Block(model.Block):
    """A layer of a Qwen3 whose feed-forward block is a mixture of experts."""

    feed_forward_kind = Experts


class Qwen3Moe(model.Qwen3):
    """Such blocks between an embedding and a normalised output."""

    block = Block
