"""What a Llama keeps for its gradients is what the formula says."""

import pytest
import torch

from pipeline.model.llama.model import Llama
from pipeline.model.llama.size import LOSS_PARTS, LOSS_ROWS
from pipeline.model.loss import LEAST_ROWS, PARTS
from pipeline.model.settings import Architecture
from pipeline.model.size import activation_bytes

LLAMA3_VOCABULARY = 128_256
EIGHT = Architecture(layers=32, width=4096, feed_forward_width=14336, heads=32, key_value_heads=8)


@pytest.mark.parametrize("head_width", [None, 32])
def test_activations_are_those_that_the_model_keeps(head_width: int | None):
    """Count what autograd saves in the model itself, on a CPU and in fp32; no logits are saved."""
    shape = Architecture(layers=6, width=64, feed_forward_width=160, heads=4, key_value_heads=2, head_width=head_width)
    vocabulary, tokens = 512, 256
    model = Llama(shape, vocabulary)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(*torch.zeros(2, 1, tokens, dtype=torch.long))
    found = sum(saved.values()) - 4 * vocabulary * shape.width  # the output weight's gradient is model state
    estimated = activation_bytes(shape, vocabulary, tokens=tokens, precision="fp32")
    logits = 4 * vocabulary * tokens  # of fewer rows than are taken at once
    # Beyond the formula: intermediate results of norms and rotary embeddings that a compiled model does not keep.
    assert 0.9 * (estimated - logits) <= found <= 2 * (estimated - logits)


def test_the_loss_holds_a_part_of_the_logits_unless_tensor_parallel_devices_share_them():
    def held(vocabulary: int, tokens: int = 1024, **options) -> float:
        return activation_bytes(EIGHT, vocabulary, tokens=tokens, **options)

    assert (LOSS_PARTS, LOSS_ROWS) == (PARTS, LEAST_ROWS)
    for tokens, rows in ((1024, 1024), (8192, LEAST_ROWS), (65_536, 65_536 / PARTS)):
        more = held(2048, tokens, precision="fp32") - held(1024, tokens, precision="fp32")
        assert more == 1024 * 4 * rows
        # In bf16 a copy of the part, and once for all tokens the output weight's gradient in fp32.
        more = held(2048, tokens, precision="bf16") - held(1024, tokens, precision="bf16")
        assert more == 1024 * 6 * rows + 4 * 1024 * EIGHT.width
    more = held(2048, precision="bf16", tensor=2) - held(1024, precision="bf16", tensor=2)
    assert more == 1024 * 2 * 12 * 1024


def test_recomputation_keeps_less():
    sizes = [
        activation_bytes(EIGHT, LLAMA3_VOCABULARY, tokens=8192, precision="bf16", recomputation=again)
        for again in (True, False)
    ]
    assert sizes[0] < sizes[1] / 5
