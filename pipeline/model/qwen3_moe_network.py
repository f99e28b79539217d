"""The Qwen3 architecture with experts (Yang et al. 2025) in plain PyTorch: see `pipeline.model.mixture_of_experts`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from pipeline.core.errors import InputError
from pipeline.model import qwen3_network
from pipeline.model.llama_network import FULL, SLIDING
from pipeline.model.mixture_of_experts import Experts
from pipeline.model.networks import Network
from pipeline.model.qwen3_network import NETWORK as QWEN3
from pipeline.model.settings import Architecture


class Qwen3MoeBlock(qwen3_network.Qwen3Block):
    """A layer of a Qwen3 whose feed-forward block is a mixture of experts."""

    feed_forward_kind = Experts

    def compute_layer(
        self, x_BTD: Tensor, cosine_TE: Tensor, sine_TE: Tensor, limits: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the stream after this layer, (B, T, D), and the visits of its experts, (N,)."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cosine_TE, sine_TE, limits)
        y_BTD, visits_N = self.feed_forward(self.feed_forward_norm(x_BTD))
        return x_BTD + y_BTD, visits_N


class Qwen3Moe(qwen3_network.Qwen3):
    """Such blocks between an embedding and a normalized output."""

    block = Qwen3MoeBlock


_EXPERTS = {
    "router": "gate",
    "gate": "experts.*.gate_proj",
    "up": "experts.*.up_proj",
    "down": "experts.*.down_proj",
}
# What Transformers takes where config.json does not say it.
_DEFAULTS = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
}


def huggingface_name(name: str) -> str:
    """Return Transformers' name of a parameter; with the number of an expert for the star of each in a stack."""
    block, _, part = name.partition(".feed_forward.")
    if not part:
        return qwen3_network.huggingface_name(name)
    return f"model.layers.{block.removeprefix('blocks.')}.mlp.{_EXPERTS[part.removesuffix('.weight')]}.weight"


def huggingface_config(architecture: Architecture, vocabulary_size: int, sequence_length: int) -> dict[str, object]:
    """Return the content of config.json; no block has its intermediate_size."""
    a = architecture
    config = qwen3_network.huggingface_config(a, vocabulary_size, sequence_length)
    config.pop("max_window_layers", None)  # all layers have a window or none
    return {
        **config,
        "architectures": ["Qwen3MoeForCausalLM"],
        "decoder_sparse_step": 1,
        "intermediate_size": (a.experts_per_token or 1) * a.intermediate_width,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": a.intermediate_width,
        "norm_topk_prob": True,
        "num_experts": a.experts,
        "num_experts_per_tok": a.experts_per_token,
    }


def read_huggingface_config(config: Mapping[str, Any], path: Path) -> Architecture:
    """Return the shape that config.json describes; an InputError names what cannot be computed."""
    merged_config = {**_DEFAULTS, **config}
    for key, expected in {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}.items():
        if (merged_config[key] or type(expected)()) != expected:
            raise InputError(f"{path} has {key} {merged_config[key]!r}: only a model with {expected!r} can be read")
    types = [SLIDING if merged_config.get("use_sliding_window") else FULL] * merged_config["num_hidden_layers"]
    dense = {**merged_config, "intermediate_size": merged_config["moe_intermediate_size"], "layer_types": types}
    experts = {
        "preset": "qwen3-moe",
        "experts": merged_config.get("num_experts", merged_config.get("num_local_experts", 128)),
        "experts_per_token": merged_config["num_experts_per_tok"],
    }
    return qwen3_network.read_huggingface_config(dense, path).model_copy(update=experts)


NETWORK: Network = replace(
    QWEN3,
    model=Qwen3Moe,
    splits={
        **QWEN3.splits,
        **dict.fromkeys([f"feed_forward.{part}" for part in ("router", "gate", "up", "down")], "whole"),
    },
    model_types=("qwen3_moe",),
    huggingface_name=huggingface_name,
    huggingface_config=huggingface_config,
    read_huggingface_config=read_huggingface_config,
)
