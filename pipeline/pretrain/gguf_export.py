"""Write a model as GGUF, the file of llama.cpp and of the programs that are built on it.

Names and layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The converter of llama.cpp recognizes a
tokenizer by a hash of token ids, which is another one for every new vocabulary; here the pattern that splits the text
decides.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from pipeline.core import output_lease
from pipeline.core.errors import InputError
from pipeline.model.attention import rotary_angles
from pipeline.model.huggingface import load_pretrained, read_architecture
from pipeline.model.networks import get_network, parameter_shapes
from pipeline.model.settings import Architecture
from pipeline.tokenizer.train import pretoken_pattern

OutputType = Literal["f32", "bf16", "f16", "q8_0"]
_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
}
_PRETOKENIZERS = {pretoken_pattern("left", "llama3"): "llama-bpe", pretoken_pattern("single", "llama3"): "qwen2"}
"""By pattern, llama.cpp's name."""


def write_gguf(folder: Path, out: Path, output_type: OutputType) -> None:
    """Write a model that Transformers loads as one file; one tensor is in memory at a time.

    Matrices are rounded to the output type; vectors and the routers of experts stay float32.

    Raises:
        InputError: llama.cpp would compute other tokens or other logits, or `out` exists.
    """
    if out.exists():
        raise InputError(f"{out} exists: name a new file")
    architecture, vocabulary_size, length = read_architecture(folder)
    if architecture.name not in _ARCHITECTURES:
        raise InputError(f"{folder} is a {architecture.name}: only a {' or a '.join(_ARCHITECTURES)} can be written")
    if architecture.window is not None and architecture.window < length:
        raise InputError(
            f"{folder / 'config.json'} has a window of {architecture.window} tokens, which llama.cpp ignores: "
            f"only a model without one, or of at most {architecture.window} positions, can be written"
        )
    writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[_ARCHITECTURES[architecture.name]])
    _add_shape(writer, architecture, vocabulary_size, length)
    writer.add_name(folder.resolve().name)
    kind = "ALL_F32" if output_type == "f32" else f"MOSTLY_{output_type.upper()}"
    writer.add_file_type(gguf.LlamaFileType[kind])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_tokenizer(writer, folder, vocabulary_size)
    hidden = output_lease.temporary_output_path(out)
    try:
        _write_tensors(writer, hidden, folder, architecture, gguf.GGMLQuantizationType[output_type.upper()])
        hidden.rename(out)
    finally:
        hidden.unlink(missing_ok=True)


