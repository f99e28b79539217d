"""Execution options for speed or memory do not change the results."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.attention import list_flash_attention_impls

from pipeline.core.errors import InputError
from pipeline.model.attention import list_kernels, make_attention_mask
from pipeline.model.compilation_and_precision import (
    FLASH_ATTENTION,
    find_flash_attention,
    is_deterministic,
    missing_kernel_as_input_error,
    set_determinism,
    set_execution_options,
)
from pipeline.model.llama_network import Llama
from pipeline.model.networks import initial_state
from pipeline.model.settings import Architecture
from tests.conftest import ROOT, is_lacking
from tests.model.documents import limits_of

CPU = torch.device("cpu")
VOCABULARY = 96
SHAPE = Architecture(layers=2, width=64, heads=4, key_value_heads=2)
SWITCHES = [{"recomputation": "selective"}, {"recomputation": "full"}, {"tiled_feed_forward": 3}]
SWITCHES += [{**first, "tiled_feed_forward": 4} for first in SWITCHES[:2]]


def drawn(shape: Architecture = SHAPE, **switches: object) -> Llama:
    model = Llama(shape, VOCABULARY)
    model.load_state_dict({name: weight * 4 for name, weight in initial_state(shape, VOCABULARY, seed=3).items()})
    set_execution_options(model, CPU, **switches)  # type: ignore[arg-type]
    return model


def batch(rows: int = 2, length: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, targets with ignored ones, and documents of different lengths."""
    draw = torch.Generator().manual_seed(1)
    tokens, target = (torch.randint(0, VOCABULARY, (rows, length), generator=draw) for _ in range(2))
    target[:, ::7] = -100
    document = (torch.rand((rows, length), generator=draw) < 0.1).cumsum(1)
    return tokens, target, document


