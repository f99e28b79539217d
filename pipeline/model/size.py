"""How large a model is and how much one token of training costs, from its shape alone."""

from __future__ import annotations

from pipeline.model.settings import Architecture


def parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return the number of trainable parameters; a tied embedding counts once."""
    width, a = architecture.width, architecture
    attention = 2 * width * a.heads * a.head_dimension + 2 * width * a.groups * a.head_dimension
    block = attention + 3 * width * a.hidden + 2 * width
    embeddings = vocabulary_size * width * (1 if a.tie_embeddings else 2)
    return a.layers * block + embeddings + width


def flops_per_token(
    architecture: Architecture, vocabulary_size: int, sequence_length: int, *, recomputation: bool = False
) -> int:
    """Return the floating-point operations that training on one token takes, forward and backward.

    6 N + 12 L T H with N the parameters that multiply (all matrices but the input table, which is looked up; no norms),
    L layers, T tokens in a sequence and H the joint width of the heads: Chowdhery et al. 2022 (PaLM), appendix B. The
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
    forward_of_blocks += 4 * a.layers * sequence_length * a.heads * a.head_dimension
    return 3 * forward_of_blocks + 6 * vocabulary_size * a.width + (forward_of_blocks if recomputation else 0)
