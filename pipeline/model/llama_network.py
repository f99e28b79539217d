"""The Llama 3 architecture in plain PyTorch, with the axes of `pipeline.model.decoder`.

Grouped-query attention (Ainslie et al. 2023), rotary position embeddings (Su et al. 2021) on the two halves of a head,
SwiGLU (Shazeer 2020), RMSNorm (Zhang & Sennrich 2019) before each branch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pipeline.core.errors import InputError
from pipeline.model import decoder
from pipeline.model.attention import Attention
from pipeline.model.networks import Network, draw_normal
from pipeline.model.settings import Architecture, RopeScaling
from pipeline.model.size_and_cost import learning_rate_factor


class LlamaBlock(decoder.Block):
    """One layer: attention and feed-forward, each on normalized input and added to the stream."""

    attention_kind: ClassVar[type[Attention]] = Attention
    feed_forward_kind: ClassVar[type[decoder.FeedForward]] = decoder.FeedForward

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(architecture.width, eps=architecture.norm_epsilon)
        self.attention = self.attention_kind(architecture)
        self.feed_forward_norm = nn.RMSNorm(architecture.width, eps=architecture.norm_epsilon)
        self.feed_forward = self.feed_forward_kind(architecture)

    def compute_layer(
        self, x_BTD: Tensor, cosine_TE: Tensor, sine_TE: Tensor, limits: Tensor | None
    ) -> decoder.LayerResult:
        """Return the stream after this layer, (B, T, D)."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cosine_TE, sine_TE, limits)
        y_BTD: Tensor = x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))
        return y_BTD


class Llama(decoder.Decoder):
    """Such blocks between an embedding and a normalized output."""

    block = LlamaBlock


def initial_weight(
    name: str, shape: torch.Size, architecture: Architecture, seed: int, part: Sequence[slice] | None = None
) -> Tensor:
    """Return one parameter as training starts from it, or a part of it, without making any other: see `networks`.

    Norms are one; matrices are normal with one deviation, the two that write into the stream with it / sqrt(2 L), so
    that its variance does not grow with the L layers (Radford et al. 2019); with a base width, both times the factor
    of `pipeline.model.size_and_cost`. How they are drawn: `pipeline.model.networks`.
    """
    if len(shape) == 1:
        return torch.ones(shape)[part[0] if part else slice(None)]
    factor = learning_rate_factor(name, 2, architecture)
    deviation = architecture.initial_deviation * (factor if name == "output.weight" else math.sqrt(factor))
    if name.endswith(("attention.output.weight", "feed_forward.down.weight")):
        deviation /= math.sqrt(2 * architecture.layers)
    return draw_normal(name, shape, deviation, seed, part)


_TOP = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
_SCALING = {
    "factor": "factor",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "original_context_length": "original_max_position_embeddings",
}
WINDOWED = {"mistral": "MistralForCausalLM", "ministral": "MinistralForCausalLM"}
"""What Transformers calls a Llama whose layers see a window, all of them or some, and its class."""
# What Transformers takes of these where config.json does not say it.
_WINDOWED_DEFAULTS = {"num_key_value_heads": 8, "sliding_window": 4096}
FULL, SLIDING = "full_attention", "sliding_attention"
"""Its types of layers."""


def huggingface_name(name: str) -> str:
    """Return Transformers' name of a parameter of `pipeline.model.llama_network`."""
    match = re.fullmatch(r"blocks\.(\d+)\.(.+)\.weight", name)
    return f"model.layers.{match[1]}.{_BLOCK[match[2]]}.weight" if match else _TOP[name]