def loss_and_gradients(model: Llama, length: int = 40) -> dict[str, Tensor]:
    tokens, target, document = batch(length=length)
    loss = model(tokens, target, limits_of(document)) / 80
    model.zero_grad()
    loss.backward()
    return {"loss": loss.detach(), **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_execution_options_do_not_change_loss_and_gradients(switches: dict[str, object]) -> None:
    expected, result = loss_and_gradients(drawn()), loss_and_gradients(drawn(**switches))
    assert expected.keys() == result.keys() and len(result) == 1 + len(list(drawn().parameters()))
    for name in expected:
        if "tiled_feed_forward" in switches:  # a weight's gradient is a sum over tiles
            torch.testing.assert_close(result[name], expected[name], atol=1e-6, rtol=1e-6)
        else:
            assert torch.equal(result[name], expected[name]), name


def test_naive_attention_computes_the_same_and_stores_all_scores(
    peak_bytes: Callable[[Callable[[], object]], int],
) -> None:
    expected, result = loss_and_gradients(drawn()), loss_and_gradients(drawn(flash_attention=False))
    for name in expected:
        torch.testing.assert_close(result[name], expected[name], atol=1e-5, rtol=1e-5)
    models = [drawn(flash_attention=on) for on in (True, False)]
    without, with_scores = (peak_bytes(lambda model=m: model(*batch(length=256)[:2]).backward()) for m in models)
    scores = 4 * 2 * 256 * 256 * 4  # fp32, of two rows and four heads
    assert with_scores - without > 0.9 * SHAPE.layers * scores


def test_recomputation_and_tiling_save_memory(peak_bytes: Callable[[Callable[[], object]], int]) -> None:
    shape = Architecture(layers=4, width=64, feed_forward_width=512, heads=4)
    models = [
        drawn(shape, **switches)
        for switches in ({}, {"recomputation": "selective"}, {"recomputation": "full"}, {"tiled_feed_forward": 8})
    ]
    none, selective, full, tiled = (peak_bytes(lambda model=m: loss_and_gradients(model, length=256)) for m in models)
    assert full < 0.7 * selective < 0.7 * none and tiled < 0.5 * none


@pytest.mark.slow
def test_compiled_blocks_equal_eager_blocks() -> None:
    shape = SHAPE.model_copy(update={"layers": 1})
    expected = loss_and_gradients(drawn(shape))
    result = loss_and_gradients(drawn(shape, compile=True, recomputation="selective"))
    for name in expected:
        torch.testing.assert_close(result[name], expected[name], atol=1e-5, rtol=1e-5)


def test_document_attends_only_to_itself() -> None:
    model = drawn()
    tokens, _, document = batch()
    with torch.no_grad():
        packed = model(tokens, documents=limits_of(document))
        assert not torch.allclose(packed, model(tokens), atol=1e-3)
        for row in range(len(tokens)):
            for number in document[row].unique():
                inside = document[row] == number
                alone = model(tokens[row, inside][None])[0]
                torch.testing.assert_close(packed[row, inside], alone, atol=1e-5, rtol=1e-5)


def test_document_limits_from_ids() -> None:
    tokens, expected = torch.zeros(2, 4), [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    for begins in ([0, 2, 4, 7, 8], [0, 0, 2, 4, 4, 4, 7, 8, 8]):  # an empty document is ignored
        mask = make_attention_mask(tokens, torch.tensor(begins), None, torch.float32)
        assert mask is not None and mask[0, 0].tolist() == expected
        assert mask[1, 0].tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]


def test_float8_is_refused_on_unsupported_hardware() -> None:
    with pytest.raises(InputError, match="float8 needs an NVIDIA GPU of compute capability"):
        drawn(float8=True)


@pytest.mark.thorough  # compiles two models: 40 CPU s
def test_float8_converts_the_blocks_and_trains_as_bf16_does() -> None:
    packages = next(ROOT.glob(".venv-auditors/lib/python*/site-packages"), ROOT)
    if not (packages / "torchao").is_dir():
        is_lacking("torchao is not installed: see tests/auditors/readers.lock")
    command = [sys.executable, ROOT / "tests/model/float8_steps.py", packages]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    (expected, unconverted, names), (losses, converted, same_names) = results["False"], results["True"]
    matrices = [f"blocks.{block}.attention.{name}" for block in (0, 1) for name in ("query", "key", "value", "output")]
    assert unconverted == [] and converted == matrices, "sides of 136 are no multiples of 16"
    assert same_names == names, "a checkpoint goes on with and without float8"
    assert losses != expected and losses == pytest.approx(expected, rel=0.01) and losses[-1] < 0.7 * losses[0]


def test_cpu_leaves_the_kernel_choice_to_pytorch() -> None:
    assert list_kernels(CPU) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("masked", [False, True])
def test_gpu_attention_in_half_precision_equals_the_reference(masked: bool) -> None:
    device = torch.device("cuda")
    tokens, _, document = batch()
    model = drawn()
    with torch.no_grad():
        documents = limits_of(document) if masked else None
        expected = model(tokens, documents=documents)
        half = model.to(device, torch.bfloat16)
        set_execution_options(half, device)
        result = half(tokens.to(device), documents=None if documents is None else documents.to(device))
    assert (result.cpu().float() - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    mode, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    yield
    torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def without_a_fixed_order() -> torch.Tensor:
    """Return the result of an operation without a deterministic kernel on a CPU."""
    return torch.zeros(2).put_(torch.tensor([1]), torch.tensor([3.0]), accumulate=False)


def test_nondeterministic_kernel_is_refused_by_name_with_a_remedy() -> None:
    set_determinism(True)
    assert is_deterministic()
    match = r"put_ has no deterministic kernel .*: set training\.deterministic to false"
    with pytest.raises(InputError, match=match), missing_kernel_as_input_error("training.deterministic"):
        without_a_fixed_order()


def test_nondeterministic_kernel_is_allowed_without_determinism() -> None:
    set_determinism(False)
    assert not is_deterministic() and without_a_fixed_order().tolist() == [0, 3]


def test_warn_only_mode_is_not_deterministic() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert not is_deterministic()


def test_other_errors_are_not_rewritten() -> None:
    with pytest.raises(RuntimeError, match="must match"), missing_kernel_as_input_error("training.deterministic"):
        torch.ones(2) + torch.ones(3)


def test_newer_flash_attention_is_used_if_installed_for_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {*FLASH_ATTENTION} <= {*list_flash_attention_impls()}
    assert [find_flash_attention(major) for major in (8, 9, 10)] == [None, None, None]
    (tmp_path / "flash_attn").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "flash_attn/__init__.py").touch()  # FlashAttention-2 alone
    assert [find_flash_attention(major) for major in (8, 9, 10)] == [None, None, None]
    (tmp_path / "flash_attn/cute.py").touch()
    del sys.modules["flash_attn"]  # imported by the search for its part
    assert [find_flash_attention(major) for major in (8, 9, 10)] == [None, "FA4", "FA4"]
    (tmp_path / "flash_attn_interface.py").touch()
    importlib.invalidate_caches()
    assert [find_flash_attention(major) for major in (8, 9, 10)] == [None, "FA3", "FA4"]
    del sys.modules["flash_attn"]
