"""The second architecture for training and exchange."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.model import decoder
from pipeline.model.attention import Attention
from pipeline.model.networks import Network, draw_normal
from pipeline.model.settings import Architecture

SIZES = {"layers": "n_layer", "width": "n_embd", "heads": "n_head", "key_value_heads": "n_group"}


class Block(decoder.Block):
    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(architecture.width, eps=architecture.norm_epsilon)
        self.attention = Attention(architecture)
        self.feed_forward = decoder.FeedForward(architecture)

    def compute_layer(self, x_BTD: Tensor, cosine_TE: Tensor, sine_TE: Tensor, limits: Tensor | None) -> Tensor:
        y_BTD = self.norm(x_BTD)
        z_BTD: Tensor = x_BTD + self.attention(y_BTD, cosine_TE, sine_TE, limits) + self.feed_forward(y_BTD)
        return z_BTD


class SideBySide(decoder.Decoder):
    block = Block


def initial_weight(
    name: str, shape: torch.Size, architecture: Architecture, seed: int, part: Sequence[slice] | None = None
) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape)[part[0] if part else slice(None)]
    return draw_normal(name, shape, 0.1, seed, part)


def huggingface_config(architecture: Architecture, vocabulary_size: int, sequence_length: int) -> dict[str, object]:
    sizes = {theirs: getattr(architecture, own) for own, theirs in SIZES.items()}
    others = {"vocab_size": vocabulary_size, "max_position_embeddings": sequence_length}
    return {"model_type": "side_by_side", **sizes, **others}


def read_huggingface_config(config: Mapping[str, Any], path: Path) -> Architecture:
    return Architecture(preset="second", **{own: config[theirs] for own, theirs in SIZES.items()})


NETWORK = Network(
    model=SideBySide,
    initial_weight=initial_weight,
    splits={
        "norm": "positions",
        **dict.fromkeys(("attention.query", "attention.key", "attention.value"), "columns"),
        "attention.output": "rows",
        **dict.fromkeys(("feed_forward.gate", "feed_forward.up"), "columns"),
        "feed_forward.down": "rows",
    },
    model_types=("side_by_side",),
    huggingface_name=lambda name: f"transformer.{name}",
    huggingface_config=huggingface_config,
    read_huggingface_config=read_huggingface_config,
)
