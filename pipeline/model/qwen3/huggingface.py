"""A Qwen3 in Transformers' words: the names of its parameters and its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.model.llama import huggingface
from pipeline.model.settings import Architecture

_NORMS = {
    "attention.query_norm.weight": "self_attn.q_norm.weight",
    "attention.key_norm.weight": "self_attn.k_norm.weight",
}
# What Transformers takes where config.json does not say it, and a Llama takes otherwise.
_DEFAULTS = {"head_dim": 128, "num_key_value_heads": 32, "sliding_window": 4096}
_FIRST_WINDOWED = 28


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
    windowed = architecture.window is not None
    if windowed:  # from the first layer on, where config.json has no types of layers
        found |= {"max_window_layers": 0}
    return {**found, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": windowed}


def read_configuration(config: Mapping[str, Any], path: Path) -> Architecture:
    """Return the shape that config.json describes.

    Raises:
        InputError: it has what `pipeline.model.llama.huggingface` does not read.
    """
    known = {**_DEFAULTS, **config}
    if not config.get("use_sliding_window"):
        known["sliding_window"] = None
    first = config.get("max_window_layers", _FIRST_WINDOWED) if known["sliding_window"] else config["num_hidden_layers"]
    types = [huggingface.SLIDING if layer >= first else huggingface.FULL for layer in range(known["num_hidden_layers"])]
    windows = huggingface.read_windows(known, path, types)
    found = huggingface.read_configuration(known, path)
    return found.model_copy(update={"preset": "qwen3", **windows})
