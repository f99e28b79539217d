"""How large a Llama is and what one token of its training costs: see `pipeline.model.size`."""

from __future__ import annotations

from pipeline.model.architectures import Precision
from pipeline.model.settings import Architecture
from pipeline.model.shared_heads import key_value_heads

LOSS_PARTS, LOSS_ROWS = 16, 2048  # of the logits, of which the loss holds some at a time: see `pipeline.model.loss`


def parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return the number of trainable parameters; a tied embedding counts once."""
    width, a = architecture.width, architecture
    attention = 2 * width * a.heads * a.head_dimension + 2 * width * a.groups * a.head_dimension
    block = attention + 3 * width * a.hidden + 2 * width
    embeddings = vocabulary_size * width * (1 if a.tie_embeddings else 2)
    return a.layers * block + embeddings + width


def flops_per_token(
    architecture: Architecture, vocabulary_size: int, sequence_length: int, *, recomputation: bool
) -> int:
    """Return the floating-point operations that training on one token takes, forward and backward.

    6 N + 12 L T H with N the parameters that multiply (all matrices but the input table, which is looked up; no norms),
    L layers, T tokens in a sequence and H the joint width of the heads: Chowdhery et al. 2022 (PaLM), appendix B. In a
    layer with a window T is at most that. The
    half of the attention that a causal kernel skips, and the attention across documents that a mask skips, are not
    subtracted. `recomputation`: what the hardware does where every block is computed a second time for the backward
    pass, 8 N + 16 L T H with N without the output table (Narayanan et al. 2021, appendix): for the utilization of the
    hardware; that of the model counts the useful 6 N whatever is recomputed.
    """
    a = architecture
    norms = a.width * (2 * a.layers + 1)
    looked_up = 0 if a.tie_embeddings else vocabulary_size * a.width
    multiplied = parameter_count(a, vocabulary_size) - norms - looked_up
    forward_of_blocks = 2 * (multiplied - vocabulary_size * a.width)
    forward_of_blocks += 4 * sum(a.spans(sequence_length)) * a.heads * a.head_dimension
    return 3 * forward_of_blocks + 6 * vocabulary_size * a.width + (forward_of_blocks if recomputation else 0)


def activation_bytes(
    architecture: Architecture,
    vocabulary_size: int,
    *,
    tokens: int,
    precision: Precision,
    recomputation: bool,
    tensor: int,
    context: int,
) -> float:
    """Return the bytes that one device holds at most for the backward pass of `tokens` tokens, besides model state.

    Korthikanti et al. 2022 (Reducing activation recomputation), section 4, counted for this architecture and an
    attention kernel that keeps no matrix of scores. A block keeps, per token, 4 D + 2 H + 2 K + 4 F elements: the
    inputs of both norms and of the attention's and the feed-forward's projections (4 D), the queries and the
    attention's result (2 H, H the joint width of the heads), keys and values (2 K, K theirs), gate, its activation, up
    and their product (4 F). With recomputation only the input of each block stays (D), and one block at a time in full.

    The output keeps its norm's input and result and the latter's gradient (3 D). The loss takes a sixteenth of the fp32
    logits at a time, at least 2,048 rows (`pipeline.model.loss`), in bf16 with a copy, and then the output weight's
    gradient also exists in fp32. Where `tensor` devices split the model, `tokens` is the share of one of them: the
    inputs of the projections (2 D) and all logits are those of the whole group, the logits with probabilities and
    gradient in fp32. Of which heads it holds keys and values: `pipeline.model.shared_heads`.
    """
    a = architecture
    heads = a.heads + key_value_heads(a, tensor, context)
    block = 2 * (1 + tensor) * a.width + 2 * heads * a.head_dimension + 4 * a.hidden
    blocks = a.layers * a.width + block if recomputation else a.layers * block
    element, copy = (2, 2) if precision == "bf16" else (4, 0)
    if tensor > 1:
        return tokens * (element * (blocks + 2 * a.width) + 12 * tensor * vocabulary_size)
    weight_gradient = 4 * vocabulary_size * a.width if precision == "bf16" else 0
    rows = min(max(tokens / LOSS_PARTS, LOSS_ROWS), tokens)
    logits = rows * (4 + copy) * vocabulary_size
    return tokens * element * (blocks + 3 * a.width) + logits + weight_gradient