def huggingface_config(architecture: Architecture, vocabulary_size: int, sequence_length: int) -> dict[str, object]:
    """Return the content of config.json; the rotation has two keys, for versions 4 and 5."""
    a = architecture
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": a.rope_theta}
    if scaling := a.rope_scaling:
        rope |= {theirs: getattr(scaling, own) for own, theirs in _SCALING.items()} | {"rope_type": "llama3"}
    kind: dict[str, object] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    if a.window is not None:
        theirs = "ministral" if a.full_attention_layers else "mistral"
        kind = {"model_type": theirs, "architectures": [WINDOWED[theirs]], "sliding_window": a.window}
    if a.full_attention_layers:
        kind["layer_types"] = [FULL if window is None else SLIDING for window in a.windows()]
    return {
        **kind,
        "attention_bias": False,
        "dtype": "float32",
        "head_dim": a.head_dimension,
        "hidden_act": "silu",
        "hidden_size": a.width,
        "intermediate_size": a.intermediate_width,
        "max_position_embeddings": sequence_length,
        "mlp_bias": False,
        "num_attention_heads": a.heads,
        "num_hidden_layers": a.layers,
        "num_key_value_heads": a.key_value_head_count,
        "rms_norm_eps": a.norm_epsilon,
        "rope_parameters": rope,
        "rope_theta": a.rope_theta,
        **({"rope_scaling": rope} if a.rope_scaling else {}),
        "tie_word_embeddings": a.tie_embeddings,
        "vocab_size": vocabulary_size,
    }


def read_windows(config: Mapping[str, Any], path: Path, types: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a shape that say which layers see a window.

    Args:
        config: config.json, whose sliding_window is None where there is none.
        path: its.
        types: those of the layers where config.json has none.

    Raises:
        InputError: a layer is of another type, or sees a window of no width.
    """
    layer_types = config.get("layer_types") or types
    if other := {*layer_types} - {FULL, SLIDING}:
        raise InputError(f"{path} has layer_types {min(other)!r}: only {FULL} and {SLIDING} can be read")
    if SLIDING not in layer_types:
        return {}
    if not config["sliding_window"]:
        raise InputError(
            f"{path} has layer_types {SLIDING!r} and no window: only one with a sliding_window can be read"
        )
    full = [layer for layer, kind in enumerate(layer_types) if kind == FULL]
    return {"window": config["sliding_window"], "full_attention_layers": tuple(full)}


def read_huggingface_config(config: Mapping[str, Any], path: Path) -> Architecture:
    """Return the shape that config.json describes; an InputError names what cannot be computed."""
    windows: dict[str, Any] = {}
    if (model_type := config.get("model_type")) in WINDOWED:
        config = {**_WINDOWED_DEFAULTS, **config}
        if model_type == "mistral" and FULL in (config.get("layer_types") or ()):
            raise InputError(f"{path} has layer_types, which a mistral does not heed: only a ministral's can be read")
        usual = SLIDING if config["sliding_window"] else FULL
        windows = read_windows(config, path, [usual] * config["num_hidden_layers"])
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    expected = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    merged_config = {**expected, **config, "rope_type": kind}
    for key, values in {**{k: (v,) for k, v in expected.items()}, "rope_type": ("default", "llama3")}.items():
        if merged_config[key] not in values:
            choices = " or ".join(json.dumps(value) for value in values)
            raise InputError(f"{path} has {key} {merged_config[key]!r}: only a model with {choices} can be read")
    scaling = RopeScaling(**{own: rope[theirs] for own, theirs in _SCALING.items()}) if kind == "llama3" else None
    width, heads, head_width = config["hidden_size"], config["num_attention_heads"], config.get("head_dim")
    return Architecture(
        layers=config["num_hidden_layers"],
        width=width,
        feed_forward_width=config["intermediate_size"],
        heads=heads,
        key_value_heads=config.get("num_key_value_heads"),
        head_width=None if head_width and head_width * heads == width else head_width,
        rope_theta=rope.get("rope_theta", config.get("rope_theta", 10_000.0)),
        rope_scaling=scaling,
        norm_epsilon=config["rms_norm_eps"],
        tie_embeddings=config.get("tie_word_embeddings", False),
        **windows,
    )


NETWORK = Network(
    model=Llama,
    initial_weight=initial_weight,
    splits={
        "attention_norm": "positions",
        "attention.query": "columns",
        "attention.key": "columns",
        "attention.value": "columns",
        "attention.output": "rows",
        "feed_forward_norm": "positions",
        "feed_forward.gate": "columns",
        "feed_forward.up": "columns",
        "feed_forward.down": "rows",
    },
    model_types=("llama", *WINDOWED),
    huggingface_name=huggingface_name,
    huggingface_config=huggingface_config,
    read_huggingface_config=read_huggingface_config,
)
