"""Attention rotates heads in float32, reads a document equally in any kernel, and does not synchronize a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from pipeline.model import attention
from pipeline.model.attention import Attention, make_attention_mask, rotary_angles, rotate
from pipeline.model.llama_network import Llama
from pipeline.model.settings import Architecture


def test_rotary_embedding_in_half_precision_has_minimal_error() -> None:
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
def test_attention_does_not_synchronize_host_and_gpu(packed: bool, window: int | None) -> None:
    """Meta tensors hold no data: an operation whose result size depends on data, such as nonzero, raises.

    In a CPU build of PyTorch, operations that need a GPU raise too, such as slices.
    """
    with torch.device("meta"):
        model = Llama(Architecture(layers=2, width=64, heads=4, window=window), 96).bfloat16()
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cuda")
        tokens = torch.empty(2, 40, dtype=torch.long, device="cuda")
        documents = torch.empty(7, dtype=torch.int32, device="cuda") if packed else None
        assert model(tokens, documents=documents).shape == (2, 40, 96)


def document_by_document(
    q_NHE: Tensor,
    k_NKE: Tensor,
    v_NKE: Tensor,
    asking: Tensor,
    read: Tensor,
    *longest: int,
    window_size: tuple[int, int],
    enable_gqa: bool = False,
) -> Tensor:
    """Implement on a CPU the documented behavior of `torch.nn.attention.varlen.varlen_attn` on a GPU."""
    asks, reads = asking.diff().tolist(), read.diff().tolist()
    assert max(asks) <= longest[0] and max(reads) <= longest[1] and window_size[1] == 0
    results = []
    of_documents = (
        x.transpose(0, 1).split(lengths, 1) for x, lengths in ((q_NHE, asks), (k_NKE, reads), (v_NKE, reads))
    )
    for q_HTE, k_KTE, v_KTE in zip(*of_documents, strict=True):
        before = k_KTE.shape[1] - q_HTE.shape[1]  # the last query reads the last key
        reads_TT = torch.ones(q_HTE.shape[1], k_KTE.shape[1], dtype=torch.bool).tril(before)
        if window_size[0] >= 0:
            reads_TT = reads_TT.triu(before - window_size[0])
        results.append(F.scaled_dot_product_attention(q_HTE, k_KTE, v_KTE, reads_TT, enable_gqa=enable_gqa))
    return torch.cat(results, 1).transpose(0, 1)


def without_groups(
    q_NHE: Tensor,
    k_NHE: Tensor,
    v_NHE: Tensor,
    asking: Tensor,
    read: Tensor,
    *longest: int,
    window_size: tuple[int, int],
) -> Tensor:
    """Implement torch 2.11: each query has its own keys and values."""
    return document_by_document(q_NHE, k_NHE, v_NHE, asking, read, *longest, window_size=window_size)


@pytest.mark.parametrize("kernel", [document_by_document, without_groups])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("groups", [2, 4])
def test_document_kernel_equals_masked_attention(
    groups: int, window: int | None, kernel: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "varlen_attn", kernel)
    monkeypatch.setattr(attention, "VARLEN_KERNEL_GROUPS", kernel is document_by_document)
    torch.manual_seed(3)
    architecture = Architecture(layers=1, width=32, heads=4, key_value_heads=groups)
    made, x_BTD = Attention(architecture), torch.randn(2, 12, 32)
    made.window = window
    document_BT = torch.tensor([[0] * 7 + [1] * 5, [2] * 12])
    allowed = (document_BT[:, None, :, None] == document_BT[:, None, None, :]).tril()
    mask = allowed if window is None else allowed.triu(1 - window)
    angles = rotary_angles(12, architecture, torch.device("cpu"))
    begins = torch.tensor([0, 7, 12, 24], dtype=torch.int32)
    torch.testing.assert_close(made(x_BTD, *angles, begins), made(x_BTD, *angles, mask))


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("kind", ["whole rows", "mask", "kernel of documents"])
def test_partial_queries_equal_full_attention(kind: str, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "varlen_attn", document_by_document)
    torch.manual_seed(3)
    architecture = Architecture(layers=1, width=32, heads=4, key_value_heads=2)
    made, x_BTD = Attention(architecture), torch.randn(2, 12, 32)
    made.window, angles = window, rotary_angles(12, architecture, torch.device("cpu"))
    begins = torch.tensor([0, 7, 12, 12, 14, 24], dtype=torch.int32)  # one of them is empty
    tokens_BT = torch.zeros(2, 12, dtype=torch.long)
    given = None if kind == "whole rows" else begins
    limits = make_attention_mask(tokens_BT, given, window, torch.float32)
    whole_BTD = made(x_BTD, *angles, begins if kind == "kernel of documents" else limits)
    torch.testing.assert_close(whole_BTD, made(x_BTD, *angles, limits))
    for spans in ([range(3), range(9, 12)], [range(3, 6), range(6, 9)]):
        positions = [position for span in spans for position in span]
        made.query_spans = lambda _, spans=spans: spans  # type: ignore[assignment, misc]
        hook = made.query.register_forward_hook(lambda _, __, q, positions=positions: q[:, positions])  # type: ignore[misc]
        some_BTD = made(x_BTD, *angles, begins if kind == "kernel of documents" else limits)
        hook.remove()
        torch.testing.assert_close(some_BTD, whole_BTD[:, positions])
