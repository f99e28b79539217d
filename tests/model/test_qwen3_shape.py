"""The native Qwen3 equals Transformers: logits, gradients, names, sizes and folders."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from pipeline.core.errors import InputError
from pipeline.model import huggingface
from pipeline.model.architectures import DeviceWork
from pipeline.model.networks import get_network, initial_state, initial_weight, parameter_shapes
from pipeline.model.qwen3_network import Qwen3, huggingface_config, huggingface_name
from pipeline.model.qwen3_shape import PRESETS
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import activation_bytes, flops_per_token, parameter_count

VOCABULARY = 96
SHAPES = [
    Architecture(preset="qwen3", layers=2, width=32, heads=4, key_value_heads=2, head_width=16),
    Architecture(preset="qwen3", layers=3, width=48, heads=3, key_value_heads=1, tie_embeddings=True),
]
# In thousands of millions, of Qwen's model cards: all parameters, and those without embeddings.
PUBLISHED = {"qwen3-0.6b": (0.6, 0.44), "qwen3-1.7b": (1.7, 1.4), "qwen3-4b": (4.0, 3.6), "qwen3-8b": (8.2, 6.95)}
QWEN_VOCABULARY = 151_936


def state_of(architecture: Architecture) -> dict[str, Tensor]:
    """Return weights under which every norm matters."""
    draw = torch.Generator().manual_seed(5)
    state = initial_state(architecture, VOCABULARY, seed=3)
    return {name: 4 * w if w.dim() > 1 else w + torch.randn(w.shape, generator=draw) / 4 for name, w in state.items()}


def native(architecture: Architecture) -> Qwen3:
    model = Qwen3(architecture, VOCABULARY)
    model.load_state_dict(state_of(architecture), strict=not architecture.tie_embeddings)
    return model


def of_transformers(architecture: Architecture) -> Qwen3ForCausalLM:
    theirs = Qwen3ForCausalLM(Qwen3Config(**huggingface_config(architecture, VOCABULARY, 64)))
    state = {huggingface_name(name): weight for name, weight in state_of(architecture).items()}
    theirs.load_state_dict(state, strict=not architecture.tie_embeddings)
    return theirs


@pytest.mark.parametrize("architecture", SHAPES)
def test_logits_and_gradients_equal_transformers(architecture: Architecture) -> None:
    own, theirs = native(architecture), of_transformers(architecture)
    tokens = torch.randint(0, VOCABULARY, (3, 51), generator=torch.Generator().manual_seed(1))
    read, target = tokens[:, :-1], tokens[:, 1:]
    logits = theirs(read).logits
    assert logits.std() > 0.05
    torch.testing.assert_close(own(read), logits, atol=1e-5, rtol=1e-5)
    own(read, target).backward()
    F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum").backward()
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in own.named_parameters():
        assert parameter.grad is not None and parameter.grad.any()
        torch.testing.assert_close(parameter.grad, expected.pop(huggingface_name(name)), atol=1e-4, rtol=1e-4)
    assert not expected


@pytest.mark.parametrize("architecture", SHAPES)
def test_parameters_and_flops_equal_counted_ones(architecture: Architecture) -> None:
    model = native(architecture)
    count = parameter_count(architecture, VOCABULARY)
    assert count == sum(p.numel() for p in model.parameters())
    assert count == sum(p.numel() for p in of_transformers(architecture).parameters())
    tokens = torch.zeros((2, 16), dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    assert flops_per_token(architecture, VOCABULARY, 16) * tokens.numel() == counter.get_total_flops()


def test_block_saves_queries_and_keys_once_more_than_a_llama() -> None:
    """Count what autograd saves in both models, on a CPU and in fp32."""
    shape = {"layers": 3, "width": 64, "heads": 4, "key_value_heads": 2, "head_width": 32}
    saved, estimated = [], []
    for preset in ("llama3", "qwen3"):
        architecture = Architecture(preset=preset, **shape)
        model = get_network(architecture.name).model(architecture, VOCABULARY)
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        results: dict[int, int] = {}

        def pack(tensor: Tensor, weights: set[int] = weights, results: dict[int, int] = results) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                results[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(*torch.zeros(2, 1, 128, dtype=torch.long))
        saved.append(sum(results.values()))
        estimated.append(activation_bytes(architecture, VOCABULARY, DeviceWork(128, "fp32")))
    more = estimated[1] - estimated[0]
    assert more == 128 * 4 * 3 * (4 + 2) * 32
    # Beyond the formula: a norm that is not one kernel saves its result before the weight too.
    assert more <= saved[1] - saved[0] <= 2.1 * more


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_published_sizes(name: str) -> None:
    if name == "qwen3":
        shape = Architecture(preset=name, layers=2, width=32, heads=4)
        assert (shape.rope_theta, shape.norm_epsilon) == (1e6, 1e-6) and "qwen3" not in PUBLISHED
        return
    architecture = Architecture(preset=name)
    count, tables = parameter_count(architecture, QWEN_VOCABULARY), 1 if architecture.tie_embeddings else 2
    of_table = QWEN_VOCABULARY * architecture.width
    total, without = PUBLISHED[name]
    assert round(count / 1e9, 1) == total
    assert (count - tables * of_table) / 1e9 == pytest.approx(without, rel=0.02)
    with torch.device("meta"):
        theirs = Qwen3ForCausalLM(Qwen3Config(**huggingface_config(architecture, QWEN_VOCABULARY, 32_768)))
    assert count == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("architecture", SHAPES)
def test_export_and_import_preserve_the_model(architecture: Architecture, tmp_path: Path, tokenizer: Path) -> None:
    state = state_of(architecture)
    places = {"tokenizer": tokenizer, "tokenizer_configuration": tokenizer.with_name("tokenizer_config.json")}
    huggingface.save_pretrained(state, architecture, VOCABULARY, 64, **places, folder=tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["model_type"] == "qwen3"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokens = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        assert isinstance(loaded, Qwen3ForCausalLM)
        torch.testing.assert_close(loaded(tokens).logits, native(architecture)(tokens), atol=1e-5, rtol=1e-5)
    loaded.save_pretrained(tmp_path / "theirs")  # as Transformers writes it
    for folder in ("out", "theirs"):
        result, size, weights = huggingface.load_pretrained(tmp_path / folder)
        expected = architecture.model_copy(update={"feed_forward_width": architecture.intermediate_width})
        assert (result, size, result.name) == (expected, VOCABULARY, "qwen3")
        assert weights.keys() == state.keys()
        assert all(torch.equal(weights[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention' and no window"),
        ({"attention_bias": True}, "attention_bias True"),
    ],
)
def test_unsupported_configuration_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = {**huggingface_config(SHAPES[0], VOCABULARY, 64), **change}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message):
        huggingface.read_architecture(tmp_path)


def test_norms_are_initialized_to_one_at_any_base_width() -> None:
    wide = Architecture(preset="qwen3", layers=2, width=64, heads=4, base_width=32)
    norms = {name: shape for name, shape in parameter_shapes(wide, VOCABULARY).items() if name.endswith("_norm.weight")}
    assert sum(shape == (16,) for shape in norms.values()) == 2 * 2
    assert all((initial_weight(name, shape, wide, 1) == 1).all() for name, shape in norms.items())
