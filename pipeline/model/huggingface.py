"""The same model in the layout of Hugging Face Transformers: names, configuration, folder."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from pipeline.model.settings import Architecture

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
    """Return the content of config.json; rope_theta stands twice, for versions 4 and 5 of Transformers."""
    a = architecture
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
        "rope_parameters": {"rope_theta": a.rope_theta, "rope_type": "default"},
        "rope_theta": a.rope_theta,
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
) -> None:
    """Write a new folder that AutoModelForCausalLM and AutoTokenizer load: the weights by own names in `state`."""
    folder.mkdir()
    special = special_token_ids(tokenizer, tokenizer_configuration)
    config = {**configuration(architecture, vocabulary_size, sequence_length), **special}
    for name, content in (("config.json", config), ("generation_config.json", special)):
        (folder / name).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    weights = {their_name(name): tensor.contiguous() for name, tensor in state.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    shutil.copyfile(tokenizer_configuration, folder / "tokenizer_config.json")
