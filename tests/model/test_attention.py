"""Attention turns heads in float32, whatever precision they have, and asks a GPU for no number."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pipeline.model.attention import rotary_angles, rotate
from pipeline.model.llama.model import Llama
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


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("packed", [True, False])
def test_the_host_waits_for_no_number_of_a_gpu(packed: bool, window: int | None) -> None:
    """Tensors that hold no data have none to tell: an operation whose result has a size by data, as nonzero, raises.

    So does, in a PyTorch that was built for a CPU alone, all that it cannot work out without a GPU, as slices.
    """
    with torch.device("meta"):
        model = Llama(Architecture(layers=2, width=64, heads=4, window=window), 96).bfloat16()
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cuda")
        tokens = torch.empty(2, 40, dtype=torch.long, device="cuda")
        documents = torch.empty(7, dtype=torch.int32, device="cuda") if packed else None
        assert model(tokens, documents=documents).shape == (2, 40, 96)
