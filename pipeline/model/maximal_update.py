"""Maximal update parametrisation: the learning rate that is best for a narrow model is best for a wide one.

Yang et al. 2022 (Tensor Programs V), table 3, for Adam. With m the width over the base width: the matrices of a block
begin with a deviation divided by the root of m, the output with one divided by m, and all of these learn m times as
slowly; embedding and norms stay. No factor is left in the model, so that it is an ordinary one of its architecture.
Weight decay, which AdamW multiplies by the learning rate, pulls as much at each width. This holds as long as a head
stays as wide and everything else grows with the width.
"""

from __future__ import annotations

import math

from pipeline.model.settings import Architecture


def deviation_factor(name: str, architecture: Architecture) -> float:
    """Return by what the deviation of a matrix's first weights is multiplied; 1 without a base width."""
    if name == "output.weight":
        return learning_rate_factor(name, 2, architecture)
    return math.sqrt(learning_rate_factor(name, 2, architecture))


def learning_rate_factor(name: str, dimensions: int, architecture: Architecture) -> float:
    """Return by what the learning rate of a parameter with so many dimensions is multiplied; 1 without a base width."""
    if architecture.base_width is None or dimensions < 2 or name == "embedding.weight":
        return 1.0
    return architecture.base_width / architecture.width
