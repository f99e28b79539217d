"""The loss in parts equals the loss of all logits, at a fraction of their memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pipeline.model import loss as loss_module
from pipeline.model.llama_network import Llama
from pipeline.model.loss import linear_cross_entropy
from pipeline.model.settings import Architecture


@pytest.fixture(autouse=True)
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few rows have as many parts as many."""
    monkeypatch.setattr(loss_module, "LEAST_ROWS", 1)


def drawn(rows: int, length: int, width: int, vocabulary: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, length, width), generator=draw)
    weight = torch.randn((vocabulary, width), generator=draw) / width**0.5
    target = torch.randint(0, vocabulary, (rows, length), generator=draw)
    target[torch.rand((rows, length), generator=draw) < 0.2] = -100
    return x, weight, target


def reference(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, weight).float().flatten(0, 1), target.flatten(), reduction="sum")


def reference_with_z_loss(x: Tensor, weight: Tensor, target: Tensor, z_loss: float) -> Tensor:
    """Return the plain formula on all logits, over unmasked targets."""
    logits = F.linear(x, weight).float().flatten(0, 1)
    z = torch.where(target.flatten() != -100, logits.exp().sum(-1).log(), 0.0)
    return F.cross_entropy(logits, target.flatten(), reduction="sum") + z_loss * z.square().sum()


