"""How the heads of attention are shared by the devices that split them, or a sequence."""

from __future__ import annotations

import math

from pipeline.model.settings import Architecture


def head_parts(architecture: Architecture, tensor: int, context: int) -> int:
    """Return how many of the `context` devices of a sequence divide the heads; the rest divide its queries."""
    return math.gcd(architecture.heads // tensor, context)


def key_value_heads(architecture: Architecture, tensor: int, context: int) -> int:
    """Return of how many key-value heads a device holds keys and values, times the devices, for each of its tokens.

    They are repeated until the devices divide them, and those that divide queries hold them for all tokens.
    """
    parts = head_parts(architecture, tensor, context)
    return math.lcm(architecture.groups, tensor * parts) * context // parts
