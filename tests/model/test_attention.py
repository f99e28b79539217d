"""Attention turns heads by their positions in float32, whatever precision they have."""

from __future__ import annotations

import torch

from pipeline.model.attention import rotary_angles, rotate
from pipeline.model.settings import Architecture


def test_heads_in_half_precision_are_turned_as_precisely_as_they_can_be() -> None:
    architecture = Architecture(layers=1, width=64, heads=2)
    angles = rotary_angles(4096, architecture, torch.device("cpu"))
    draw = torch.Generator().manual_seed(3)
    heads = torch.randn(1, 2, 4096, 32, generator=draw).bfloat16()
    turned = rotate(heads, *angles)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, rotate(heads.float(), *angles).bfloat16())
    rounded = (rotate(heads, *(angle.bfloat16() for angle in angles)) != turned).float().mean()
    assert rounded > 0.1, "angles in half precision give other heads"