def _add_shape(writer: gguf.GGUFWriter, architecture: Architecture, vocabulary_size: int, length: int) -> None:
    writer.add_block_count(architecture.layers)
    writer.add_context_length(length)
    writer.add_embedding_length(architecture.width)
    writer.add_vocab_size(vocabulary_size)
    writer.add_head_count(architecture.heads)
    writer.add_head_count_kv(architecture.key_value_head_count)
    writer.add_key_length(architecture.head_dimension)
    writer.add_value_length(architecture.head_dimension)
    writer.add_rope_dimension_count(architecture.head_dimension)
    writer.add_rope_freq_base(architecture.rope_theta)
    writer.add_layer_norm_rms_eps(architecture.norm_epsilon)
    if architecture.experts and architecture.experts_per_token:
        writer.add_expert_count(architecture.experts)
        writer.add_expert_used_count(architecture.experts_per_token)
        writer.add_expert_feed_forward_length(architecture.intermediate_width)
    writer.add_feed_forward_length((architecture.experts_per_token or 1) * architecture.intermediate_width)


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, vocabulary_size: int) -> None:
    path = folder / "tokenizer.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        pretokenizer = _find_pretokenizer(content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no tokenizer.json that can be read ({error!r}): give a whole folder") from None
    if pretokenizer is None:
        raise InputError(
            f"{path} splits text in a way for which llama.cpp has no name here: train a tokenizer with algorithm bpe, "
            "pretokenizer llama3 and digits left or single, or try llama.cpp's own convert_hf_to_gguf.py"
        )
    tokenizer = Tokenizer.from_file(str(path))
    tokens = [f"[PAD{number}]" for number in range(vocabulary_size)]
    types = [gguf.TokenType.UNUSED] * vocabulary_size
    for token, number in tokenizer.get_vocab(with_added_tokens=True).items():
        tokens[number], types[number] = token, gguf.TokenType.NORMAL
    for number, added in tokenizer.get_added_tokens_decoder().items():
        types[number] = gguf.TokenType.CONTROL if added.special else gguf.TokenType.USER_DEFINED
    logging.getLogger("gguf.vocab").setLevel(
        logging.ERROR
    )  # it warns of templates for pairs of texts, which GGUF has not
    writer.add_tokenizer_model("gpt2")  # byte-level BPE
    writer.add_tokenizer_pre(pretokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    gguf.SpecialVocab(folder, load_merges=True, n_vocab=vocabulary_size).add_to_gguf(writer, quiet=True)


def _find_pretokenizer(content: dict[str, Any]) -> str | None:
    """Return llama.cpp's name of the pre-tokenizer of a tokenizer.json, None for one without a name."""
    parts = (content["pre_tokenizer"] or {}).get("pretokenizers", [])
    if (
        content["model"]["type"] != "BPE"
        or content["normalizer"]
        or [p["type"] for p in parts] != ["Split", "ByteLevel"]
    ):
        return None
    split, spell = parts
    if split["behavior"] != "Isolated" or split["invert"] or spell["add_prefix_space"] or spell["use_regex"]:
        return None
    return _PRETOKENIZERS.get(split["pattern"].get("Regex"))


def _write_tensors(
    writer: gguf.GGUFWriter, out: Path, folder: Path, architecture: Architecture, kind: gguf.GGMLQuantizationType
) -> None:
    _, vocabulary_size, weights = load_pretrained(folder)
    rename = get_network(architecture.name).huggingface_name
    names = gguf.get_tensor_name_map(_ARCHITECTURES[architecture.name], architecture.layers)
    kinds: dict[str, gguf.GGMLQuantizationType] = {}
    for name, shape in parameter_shapes(architecture, vocabulary_size).items():
        theirs = names.get_name(rename(name).replace(".*.", "."), try_suffixes=(".weight",))
        assert theirs, "gguf knows every weight of these architectures"
        kinds[name] = _choose_kind(name, shape, kind)
        elements, size = gguf.GGML_QUANT_SIZES[kinds[name]]
        writer.add_tensor_info(theirs, shape, np.dtype(np.float32), shape.numel() // elements * size, kinds[name])
    divisors = _rotary_divisors(architecture)
    if divisors is not None:
        writer.add_tensor_info("rope_freqs.weight", divisors.shape, np.dtype(np.float32), divisors.nbytes)
    writer.write_header_to_file(out)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name in kinds:
        matrix = _pair_rotated_rows(name, weights[name], architecture).contiguous().numpy()
        writer.write_tensor_data(gguf.quants.quantize(matrix, kinds[name]))
    if divisors is not None:
        writer.write_tensor_data(divisors.numpy())
    writer.close()


def _choose_kind(name: str, shape: torch.Size, kind: gguf.GGMLQuantizationType) -> gguf.GGMLQuantizationType:
    """Return float32 for vectors and routers, and float16 for a matrix whose rows do not divide into blocks."""
    if len(shape) == 1 or "router" in name:
        return gguf.GGMLQuantizationType.F32
    return gguf.GGMLQuantizationType.F16 if shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] else kind


def _pair_rotated_rows(name: str, matrix: Tensor, architecture: Architecture) -> Tensor:
    """Return queries and keys of a Llama in llama.cpp's order: it rotates rows 2i and 2i + 1, not i and i + E/2."""
    if architecture.name != "llama" or not name.endswith(("attention.query.weight", "attention.key.weight")):
        return matrix
    halves = matrix.view(-1, 2, architecture.head_dimension // 2, matrix.shape[1])
    return halves.transpose(1, 2).reshape(matrix.shape)


def _rotary_divisors(architecture: Architecture) -> Tensor | None:
    """Return by what each rotary frequency is divided, (E/2,), or None where none is."""
    if architecture.rope_scaling is None:
        return None
    plain = architecture.model_copy(update={"rope_scaling": None})
    cpu = torch.device("cpu")
    # The angle of position 1 is the frequency itself.
    (_, cosine), (_, sine) = rotary_angles(2, plain, cpu)
    (_, scaled_cosine), (_, scaled_sine) = rotary_angles(2, architecture, cpu)
    return torch.atan2(sine, cosine) / torch.atan2(scaled_sine, scaled_cosine)
