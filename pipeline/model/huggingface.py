"""The same model in the layout of Hugging Face Transformers: names, configuration, folder."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from pipeline.ground.errors import InputError
from pipeline.model import weights
from pipeline.model.llama import parameter_shapes
from pipeline.model.settings import Architecture, RopeScaling

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
_TOP_BACK = {theirs: own for own, theirs in _TOP.items()}
_BLOCK_BACK = {theirs: own for own, theirs in _BLOCK.items()}


def their_name(name: str) -> str:
    """Return Transformers' name of a parameter of `pipeline.model.llama`."""
    match = re.fullmatch(r"blocks\.(\d+)\.(.+)\.weight", name)
    return f"model.layers.{match[1]}.{_BLOCK[match[2]]}.weight" if match else _TOP[name]


def own_name(name: str) -> str:
    """Return the name in `pipeline.model.llama` of a parameter of Transformers."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    return f"blocks.{match[1]}.{_BLOCK_BACK[match[2]]}.weight" if match else _TOP_BACK[name]


def configuration(architecture: Architecture, vocabulary_size: int, sequence_length: int) -> dict[str, object]:
    """Return the content of config.json; what concerns the rotation stands twice, for versions 4 and 5."""
    a = architecture
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": a.rope_theta}
    if scaling := a.rope_scaling:
        rope |= {theirs: getattr(scaling, own) for own, theirs in _SCALING.items()} | {"rope_type": "llama3"}
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "dtype": "float32",
        "head_dim": a.head_dimension,
        "hidden_act": "silu",
        "hidden_size": a.width,
        "intermediate_size": a.hidden,
        "max_position_embeddings": sequence_length,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": a.heads,
        "num_hidden_layers": a.layers,
        "num_key_value_heads": a.groups,
        "rms_norm_eps": a.norm_epsilon,
        "rope_parameters": rope,
        "rope_theta": a.rope_theta,
        **({"rope_scaling": rope} if a.rope_scaling else {}),
        "tie_word_embeddings": a.tie_embeddings,
        "vocab_size": vocabulary_size,
    }


def special_token_ids(tokenizer: Path, tokenizer_configuration: Path) -> dict[str, int]:
    """Return bos_token_id, eos_token_id and pad_token_id as far as the tokenizer has these tokens."""
    added = json.loads(tokenizer.read_text(encoding="utf-8"))["added_tokens"]
    ids = {token["content"]: token["id"] for token in added}
    roles = json.loads(tokenizer_configuration.read_text(encoding="utf-8"))
    found = {f"{role}_id": roles.get(role) for role in ("bos_token", "eos_token", "pad_token")}
    return {key: ids[content] for key, content in found.items() if content in ids}


def export(
    state: Mapping[str, Tensor],
    architecture: Architecture,
    vocabulary_size: int,
    sequence_length: int,
    *,
    tokenizer: Path,
    tokenizer_configuration: Path,
    folder: Path,
    largest_file_bytes: int = weights.LARGEST_FILE_BYTES,
) -> None:
    """Write a new folder that AutoModelForCausalLM and AutoTokenizer load: the weights by own names in `state`.

    `state` may make a tensor when it is asked for: the tensors of one file are in memory at once.
    """
    folder.mkdir()
    special = special_token_ids(tokenizer, tokenizer_configuration)
    config = {**configuration(architecture, vocabulary_size, sequence_length), **special}
    for name, content in (("config.json", config), ("generation_config.json", special)):
        (folder / name).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    shapes = parameter_shapes(architecture, vocabulary_size)
    weights.write(folder, shapes, state.__getitem__, rename=their_name, largest_file_bytes=largest_file_bytes)
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    shutil.copyfile(tokenizer_configuration, folder / "tokenizer_config.json")


def read_architecture(folder: Path) -> tuple[Architecture, int, int]:
    """Return shape, vocabulary size and longest sequence of a Llama in Transformers' layout.

    Raises:
        InputError: config.json is missing or describes another kind of model.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if config["model_type"] != "llama":
            raise InputError(f"{path} describes a {config['model_type']}: only a llama can be read")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        expected = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
        found = {**expected, **config, "rope_type": kind}
        for key, values in {**{k: (v,) for k, v in expected.items()}, "rope_type": ("default", "llama3")}.items():
            if found[key] not in values:
                choices = " or ".join(json.dumps(value) for value in values)
                raise InputError(f"{path} has {key} {found[key]!r}: only a model with {choices} can be read")
        scaling = RopeScaling(**{own: rope[theirs] for own, theirs in _SCALING.items()}) if kind == "llama3" else None
        width, heads, head_width = config["hidden_size"], config["num_attention_heads"], config.get("head_dim")
        architecture = Architecture(
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
        )
        return architecture, config["vocab_size"], config["max_position_embeddings"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} is no configuration of a llama ({error!r}): give a whole folder") from None


def read(folder: Path) -> tuple[Architecture, int, Mapping[str, Tensor]]:
    """Return shape, vocabulary size and weights by own name, float32, each read when it is asked for.

    Raises:
        InputError: the folder holds no whole Llama.
    """
    architecture, vocabulary_size, _ = read_architecture(folder)
    shapes = parameter_shapes(architecture, vocabulary_size)
    return architecture, vocabulary_size, weights.Weights(folder, shapes, rename=their_name)
