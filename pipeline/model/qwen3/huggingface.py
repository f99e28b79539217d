"""A Qwen3 in Transformers' words: the names of its parameters and its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.ground.errors import InputError
from pipeline.model.llama import huggingface
from pipeline.model.settings import Architecture

_NORMS = {
    "attention.query_norm.weight": "self_attn.q_norm.weight",
    "attention.key_norm.weight": "self_attn.k_norm.weight",
}
# What Transformers takes where config.json does not say it, and a Llama takes otherwise.
_DEFAULTS = {"head_dim": 128, "num_key_value_heads": 32}


def their_name(name: str) -> str:
    """Return Transformers' name of a parameter of `pipeline.model.qwen3.model`."""
    for own, theirs in _NORMS.items():
        if name.endswith(own):
            return f"model.layers.{name.split('.')[1]}.{theirs}"
    return huggingface.their_name(name)


def configuration(architecture: Architecture, vocabulary_size: int, sequence_length: int) -> dict[str, object]:
    """Return the content of config.json."""
    found = huggingface.configuration(architecture, vocabulary_size, sequence_length)
    del found["mlp_bias"]
    return {**found, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": False}


def read_configuration(config: Mapping[str, Any], path: Path) -> Architecture:
    """Return the shape that config.json describes.

    Raises:
        InputError: it attends to a window only, or has what `pipeline.model.llama.huggingface` does not read.
    """
    if config.get("use_sliding_window") or {*(config.get("layer_types") or ())} - {"full_attention"}:
        raise InputError(
            f"{path} describes a model whose layers see a window: only one with full attention can be read"
        )
    found = huggingface.read_configuration({**_DEFAULTS, **config}, path)
    return found.model_copy(update={"preset": "qwen3"})
