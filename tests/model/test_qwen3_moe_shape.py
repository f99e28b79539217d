"""The native Qwen3 with experts equals Transformers: logits, gradients, load-balancing loss, names, sizes, folders."""

import json
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from pipeline.core.errors import InputError
from pipeline.model import huggingface
from pipeline.model.architectures import DeviceWork
from pipeline.model.compilation_and_precision import set_execution_options
from pipeline.model.mixture_of_experts import permute_rows
from pipeline.model.networks import initial_state, parameter_shapes
from pipeline.model.qwen3_moe_network import Qwen3Moe, huggingface_config, huggingface_name
from pipeline.model.qwen3_moe_shape import PRESETS
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import activation_bytes, active_parameter_count, flops_per_token, parameter_count

VOCABULARY, EXPERTS, CHOSEN = 96, 6, 2
SHAPE: dict[str, Any] = {"preset": "qwen3-moe", "layers": 2, "width": 32, "heads": 4, "key_value_heads": 2}
SHAPE |= {"head_width": 16, "feed_forward_width": 24, "experts": EXPERTS, "experts_per_token": CHOSEN}
SHAPES = [
    Architecture.model_validate(SHAPE),
    Architecture.model_validate({**SHAPE, "layers": 1, "tie_embeddings": True, "window": 7, "experts_per_token": 3}),
]
# In thousands of millions, of Qwen's model cards: all parameters, those of a token, all without embeddings.
PUBLISHED = {"qwen3-30b-a3b": (30.5, 3.3, 29.9), "qwen3-235b-a22b": (235, 22, 234)}
QWEN_VOCABULARY = 151_936


def state_of(architecture: Architecture) -> dict[str, Tensor]:
    """Return weights under which every norm matters and experts have different router weights."""
    draw = torch.Generator().manual_seed(5)
    state = initial_state(architecture, VOCABULARY, seed=3)
    return {name: 4 * w if w.dim() > 1 else w + torch.randn(w.shape, generator=draw) / 4 for name, w in state.items()}


def native(architecture: Architecture, **switches: Any) -> Qwen3Moe:
    model = Qwen3Moe(architecture, VOCABULARY)
    model.load_state_dict(state_of(architecture), strict=not architecture.tie_embeddings)
    set_execution_options(model, torch.device("cpu"), **switches)
    return model


def balanced(architecture: Architecture, **switches: Any) -> Qwen3Moe:
    """Return the model with a load-balancing loss."""
    model = native(architecture, **switches)
    for block in model.blocks:
        block.feed_forward.router.balance = 0.3
    return model


def export(architecture: Architecture, tokenizer: Path, folder: Path) -> None:
    places = {"tokenizer": tokenizer, "tokenizer_configuration": tokenizer.with_name("tokenizer_config.json")}
    huggingface.save_pretrained(state_of(architecture), architecture, VOCABULARY, 64, **places, folder=folder)


def theirs_of(architecture: Architecture, tokenizer: Path, folder: Path) -> Qwen3MoeForCausalLM:
    export(architecture, tokenizer, folder)
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager")


def stacked(theirs: Qwen3MoeForCausalLM, *, gradients: bool) -> dict[str, Tensor]:
    """Return parameters or gradients by our names: gate and up of all experts are one tensor in Transformers' model."""
    results: dict[str, Tensor] = {}
    for name, parameter in theirs.named_parameters():
        tensor = parameter.grad if gradients else parameter
        assert tensor is not None
        if name.endswith("gate_up_proj"):
            for part, half in zip(("gate", "up"), tensor.chunk(2, dim=1), strict=True):
                results[name.replace("gate_up_proj", f"*.{part}_proj.weight")] = half
        else:
            results[name.replace("experts.down_proj", "experts.*.down_proj.weight")] = tensor
    return results


def batch() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, VOCABULARY, (3, 51), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


