"""The Qwen3 architecture (Yang et al. 2025) in plain PyTorch, with the axes of `pipeline.model.decoder`.

A Llama with normalized queries and keys, each head by itself and before its rotation, with one weight for all
heads of a layer (Dehghani et al. 2023, section 2; Henry et al. 2020). Its attention's scores stay bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pipeline.model import attention, llama_network
from pipeline.model.llama_network import NETWORK as LLAMA
from pipeline.model.networks import Network
from pipeline.model.settings import Architecture


class Qwen3Attention(attention.Attention):
    """Causal self-attention with normalized queries and keys."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        self.query_norm = nn.RMSNorm(architecture.head_dimension, eps=architecture.norm_epsilon)
        self.key_norm = nn.RMSNorm(architecture.head_dimension, eps=architecture.norm_epsilon)

    def project_heads(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, T, H, E) and keys (B, T, K, E), normalized, and values (B, T, K, E)."""
        q_BTHE, k_BTKE, v_BTKE = super().project_heads(x_BTD)
        return self.query_norm(q_BTHE), self.key_norm(k_BTKE), v_BTKE


class Qwen3Block(llama_network.LlamaBlock):
    """A layer of a Llama with this attention."""

    attention_kind = Qwen3Attention


class Qwen3(llama_network.Llama):
    """Such blocks between an embedding and a normalized output."""

    block = Qwen3Block


_NORMS = {
    "attention.query_norm.weight": "self_attn.q_norm.weight",
    "attention.key_norm.weight": "self_attn.k_norm.weight",
}
# What Transformers takes where config.json does not say it, and a Llama takes otherwise.
_DEFAULTS = {"head_dim": 128, "num_key_value_heads": 32, "sliding_window": 4096}
_FIRST_WINDOWED = 28


def huggingface_name(name: str) -> str:
    """Return Transformers' name of a parameter of `pipeline.model.qwen3_network`."""
    for own, theirs in _NORMS.items():
        if name.endswith(own):
            return f"model.layers.{name.split('.')[1]}.{theirs}"
    return llama_network.huggingface_name(name)


def huggingface_config(architecture: Architecture, vocabulary_size: int, sequence_length: int) -> dict[str, object]:
    config = llama_network.huggingface_config(architecture, vocabulary_size, sequence_length)
    del config["mlp_bias"]
    windowed = architecture.window is not None
    if windowed:  # from the first layer on, where config.json has no types of layers
        config |= {"max_window_layers": 0}
    return {**config, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": windowed}


def read_huggingface_config(config: Mapping[str, Any], path: Path) -> Architecture:
    """Return the shape that config.json describes; an InputError names what cannot be computed."""
    known = {**_DEFAULTS, **config}
    if not config.get("use_sliding_window"):
        known["sliding_window"] = None
    first = config.get("max_window_layers", _FIRST_WINDOWED) if known["sliding_window"] else config["num_hidden_layers"]
    types = [
        llama_network.SLIDING if layer >= first else llama_network.FULL for layer in range(known["num_hidden_layers"])
    ]
    windows = llama_network.read_windows(known, path, types)
    architecture = llama_network.read_huggingface_config(known, path)
    return architecture.model_copy(update={"preset": "qwen3", **windows})


NETWORK: Network = replace(
    LLAMA,
    model=Qwen3,
    splits={**LLAMA.splits, "attention.query_norm": "heads", "attention.key_norm": "heads"},
    model_types=("qwen3",),
    huggingface_name=huggingface_name,
    huggingface_config=huggingface_config,
    read_huggingface_config=read_huggingface_config,
)
