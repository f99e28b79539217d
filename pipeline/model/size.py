"""How large a model is and how much one token of training costs, from its shape alone."""

from __future__ import annotations

from pipeline.model.settings import Architecture


def parameter_count(architecture: Architecture, vocabulary_size: int) -> int:
    """Return the number of trainable parameters; a tied embedding counts once."""
    width, a = architecture.width, architecture
    attention = 2 * width * width + 2 * width * a.groups * a.head_dimension
    block = attention + 3 * width * a.hidden + 2 * width
    embeddings = vocabulary_size * width * (1 if a.tie_embeddings else 2)
    return a.layers * block + embeddings + width


def flops_per_token(architecture: Architecture, vocabulary_size: int, sequence_length: int) -> int:
    """Return the floating-point operations that training on one token takes, forward and backward.

    6 N + 12 L T D with N the parameters that multiply (all matrices but the input table, which is looked up; no norms),
    L layers, T tokens in a sequence and D the width: Chowdhery et al. 2022 (PaLM), appendix B. Recomputation and the
    half of the attention that a causal kernel skips are not subtracted or added.
    """
    a = architecture
    norms = a.width * (2 * a.layers + 1)
    looked_up = 0 if a.tie_embeddings else vocabulary_size * a.width
    multiplied = parameter_count(a, vocabulary_size) - norms - looked_up
    return 6 * multiplied + 12 * a.layers * sequence_length * a.width
