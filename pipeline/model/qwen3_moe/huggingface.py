"""A Qwen3 with experts in Transformers' words: the names of its parameters and its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.model.llama.huggingface import FULL, SLIDING
from pipeline.model.qwen3 import huggingface
from pipeline.model.settings import Architecture

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


def their_name(name: str) -> str:
    """Return Transformers' name of a parameter; with the number of an expert for the star of each in a stack."""
    block, _, part = name.partition(".feed_forward.")
    if not part:
        return huggingface.their_name(name)
    return f"model.layers.{block.removeprefix('blocks.')}.mlp.{_EXPERTS[part.removesuffix('.weight')]}.weight"


def configuration(architecture: Architecture, vocabulary_size: int, sequence_length: int) -> dict[str, object]:
    """Return the content of config.json; no block has its intermediate_size."""
    a = architecture
    found = huggingface.configuration(a, vocabulary_size, sequence_length)
    found.pop("max_window_layers", None)  # all layers have a window or none
    return {
        **found,
        "architectures": ["Qwen3MoeForCausalLM"],
        "decoder_sparse_step": 1,
        "intermediate_size": (a.experts_per_token or 1) * a.hidden,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": a.hidden,
        "norm_topk_prob": True,
        "num_experts": a.experts,
        "num_experts_per_tok": a.experts_per_token,
    }


def read_configuration(config: Mapping[str, Any], path: Path) -> Architecture:
    """Return the shape that config.json describes.

    Raises:
        InputError: a layer has no experts, their weights are not made to sum to 1, or there is what
            `pipeline.model.qwen3.huggingface` does not read.
    """
    found = {**_DEFAULTS, **config}
    for key, expected in {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}.items():
        if (found[key] or type(expected)()) != expected:
            raise InputError(f"{path} has {key} {found[key]!r}: only a model with {expected!r} can be read")
    types = [SLIDING if found.get("use_sliding_window") else FULL] * found["num_hidden_layers"]
    dense = {**found, "intermediate_size": found["moe_intermediate_size"], "layer_types": types}
    experts = {
        "preset": "qwen3-moe",
        "experts": found.get("num_experts", found.get("num_local_experts", 128)),
        "experts_per_token": found["num_experts_per_tok"],
    }
    return huggingface.read_configuration(dense, path).model_copy(update=experts)
