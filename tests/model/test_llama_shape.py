"""The native model equals the reference implementation."""

import pytest
import torch
from pydantic import ValidationError
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.model.architectures import DeviceWork, list_presets
from pipeline.model.compilation_and_precision import set_execution_options
from pipeline.model.llama_network import Llama, huggingface_config, huggingface_name
from pipeline.model.llama_shape import LOSS_PARTS, LOSS_ROWS, PRESETS
from pipeline.model.loss import LEAST_ROWS, PARTS
from pipeline.model.networks import initial_state, initial_weight, parameter_shapes
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import activation_bytes, flops_per_token, parameter_count

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
def test_logits_equal_transformers(architecture: Architecture) -> None:
    own = native(architecture)
    theirs = LlamaForCausalLM(LlamaConfig(**huggingface_config(architecture, VOCABULARY, 64)))
    state = {huggingface_name(name): p for name, p in own.named_parameters()}
    theirs.load_state_dict(state, strict=not architecture.tie_embeddings)
    tokens = torch.randint(0, VOCABULARY, (3, 50), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert own(tokens).std() > 0.05
        torch.testing.assert_close(own(tokens), theirs(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", SHAPES)
def test_parameter_count_equals_the_model(architecture: Architecture) -> None:
    model = native(architecture)
    theirs = LlamaForCausalLM(LlamaConfig(**huggingface_config(architecture, VOCABULARY, 64)))
    count = parameter_count(architecture, VOCABULARY)
    assert count == sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("architecture", SHAPES)
def test_flops_per_token_equal_counted_flops(architecture: Architecture) -> None:
    model = native(architecture)
    tokens = torch.zeros((2, 16), dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # the others are not counted on a CPU
        model(tokens).sum().backward()
    assert flops_per_token(architecture, VOCABULARY, 16) * tokens.numel() == counter.get_total_flops()


@pytest.mark.parametrize("architecture", SHAPES)
def test_flops_with_recomputation_equal_counted_flops(architecture: Architecture) -> None:
    model = native(architecture)
    set_execution_options(model, torch.device("cpu"), recomputation="full")
    tokens = torch.zeros((2, 16), dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    expected = flops_per_token(architecture, VOCABULARY, 16, recomputation=True) * tokens.numel()
    # PyTorch stops recomputing at the last needed tensor, which is before each block's last product.
    unneeded = 2 * architecture.layers * architecture.intermediate_width * architecture.width * tokens.numel()
    assert counter.get_total_flops() == expected - unneeded


def test_attention_is_causal() -> None:
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


def test_single_parameter_is_initialized_independently() -> None:
    state = initial_state(SHAPES[0], VOCABULARY, seed=5)
    assert list(state) == list(parameter_shapes(SHAPES[0], VOCABULARY))
    for name, weight in state.items():
        assert torch.equal(weight, initial_weight(name, weight.shape, SHAPES[0], 5))
    matrices = [weight for weight in state.values() if weight.shape == (32, 32)]
    assert len({float(matrix[0, 0]) for matrix in matrices}) == len(matrices)


def test_model_on_the_meta_device_uses_no_memory() -> None:
    with torch.device("meta"):
        model = Llama(SHAPES[0], VOCABULARY)
    assert all(p.is_meta for p in model.parameters()) and not list(model.buffers())


@pytest.mark.parametrize("architecture", SHAPES)
def test_every_parameter_has_a_transformers_name(architecture: Architecture) -> None:
    theirs = LlamaForCausalLM(LlamaConfig(**huggingface_config(architecture, VOCABULARY, 64)))
    assert {huggingface_name(name) for name in parameter_shapes(architecture, VOCABULARY)} == {
        name for name, _ in theirs.named_parameters()
    }


@pytest.mark.parametrize(
    ("change", "field"),
    [({"heads": 5}, "width"), ({"heads": 16, "width": 48}, "even"), ({"key_value_heads": 3}, "key_value_heads")],
)
def test_impossible_shapes_are_refused_by_name(change: dict[str, int], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Architecture(**{"layers": 1, "width": 32, "heads": 4, **change})


LLAMA3_VOCABULARY = 128_256
EIGHT = Architecture(layers=32, width=4096, feed_forward_width=14336, heads=32, key_value_heads=8)


@pytest.mark.parametrize("head_width", [None, 32])
def test_estimated_activations_equal_those_saved_by_autograd(head_width: int | None):
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
    result = sum(saved.values()) - 4 * vocabulary * shape.width  # the output weight's gradient is model state
    estimated = activation_bytes(shape, vocabulary, DeviceWork(tokens, "fp32"))
    logits = 4 * vocabulary * tokens  # fewer rows than are computed at once
    # Beyond the formula: intermediate results of norms and rotary embeddings that a compiled model does not keep.
    assert 0.9 * (estimated - logits) <= result <= 2 * (estimated - logits)


def test_loss_stores_part_of_the_logits_unless_tensor_parallel():
    def held(vocabulary: int, tokens: int = 1024, **options) -> float:
        return activation_bytes(EIGHT, vocabulary, DeviceWork(tokens, **options))

    assert (LOSS_PARTS, LOSS_ROWS) == (PARTS, LEAST_ROWS)
    for tokens, rows in ((1024, 1024), (8192, LEAST_ROWS), (65_536, 65_536 / PARTS)):
        more = held(2048, tokens, precision="fp32") - held(1024, tokens, precision="fp32")
        assert more == 1024 * 4 * rows
        # In bf16 a copy of the part, and once for all tokens the output weight's gradient in fp32.
        more = held(2048, tokens, precision="bf16") - held(1024, tokens, precision="bf16")
        assert more == 1024 * 6 * rows + 4 * 1024 * EIGHT.width
    more = held(2048, precision="bf16", tensor=2) - held(1024, precision="bf16", tensor=2)
    assert more == 1024 * 2 * 12 * 1024


def test_recomputation_saves_fewer_activations():
    sizes = [activation_bytes(EIGHT, LLAMA3_VOCABULARY, DeviceWork(8192, "bf16", again)) for again in (True, False)]
    assert sizes[0] < sizes[1] / 5


PRESETS_LLAMA3_VOCABULARY = 128_256
PUBLISHED = {
    "llama3-1b": 1_235_814_400,
    "llama3-3b": 3_212_749_824,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "gptnl-8b": 8_030_261_248,
    "gptnl-30b": 29.82e9,
    "opengptx-13b6": 13.6e9,
    "mistral-7b": 8_030_261_248,  # 7,241,732,096 with its own 32,000 tokens
    "demo": None,
}


def test_every_preset_has_a_name() -> None:
    assert set(PRESETS) == {"llama3", *PUBLISHED}
    assert Architecture.model_json_schema()["properties"]["preset"]["enum"] == list(list_presets())


@pytest.mark.parametrize("name", PUBLISHED)
def test_preset_size_equals_the_published_size(name: str) -> None:
    architecture = Architecture(preset=name)
    with torch.device("meta"):
        model = Llama(architecture, PRESETS_LLAMA3_VOCABULARY)
    count = parameter_count(architecture, PRESETS_LLAMA3_VOCABULARY)
    assert count == sum(p.numel() for p in model.parameters())
    published = PUBLISHED[name]
    if isinstance(published, int):
        assert count == published
    elif published is not None:
        assert count == pytest.approx(published, rel=2e-3)


@pytest.mark.parametrize("name", PUBLISHED)
def test_two_layer_preset_logits_equal_transformers(name: str) -> None:
    """One group of heads wide; head size, key-value share and feed-forward ratio are the preset's."""
    full = Architecture(preset=name)
    heads, groups = full.heads // full.key_value_head_count, 1
    reduced = {"layers": 2, "heads": heads, "key_value_heads": groups, "width": heads * full.head_dimension}
    hidden = reduced["width"] * full.intermediate_width // full.width
    architecture = Architecture(preset=name, **reduced, feed_forward_width=hidden)
    assert architecture.rope_scaling == full.rope_scaling and architecture.tie_embeddings == full.tie_embeddings
    vocabulary, length = 200, 150
    own = Llama(architecture, vocabulary)
    own.load_state_dict(initial_state(architecture, vocabulary, seed=3), strict=not architecture.tie_embeddings)
    theirs = LlamaForCausalLM(LlamaConfig(**huggingface_config(architecture, vocabulary, 131_072)))
    renamed = {huggingface_name(n): p for n, p in own.named_parameters()}
    theirs.load_state_dict(renamed, strict=not architecture.tie_embeddings)
    tokens = torch.randint(0, vocabulary, (1, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        result, expected = own(tokens), theirs(tokens).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


def test_explicit_fields_override_a_preset() -> None:
    small = Architecture.model_validate({"preset": "llama3-1b", "layers": 2, "rope_scaling": None})
    assert (small.layers, small.width, small.rope_scaling, small.tie_embeddings) == (2, 2048, None, True)
    assert Architecture.model_validate(small.model_dump()) == small
    assert Architecture.model_validate(Architecture(preset="llama3-3b").model_dump(mode="json")).rope_scaling


def test_fields_not_set_by_a_preset_are_required() -> None:
    with pytest.raises(ValidationError, match="layers"):
        Architecture(preset="llama3", width=32, heads=4)
    with pytest.raises(ValidationError, match="preset"):
        Architecture(preset="llama4")
    assert "required" not in Architecture.model_json_schema()


def test_rope_scaling_without_a_band_is_refused() -> None:
    with pytest.raises(ValidationError, match="low_frequency_factor"):
        Architecture(preset="llama3-1b", rope_scaling={"factor": 8, "high_frequency_factor": 1})
