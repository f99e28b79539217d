"""The native model equals the reference implementation."""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from pipeline.model import huggingface
from pipeline.model.llama import Llama, initial_state
from pipeline.model.settings import Architecture
from pipeline.model.size import flops_per_token, parameter_count

VOCABULARY = 96
SHAPES = [
    Architecture(layers=2, width=32, heads=4, key_value_heads=2),
    Architecture(layers=1, width=48, heads=3, feed_forward_width=40, rope_theta=10_000.0, norm_epsilon=1e-6),
    Architecture(layers=3, width=32, heads=2, key_value_heads=1, tie_embeddings=True),
]


def native(architecture: Architecture) -> Llama:
    model = Llama(architecture, VOCABULARY)
    state = {name: tensor * 4 for name, tensor in initial_state(architecture, VOCABULARY, seed=3).items()}
    model.load_state_dict(state, strict=not architecture.tie_embeddings)
    return model


@pytest.mark.parametrize("architecture", SHAPES)
def test_logits_equal_those_of_transformers(architecture: Architecture) -> None:
    own = native(architecture)
    theirs = LlamaForCausalLM(LlamaConfig(**huggingface.configuration(architecture, VOCABULARY, 64)))
    state = {huggingface.their_name(name): p for name, p in own.named_parameters()}
    theirs.load_state_dict(state, strict=not architecture.tie_embeddings)
    tokens = torch.randint(0, VOCABULARY, (3, 50), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert own(tokens).std() > 0.1
        torch.testing.assert_close(own(tokens), theirs(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", SHAPES)
def test_parameter_count(architecture: Architecture) -> None:
    model = native(architecture)
    theirs = LlamaForCausalLM(LlamaConfig(**huggingface.configuration(architecture, VOCABULARY, 64)))
    count = parameter_count(architecture, VOCABULARY)
    assert count == sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize(
    ("layers", "width", "hidden", "heads", "billions"), [(32, 4096, 14336, 32, 8.03), (60, 6656, 17920, 52, 29.82)]
)
def test_parameter_count_of_published_shapes(layers: int, width: int, hidden: int, heads: int, billions: float) -> None:
    groups = {32: 8, 52: 13}[heads]
    shape = Architecture(layers=layers, width=width, feed_forward_width=hidden, heads=heads, key_value_heads=groups)
    assert round(parameter_count(shape, 128_256) / 1e9, 2) == billions


@pytest.mark.parametrize("architecture", SHAPES)
def test_flops_per_token_equal_the_counted_ones(architecture: Architecture) -> None:
    model = native(architecture)
    tokens = torch.zeros((2, 16), dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # the others are not counted on a CPU
        model(tokens).sum().backward()
    assert flops_per_token(architecture, VOCABULARY, 16) * tokens.numel() == counter.get_total_flops()


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


def test_model_on_the_meta_device_takes_no_memory() -> None:
    with torch.device("meta"):
        model = Llama(SHAPES[0], VOCABULARY)
    assert all(p.is_meta for p in model.parameters()) and not list(model.buffers())


@pytest.mark.parametrize("architecture", SHAPES)
def test_export_loads_with_auto_classes(architecture: Architecture, tmp_path: Path, tokenizer: Path) -> None:
    model = native(architecture)
    folder = tmp_path / "huggingface"
    huggingface.export(
        dict(model.named_parameters()),
        architecture,
        VOCABULARY,
        64,
        tokenizer=tokenizer,
        tokenizer_configuration=tokenizer.with_name("tokenizer_config.json"),
        folder=folder,
    )
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens).logits, model(tokens), atol=1e-5, rtol=1e-5)
    assert loaded.config.eos_token_id == 1
    assert loaded.config.rope_parameters["rope_theta"] == architecture.rope_theta


@pytest.mark.parametrize("architecture", SHAPES)
def test_names_map_both_ways(architecture: Architecture) -> None:
    for name in initial_state(architecture, VOCABULARY, 0):
        assert huggingface.own_name(huggingface.their_name(name)) == name


@pytest.mark.parametrize(
    ("change", "field"),
    [({"heads": 5}, "width"), ({"heads": 16, "width": 48}, "even"), ({"key_value_heads": 3}, "key_value_heads")],
)
def test_impossible_shapes_are_refused_by_name(change: dict[str, int], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Architecture(**{"layers": 1, "width": 32, "heads": 4, **change})