def gradients(model: Qwen3Moe, *parts: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(*parts).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("architecture", SHAPES)
def test_logits_and_gradients_equal_transformers(architecture: Architecture, tmp_path: Path, tokenizer: Path) -> None:
    own, theirs = native(architecture), theirs_of(architecture, tokenizer, tmp_path / "out")
    read, target = batch()
    logits = theirs(read).logits
    assert isinstance(theirs, Qwen3MoeForCausalLM) and logits.std() > 0.05
    torch.testing.assert_close(own(read), logits, atol=1e-5, rtol=1e-5)
    F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum").backward()
    expected = stacked(theirs, gradients=True)
    for name, gradient in gradients(own, read, target).items():
        assert gradient.any()
        torch.testing.assert_close(gradient, expected.pop(huggingface_name(name)), atol=1e-4, rtol=1e-4)
    assert not expected


def test_load_balancing_gradient_equals_transformers(tmp_path: Path, tokenizer: Path) -> None:
    """Transformers' function for one layer and one sequence at a time; the returned loss is the cross-entropy."""
    weight, (read, target) = 0.3, batch()
    own, theirs = native(SHAPES[0]), theirs_of(SHAPES[0], tokenizer, tmp_path / "out")
    plain, loss = gradients(own, read, target), own(read, target)
    for block in own.blocks:
        block.feed_forward.router.balance = weight
    assert torch.equal(own(read, target), loss)
    result = gradients(own, read, target)
    total = torch.zeros(())
    for row in read:
        logits = theirs(row[None], output_router_logits=True).router_logits
        total = total + sum(load_balancing_loss_func((of_layer,), EXPERTS, CHOSEN) for of_layer in logits)
    (weight * read.shape[1] * total).backward()
    for parameter in theirs.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    expected = stacked(theirs, gradients=True)
    assert (result["blocks.1.feed_forward.router.weight"] - plain["blocks.1.feed_forward.router.weight"]).norm() > 1
    for name, gradient in result.items():
        torch.testing.assert_close(gradient - plain[name], expected[huggingface_name(name)], atol=1e-3, rtol=1e-3)


def test_load_balancing_loss_does_not_depend_on_micro_batches() -> None:
    read, target = batch()
    model = balanced(SHAPES[0])
    whole = gradients(model, read, target)
    parts = [gradients(model, read[row : row + 1], target[row : row + 1]) for row in range(len(read))]
    for name, gradient in whole.items():
        torch.testing.assert_close(sum(part[name] for part in parts), gradient, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("switches", [{"recomputation": "selective"}, {"recomputation": "full"}])
def test_recomputation_is_bitwise_equal(switches: dict[str, Any]) -> None:
    plain, again = balanced(SHAPES[0]), balanced(SHAPES[0], **switches)
    read, target = batch()
    document = (torch.arange(50) >= 20).long().expand(3, -1)
    expected, result = (gradients(model, read, target, document) for model in (plain, again))
    assert all(torch.equal(result[name], gradient) for name, gradient in expected.items())
    for layer, visits_N in plain.visits.items():
        assert visits_N.sum() == read.numel() * CHOSEN and torch.equal(visits_N, again.visits[layer])
    assert len(plain.visits) == SHAPES[0].layers


@pytest.mark.parametrize("recomputation", ["none", "selective", "full"])
def test_blocks_compile_to_one_graph_without_breaks(recomputation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer runs the graph of the first one; no code is generated, which is slow."""
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager"))
    torch.compiler.reset()
    counters.clear()
    model = balanced(SHAPES[0], recomputation=recomputation, compile=True).to(torch.bfloat16)
    model.output.compiled = False
    plain, (read, target) = balanced(SHAPES[0]).to(torch.bfloat16), batch()
    expected, result = (gradients(one, read, target) for one in (plain, model))
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
    assert all(torch.equal(model.visits[layer], visits_N) for layer, visits_N in plain.visits.items())
    assert all(torch.equal(result[name], gradient) for name, gradient in expected.items())


@pytest.mark.slow
@pytest.mark.thorough
def test_compiled_blocks_equal_eager_blocks() -> None:
    """In bf16, where a token may choose another expert, gradients are as close to fp32."""
    read, target = batch()
    exact, expected, result = (
        gradients(balanced(SHAPES[0], compile=compiled).to(precision), read, target)
        for compiled, precision in ((False, torch.float32), (False, torch.bfloat16), (True, torch.bfloat16))
    )
    for name, gradient in expected.items():
        apart = 2 * (gradient - exact[name]).norm()
        assert (result[name] - exact[name]).norm() < max(apart, 0.1 * exact[name].norm()), name


def test_half_precision_is_close_to_fp32() -> None:
    read, target = batch()
    half = native(SHAPES[0]).to(torch.bfloat16)
    assert half(read, target).item() == pytest.approx(native(SHAPES[0])(read, target).item(), rel=0.01)
    assert all(gradient.isfinite().all() for gradient in gradients(half, read, target).values())


def test_half_precision_router_uses_a_float32_softmax() -> None:
    router = native(SHAPES[0]).blocks[0].feed_forward.router.to(torch.bfloat16)
    x_BTD = torch.randn(3, 50, 32, generator=torch.Generator().manual_seed(2)).bfloat16()
    weight_BTC, expert_BTC, _ = router(x_BTD)
    chosen_BTC = F.linear(x_BTD, router.weight).float().softmax(-1).gather(-1, expert_BTC)
    assert torch.equal(weight_BTC, (chosen_BTC / chosen_BTC.sum(-1, keepdim=True)).bfloat16())


def test_validation_does_not_count_expert_visits() -> None:
    model = native(SHAPES[0])
    with torch.no_grad():
        model(*batch())
    assert not model.visits


def test_expert_without_tokens_computes_nothing() -> None:
    model = native(SHAPES[0])
    with torch.no_grad():
        model.blocks[0].feed_forward.router.weight[1:] = 0
        model.blocks[0].feed_forward.router.weight[0] = 0
    read, target = batch()
    result = gradients(model, read, target)["blocks.0.feed_forward.gate.weight"]
    visited = result.flatten(1).any(1)
    assert visited.sum() == CHOSEN and result.isfinite().all()  # the same experts for equal probabilities


def test_experts_without_any_tokens_have_zero_gradient() -> None:
    """As on a process with a share of unvisited experts."""
    experts, nobody = native(SHAPES[0]).blocks[0].feed_forward, torch.zeros(0, dtype=torch.long)
    x_RD = torch.zeros(0, 32, requires_grad=True)
    y_RD = permute_rows(
        experts._compute(permute_rows(x_RD, nobody, nobody), torch.zeros(EXPERTS, dtype=torch.long)), nobody, nobody
    )
    y_RD.sum().backward()
    assert y_RD.shape == x_RD.grad.shape == (0, 32) and not experts.down.weight.grad.any()


@pytest.mark.parametrize("architecture", SHAPES)
def test_parameters_and_flops_equal_counted_ones(architecture: Architecture) -> None:
    model = native(architecture)
    count = parameter_count(architecture, VOCABULARY)
    assert count == sum(p.numel() for p in model.parameters())
    idle = sum(
        stack.weight[architecture.experts_per_token :].numel()
        for block in model.blocks
        for stack in (block.feed_forward.gate, block.feed_forward.up, block.feed_forward.down)
    )
    assert active_parameter_count(architecture, VOCABULARY) == count - idle
    tokens = torch.zeros((2, 6), dtype=torch.long)
    grouped = {torch.ops.aten._grouped_mm: lambda left, right, *_, **__: 2 * left[-2] * left[-1] * right[-1]}
    for recomputed in (False, True):
        set_execution_options(model, torch.device("cpu"), recomputation="full" if recomputed else "none")
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=grouped) as counter:
            model(tokens).sum().backward()
        flops = flops_per_token(architecture, VOCABULARY, 6, recomputation=recomputed)
        assert flops * tokens.numel() == counter.get_total_flops()


@pytest.mark.parametrize("recomputation", ["none", "full"])
@pytest.mark.parametrize(("precision", "norm_bytes"), [("fp32", 4), ("bf16", 6)])
def test_saved_activations_of_a_block_equal_the_estimate(precision: Any, norm_bytes: int, recomputation: Any) -> None:
    """Count what autograd saves, on a CPU, where a norm is not one kernel.

    It saves its result before the weight too, and in bf16 its input in float32.
    """
    shape = {**SHAPE, "layers": 3, "width": 64, "head_width": 32, "feed_forward_width": 48}
    architecture, again = Architecture.model_validate(shape), recomputation == "full"
    saved, estimated = [], []
    for a in (architecture, architecture.model_copy(update={"layers": 1})):
        model = Qwen3Moe(a, VOCABULARY).to(torch.bfloat16 if precision == "bf16" else torch.float32)
        set_execution_options(model, torch.device("cpu"), recomputation=recomputation)
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        expected: dict[int, int] = {}

        def pack(tensor: Tensor, weights: set[int] = weights, expected: dict[int, int] = expected) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                expected[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(*torch.zeros(2, 1, 128, dtype=torch.long))
        saved.append(sum(expected.values()))
        estimated.append(activation_bytes(a, VOCABULARY, DeviceWork(128, precision, again)))
    norms = 0 if again else 128 * norm_bytes * 2 * (2 * 64 + (4 + 2) * 32)
    # The normalization of router weights and the norm statistics are not counted: some 50 bytes of a token.
    assert saved[0] - saved[1] - norms == pytest.approx(estimated[0] - estimated[1], abs=2 * 128 * 53)
    assert not again or saved[0] - saved[1] == estimated[0] - estimated[1]


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name: str) -> None:
    assert {"qwen3-moe", *PUBLISHED} == PRESETS.keys()
    architecture = Architecture(preset=name)
    count, active = (of(architecture, QWEN_VOCABULARY) for of in (parameter_count, active_parameter_count))
    total, of_token, without = PUBLISHED[name]
    assert count / 1e9 == pytest.approx(total, rel=0.005)
    assert active / 1e9 == pytest.approx(of_token, rel=0.02)
    assert (count - 2 * QWEN_VOCABULARY * architecture.width) / 1e9 == pytest.approx(without, rel=0.005)
    with torch.device("meta"):
        theirs = Qwen3MoeForCausalLM(Qwen3MoeConfig(**huggingface_config(architecture, QWEN_VOCABULARY, 32_768)))
    assert count == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("architecture", SHAPES)
def test_export_and_import_preserve_the_model(architecture: Architecture, tmp_path: Path, tokenizer: Path) -> None:
    state = state_of(architecture)
    theirs = theirs_of(architecture, tokenizer, tmp_path / "out")
    written = load_file(tmp_path / "out/model.safetensors")
    assert written["model.layers.0.mlp.experts.5.up_proj.weight"].shape == (24, 32)
    # It distinguishes layers with a window, of which this architecture has none.
    assert "max_window_layers" not in json.loads((tmp_path / "out/config.json").read_text())
    theirs.save_pretrained(tmp_path / "theirs")  # as Transformers writes it
    for folder in ("out", "theirs"):
        result, size, weights = huggingface.load_pretrained(tmp_path / folder)
        assert (result, size, result.name) == (architecture, VOCABULARY, "qwen3_moe")
        assert weights.keys() == state.keys() and not weights.list_unused()
        assert all(torch.equal(weights[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm_topk_prob": False}, "norm_topk_prob False: only a model with True"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step 2: only a model with 1"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers \[0\]: only a model with \[\]"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"num_experts": 7}, r"mlp.gate.weight has shape \(6, 32\), not \(7, 32\)"),
        ({"moe_intermediate_size": 25}, r"experts.0.gate_proj.weight has shape \(24, 32\), not \(25, 32\)"),
    ],
)
def test_unsupported_configuration_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path, tokenizer: Path
) -> None:
    export(SHAPES[0], tokenizer, tmp_path / "out")
    file = tmp_path / "out/config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(InputError, match=message):
        huggingface.load_pretrained(tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preset": "qwen3"}, "preset qwen3 has no experts: remove"),
        ({"experts_per_token": 7}, "experts_per_token 7 must be at least 1 and at most experts 6"),
        ({"experts": None}, "at most experts None"),
        ({"base_width": 16}, "no rate for the router"),
        ({"window": 4, "full_attention_layers": [1]}, "whose models have one window"),
    ],
)
def test_impossible_expert_shapes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Architecture.model_validate({**SHAPE, **change})


def test_initial_expert_weights_follow_those_of_any_matrix() -> None:
    wide = Architecture.model_validate({**SHAPE, "layers": 8, "width": 64, "feed_forward_width": 96})
    state = initial_state(wide, VOCABULARY, seed=1)
    assert parameter_shapes(wide, VOCABULARY)["blocks.0.feed_forward.down.weight"] == (EXPERTS, 64, 96)
    for part, deviation in {"router": 0.02, "gate": 0.02, "up": 0.02, "down": 0.005}.items():
        assert state[f"blocks.3.feed_forward.{part}.weight"].std().item() == pytest.approx(deviation, rel=0.1)
    assert "experts" not in Architecture(layers=2, width=32, heads=4).model_dump()