def results(loss: object, x: Tensor, weight: Tensor, target: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    value = loss(x, weight, target)  # type: ignore[operator]
    (value * scale).backward()
    return value.detach(), x.grad, weight.grad


@settings(max_examples=30)
@given(
    st.integers(1, 3), st.integers(1, 50), st.integers(1, 9), st.integers(2, 70), st.integers(0, 99), st.floats(0.01, 2)
)
def test_loss_equals_the_reference(
    rows: int, length: int, width: int, vocabulary: int, seed: int, scale: float
) -> None:
    arguments = drawn(rows, length, width, vocabulary, seed)
    scale /= rows * length
    for result, expected in zip(
        results(linear_cross_entropy, *arguments, scale), results(reference, *arguments, scale), strict=True
    ):
        torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("z_loss", [1e-4, 0.3])
def test_z_loss_changes_gradients_but_not_the_reported_loss(z_loss: float) -> None:
    arguments = drawn(3, 40, 9, 70, seed=4)
    loss, *gradients = results(partial(linear_cross_entropy, z_loss=z_loss), *arguments, 0.1)
    _, *expected = results(partial(reference_with_z_loss, z_loss=z_loss), *arguments, 0.1)
    plain, *others = results(linear_cross_entropy, *arguments, 0.1)
    assert torch.equal(loss, plain)
    for result, right, other in zip(gradients, expected, others, strict=True):
        torch.testing.assert_close(result, right, atol=1e-6, rtol=1e-5)
        assert (result - other).norm() > z_loss * other.norm()


def test_bf16_model_gradients_equal_the_fp32_formula() -> None:
    x, weight, target = (t.bfloat16() if t.is_floating_point() else t for t in drawn(2, 256, 64, 1000))
    _, *gradients = results(partial(linear_cross_entropy, z_loss=0.01), x, weight, target, 1.0)
    _, *truth = results(partial(reference_with_z_loss, z_loss=0.01), x.float(), weight.float(), target, 1.0)
    for result, expected in zip(gradients, truth, strict=True):
        assert (result.float() - expected).norm() < 0.01 * expected.norm()


def test_bf16_loss_is_more_accurate_than_bf16_logits() -> None:
    x, weight, target = (t.bfloat16() if t.is_floating_point() else t for t in drawn(2, 256, 64, 1000))
    loss, x_gradient, weight_gradient = results(linear_cross_entropy, x, weight, target, 1.0)
    truth = results(reference, x.float(), weight.float(), target, 1.0)
    assert loss.dtype == torch.float32 and x_gradient.dtype == weight_gradient.dtype == torch.bfloat16
    torch.testing.assert_close(loss, truth[0], rtol=1e-3, atol=0)
    for result, expected in ((x_gradient, truth[1]), (weight_gradient, truth[2])):
        assert (result.float() - expected).norm() < 0.004 * expected.norm()


def test_extreme_logits_and_ignored_targets() -> None:
    x, weight, target = drawn(1, 8, 4, 30)
    assert linear_cross_entropy(x * 1e4, weight, target).item() == pytest.approx(
        reference(x * 1e4, weight, target).item(), rel=1e-6
    )
    nothing = results(linear_cross_entropy, x, weight, torch.full_like(target, -100), 1.0)
    assert all(not part.any() for part in nothing)


def test_each_row_is_shifted_by_its_largest_logit() -> None:
    x, weight, target = drawn(1, 64, 4, 30)
    unlike = x * torch.tensor([1.0, 1e4]).repeat(32)[:, None]  # in each part of rows
    torch.testing.assert_close(linear_cross_entropy(unlike, weight, target), reference(unlike, weight, target))


def test_memory_is_an_eighth_of_the_logits(peak_bytes: Callable[[Callable[[], object]], int]) -> None:
    x, weight, target = drawn(4, 256, 32, 8192)
    logits = 4 * 256 * 8192 * 4
    with torch.no_grad():
        alone = peak_bytes(lambda: linear_cross_entropy(x, weight, target))
    assert alone <= logits / 8
    gradients = 2 * 4 * (x.numel() + weight.numel())  # with the copies that `results` makes
    assert peak_bytes(lambda: results(linear_cross_entropy, x, weight, target, 0.1)) - gradients <= logits / 8
    assert peak_bytes(lambda: results(reference, x, weight, target, 0.1)) > 2 * logits


@pytest.mark.parametrize(("least", "parts"), [(1, 16), (300, 4), (2048, 1)])
def test_few_rows_are_split_into_fewer_parts(least: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "LEAST_ROWS", least)
    rows: list[int] = []
    part = loss_module._compute_rows

    def counted(x_ND: Tensor, *others: object) -> Tensor:
        rows.append(len(x_ND))
        return part(x_ND, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(loss_module, "_compute_rows", counted)
    arguments = drawn(4, 256, 8, 30)
    torch.testing.assert_close(linear_cross_entropy(*arguments), reference(*arguments))
    assert len(rows) == parts and sum(rows) == 1024


@pytest.mark.parametrize("z_loss", [0.0, 0.3])
def test_compiled_loss_equals_eager_loss(z_loss: float) -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    for dtype in (torch.float32, torch.bfloat16):
        x, weight, target = (t.to(dtype) if t.is_floating_point() else t for t in drawn(2, 64, 16, 300))
        pairs = [
            results(partial(linear_cross_entropy, z_loss=z_loss, compiled=compiled), x, weight, target, 0.01)
            for compiled in (False, True)
        ]
        for plain, compiled in zip(*pairs, strict=True):
            # A gradient in bf16 may be rounded to its neighbor.
            torch.testing.assert_close(plain, compiled, rtol=1e-5 if dtype == torch.float32 else 2**-7, atol=1e-6)
    assert counters["frames"]["ok"] > 0, "and the compiler has worked"


@pytest.mark.parametrize("compiled", [False, True])
def test_loss_is_compiled_only_on_request(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    plain = loss_module._cross_entropy_of_logits

    def asked_for(*given: Any) -> Any:
        asked.append(given)
        return plain(*given)

    monkeypatch.setattr(loss_module, "_compiled_cross_entropy", lambda: asked_for)
    linear_cross_entropy(*drawn(1, 8, 4, 30), compiled=compiled)
    assert bool(asked) == compiled


@pytest.mark.parametrize("tied", [False, True])
def test_model_returns_the_loss_of_its_logits(tied: bool) -> None:
    torch.manual_seed(2)
    model = Llama(Architecture(layers=1, width=32, heads=4, tie_embeddings=tied), 96)
    tokens = torch.randint(0, 96, (2, 30))
    target = torch.where(torch.rand((2, 30)) < 0.2, -100, torch.randint(0, 96, (2, 30)))
    losses, gradients = [], []
    for loss in (
        model(tokens, target),
        F.cross_entropy(model(tokens).flatten(0, 1), target.flatten(), reduction="sum"),
    ):
        gradients.append(torch.autograd.grad(loss / 60, list(model.parameters())))
        losses.append(loss)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=1e-6)
    for result, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
    assert model(tokens, target).dtype == torch.float32 and isinstance(model.output, nn.Linear)


def test_second_backward_pass_is_refused() -> None:
    x, weight, target = drawn(1, 8, 4, 30)
    loss = linear_cross_entropy(x.requires_grad_(), weight.requires_grad_(), target)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError):
        loss.backward()
