"""The Llama 3 architecture without torch: presets, parameters, operations of a token, bytes of activations.

`llama_network` has the rest. Preset llama3 sets nothing and is the default of the configuration. llama3-1b and -3b are
models of Llama 3.2, -8b and -70b of Llama 3 (Grattafiori et al. 2024), gptnl-8b and gptnl-30b of GPT-NL, mistral-7b of
Jiang et al. 2023 (Mistral 7B, arXiv 2310.06825), table 1. opengptx-13b6: docs/reference/architectures.md.
"""

from __future__ import annotations

from typing import Any

from pipeline.model.architectures import ArchitectureFormulas, DeviceWork
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import replicated_key_value_heads


def make_preset(*sizes: int) -> dict[str, Any]:
    """Return the fields of a preset from layers, width, feed-forward width, heads and key-value heads."""
    return dict(zip(("layers", "width", "feed_forward_width", "heads", "key_value_heads"), sizes, strict=True))


# Llama 3.2 came out at 131,072 tokens, stretched from 8,192, and shares its table of embeddings.
_SMALL = {"tie_embeddings": True, "rope_scaling": {"factor": 32.0, "original_context_length": 8192}}

PRESETS: dict[str, dict[str, Any]] = {
    "llama3": {},
    "llama3-1b": {**make_preset(16, 2048, 8192, 32, 8), **_SMALL},
    "llama3-3b": {**make_preset(28, 3072, 8192, 24, 8), **_SMALL},
    "llama3-8b": make_preset(32, 4096, 14336, 32, 8),
    "llama3-70b": make_preset(80, 8192, 28672, 64, 8),
    "gptnl-8b": make_preset(32, 4096, 14336, 32, 8),
    "gptnl-30b": make_preset(60, 6656, 17920, 52, 13),
    "opengptx-13b6": make_preset(40, 5120, 15872, 40, 8),
    "mistral-7b": {**make_preset(32, 4096, 14336, 32, 8), "rope_theta": 10_000.0, "window": 4096},
    "demo": {"layers": 4, "width": 128, "heads": 4, "key_value_heads": 2},
}
"""By name, the fields of `pipeline.model.settings.Architecture` that it fills."""


LOSS_PARTS, LOSS_ROWS = 16, 2048  # chunks of logits in `pipeline.model.loss`


def parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return the number of trainable parameters; a tied embedding counts once."""
    width, a = architecture.width, architecture
    attention = 2 * width * a.heads * a.head_dimension + 2 * width * a.key_value_head_count * a.head_dimension
    block = attention + 3 * width * a.intermediate_width + 2 * width
    embeddings = vocabulary_size * width * (1 if a.tie_embeddings else 2)
    return a.layers * block + embeddings + width


def flops_per_token(
    architecture: Architecture, vocabulary_size: int, sequence_length: int, *, recomputation: bool
) -> int:
    """Return the floating-point operations that training on one token takes, forward and backward.

    6 N + 12 L T H with N the parameters that multiply (all matrices but the input table, which is looked up; no norms),
    L layers, T tokens in a sequence, at most the window, and H the joint width of the heads: Chowdhery et al. 2022
    (PaLM), appendix B. Operations that a causal kernel or a mask skips count. `recomputation`: what the hardware does
    where every block is computed a second time, 8 N + 16 L T H with N without the output table (Narayanan et al. 2021).
    """
    a = architecture
    norms = a.width * (2 * a.layers + 1)
    looked_up = 0 if a.tie_embeddings else vocabulary_size * a.width
    multiplied = parameter_count(a, vocabulary_size) - norms - looked_up
    forward_of_blocks = 2 * (multiplied - vocabulary_size * a.width)
    forward_of_blocks += 4 * sum(a.attention_spans(sequence_length)) * a.heads * a.head_dimension
    return 3 * forward_of_blocks + 6 * vocabulary_size * a.width + (forward_of_blocks if recomputation else 0)


def activation_bytes(architecture: Architecture, vocabulary_size: int, work: DeviceWork) -> float:
    """Return the bytes that one device holds at most for the backward pass of its tokens, besides model state.

    Korthikanti et al. 2022 (Reducing activation recomputation), section 4, counted for this architecture and an
    attention kernel that keeps no matrix of scores. A block keeps, per token, 4 D + 2 H + 2 K + 4 F elements: the
    inputs of both norms and of the attention's and the feed-forward's projections (4 D), the queries and the
    attention's result (2 H, H the joint width of the heads), keys and values (2 K, K theirs), gate, its activation, up
    and their product (4 F). With recomputation only the input of each block stays (D), and one block at a time in full.

    The output keeps its norm's input and result and the latter's gradient (3 D). The loss takes a sixteenth of the fp32
    logits at a time, at least 2,048 rows (`pipeline.model.loss`), in bf16 with a copy, and then the output weight's
    gradient also exists in fp32. Where `tensor` devices split the model, `tokens` is the share of one of them: the
    inputs of the projections (2 D) and all logits are those of the whole group, the logits with probabilities and
    gradient in fp32. Of which heads it holds keys and values: `pipeline.model.size_and_cost`.
    """
    a, tokens, tensor = architecture, work.tokens, work.tensor
    heads = a.heads + replicated_key_value_heads(a, tensor, work.context)
    block = 2 * (1 + tensor) * a.width + 2 * heads * a.head_dimension + 4 * a.intermediate_width
    blocks = a.layers * a.width + block if work.recomputation else a.layers * block
    element, copy = work.element_bytes, 2 if work.precision == "bf16" else 0
    if tensor > 1:
        return tokens * (element * (blocks + 2 * a.width) + 12 * tensor * vocabulary_size)
    weight_gradient = 4 * vocabulary_size * a.width if work.precision == "bf16" else 0
    rows = min(max(tokens / LOSS_PARTS, LOSS_ROWS), tokens)
    logits = rows * (4 + copy) * vocabulary_size
    return tokens * element * (blocks + 3 * a.width) + logits + weight_gradient


FORMULAS = ArchitectureFormulas(PRESETS, parameter_count, flops_per_token, activation_bytes)
