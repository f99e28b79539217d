"""The native model equals the reference implementation."""

import pytest
import torch
from pydantic import ValidationError
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.model.llama.huggingface import configuration, their_name
from pipeline.model.llama.model import Llama
from pipeline.model.networks import initial_state, initial_weight, parameter_shapes
from pipeline.model.prepare import prepare
from pipeline.model.settings import Architecture
from pipeline.model.size import flops_per_token, parameter_count

VOCABULARY = 96
SHAPES = [
    Architecture(layers=2, width=32, heads=4, key_value_heads=2),
    Architecture(layers=1, width=48, heads=3, feed_forward_width=40, rope_theta=10_000.0, norm_epsilon=1e-6),
    Architecture(layers=3, width=32, heads=2, key_value_heads=1, tie_embeddings=True),
    Architecture(
        layers=1,
        width=48,
        heads=3,
        key_value_heads=3,
        head_width=32,
        rope_scaling={"factor": 8, "original_context_length": 240},
    ),
]


def native(architecture: Architecture) -> Llama:
    model = Llama(architecture, VOCABULARY)
    state = {name: tensor * 4 for name, tensor in initial_state(architecture, VOCABULARY, seed=3).items()}
    model.load_state_dict(state, strict=not architecture.tie_embeddings)
    return model


@pytest.mark.parametrize("architecture", SHAPES)
def test_logits_equal_those_of_transformers(architecture: Architecture) -> None:
    own = native(architecture)
    theirs = LlamaForCausalLM(LlamaConfig(**configuration(architecture, VOCABULARY, 64)))
    state = {their_name(name): p for name, p in own.named_parameters()}
    theirs.load_state_dict(state, strict=not architecture.tie_embeddings)
    tokens = torch.randint(0, VOCABULARY, (3, 50), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert own(tokens).std() > 0.05
        torch.testing.assert_close(own(tokens), theirs(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", SHAPES)
def test_parameter_count(architecture: Architecture) -> None:
    model = native(architecture)
    theirs = LlamaForCausalLM(LlamaConfig(**configuration(architecture, VOCABULARY, 64)))
    count = parameter_count(architecture, VOCABULARY)
    assert count == sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("architecture", SHAPES)
def test_flops_per_token_equal_the_counted_ones(architecture: Architecture) -> None:
    model = native(architecture)
    tokens = torch.zeros((2, 16), dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # the others are not counted on a CPU
        model(tokens).sum().backward()
    assert flops_per_token(architecture, VOCABULARY, 16) * tokens.numel() == counter.get_total_flops()


@pytest.mark.parametrize("architecture", SHAPES)
def test_flops_with_recomputation_equal_the_counted_ones(architecture: Architecture) -> None:
    model = native(architecture)
    prepare(model, torch.device("cpu"), recomputation="full")
    tokens = torch.zeros((2, 16), dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    expected = flops_per_token(architecture, VOCABULARY, 16, recomputation=True) * tokens.numel()
    # PyTorch stops computing again at the last thing it needs, which is before each block's last product.
    unneeded = 2 * architecture.layers * architecture.hidden * architecture.width * tokens.numel()
    assert counter.get_total_flops() == expected - unneeded


def test_no_position_sees_a_later_one() -> None:
    model = native(SHAPES[0])
    tokens = torch.randint(0, VOCABULARY, (1, 20), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[0, 12] = (changed[0, 12] + 1) % VOCABULARY
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :12], after[:, :12])
    assert not torch.allclose(before[:, 12:], after[:, 12:])


def test_initial_weights_follow_the_seed_and_are_scaled() -> None:
    shape = Architecture(layers=8, width=64, heads=4)
    first, again, other = (initial_state(shape, VOCABULARY, seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])
    assert first["blocks.0.attention.query.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert first["blocks.0.feed_forward.down.weight"].std().item() == pytest.approx(0.005, rel=0.05)
    assert torch.all(first["norm.weight"] == 1)


def test_a_parameter_is_made_alone() -> None:
    state = initial_state(SHAPES[0], VOCABULARY, seed=5)
    assert list(state) == list(parameter_shapes(SHAPES[0], VOCABULARY))
    for name, weight in state.items():
        assert torch.equal(weight, initial_weight(name, weight.shape, SHAPES[0], 5))
    matrices = [weight for weight in state.values() if weight.shape == (32, 32)]
    assert len({float(matrix[0, 0]) for matrix in matrices}) == len(matrices)


def test_model_on_the_meta_device_takes_no_memory() -> None:
    with torch.device("meta"):
        model = Llama(SHAPES[0], VOCABULARY)
    assert all(p.is_meta for p in model.parameters()) and not list(model.buffers())


@pytest.mark.parametrize("architecture", SHAPES)
def test_every_parameter_has_a_name_of_transformers(architecture: Architecture) -> None:
    theirs = LlamaForCausalLM(LlamaConfig(**configuration(architecture, VOCABULARY, 64)))
    assert {their_name(name) for name in parameter_shapes(architecture, VOCABULARY)} == {
        name for name, _ in theirs.named_parameters()
    }


@pytest.mark.parametrize(
    ("change", "field"),
    [({"heads": 5}, "width"), ({"heads": 16, "width": 48}, "even"), ({"key_value_heads": 3}, "key_value_heads")],
)
def test_impossible_shapes_are_refused_by_name(change: dict[str, int], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Architecture(**{"layers": 1, "width": 32, "heads": 4, **change})
