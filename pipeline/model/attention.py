"""Attention with rotary positions, document masks and the fastest kernel of the device.

Axes as in `pipeline.model.decoder`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn

from pipeline.model.settings import Architecture

VARLEN_KERNEL_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""Whether the variable-length kernel lets heads share keys and values, as PyTorch's does after 2.11."""


def rotary_angles(length: int, architecture: Architecture, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of position times frequency, each (T, E/2), float32.

    Scaled frequencies ("llama3" rope type; Llama 3.1's model code): a frequency with more than high_frequency_factor
    turns in the original context stays, one with fewer than low_frequency_factor turns is divided by the factor, and
    between both the unscaled share grows with the number of turns.
    """
    exponent = torch.arange(0, architecture.head_dimension, 2, device=device, dtype=torch.float32)
    frequency = 1.0 / architecture.rope_theta ** (exponent / architecture.head_dimension)
    if scaling := architecture.rope_scaling:
        turns = scaling.original_context_length / (2 * math.pi / frequency)
        band = scaling.high_frequency_factor - scaling.low_frequency_factor
        stays = ((turns - scaling.low_frequency_factor) / band).clamp(0, 1)
        frequency = (1 - stays) * frequency / scaling.factor + stays * frequency
    angle_TE = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency)
    return angle_TE.cos(), angle_TE.sin()


def rotate(x_BHTE: Tensor, cosine_TE: Tensor, sine_TE: Tensor) -> Tensor:
    """Rotate dimensions i and i + E/2 of each head by their position's angle, in float32."""
    first, second = x_BHTE.float().chunk(2, dim=-1)
    rotated_BHTE = torch.cat((first * cosine_TE - second * sine_TE, second * cosine_TE + first * sine_TE), dim=-1)
    return rotated_BHTE.to(x_BHTE.dtype)


def make_attention_mask(
    tokens_BT: Tensor, documents: Tensor | None, window: int | None, dtype: torch.dtype
) -> Tensor | None:
    """Return the limits of attention to a document and a window, made once for all blocks with this window.

    On a GPU in half precision, they are the document offsets for the variable-length kernel, which gets the window
    itself. Elsewhere, they are a boolean mask (B, 1, T, T) of the positions (last axis) that a position may attend to:
    itself and earlier ones of its document, at most `window`. They are None where a position attends to all before it.
    This never synchronizes host and device.

    Args:
        documents: see `Decoder.forward`; without them, each row is a document.
    """
    length, positions = tokens_BT.shape[1], tokens_BT.numel()
    if documents is None:
        if window is None or window >= length:
            return None
        documents = torch.arange(0, positions + 1, length, dtype=torch.int32, device=tokens_BT.device)
    documents = documents.flatten()  # a pipeline has a row for each micro-batch
    if documents.is_cuda and dtype in (torch.bfloat16, torch.float16):
        return documents
    position_BT = torch.arange(positions, dtype=torch.int32, device=tokens_BT.device).view_as(tokens_BT)
    document_BT = torch.bucketize(position_BT, documents, right=True)
    allowed = (document_BT[:, None, :, None] == document_BT[:, None, None, :]).tril()
    return allowed if window is None else allowed.triu(1 - window)


Limits = Tensor | tuple[Tensor, Tensor] | None
"""Result of `attention_limits`; a pair of document offsets where queries and keys differ."""


def slice_attention_mask(limits: Tensor, length: int, span: range) -> Limits:
    """Return the limits for queries at the positions of a span and keys up to its end, from those of all positions.

    The variable-length kernel lets the last query of a document attend to all of its keys.
    """
    if limits.dtype != torch.int32:
        return limits[:, :, span.start : span.stop, : span.stop]
    row, position = limits // length, limits % length
    asking = row * len(span) + (position - span.start).clamp(0, len(span))
    return asking, row * span.stop + position.clamp(max=span.stop)


def list_kernels(device: torch.device) -> list[SDPBackend]:
    """Return a GPU's attention kernels, fastest first: cuDNN's on NVIDIA Hopper and later; none for a CPU.

    PyTorch skips kernels that do not support the shapes or the precision, and cuDNN's in deterministic mode, in which
    FlashAttention's backward kernel adds in a fixed order.
    """
    if device.type != "cuda":
        return []
    hopper = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
    first = [SDPBackend.CUDNN_ATTENTION] if hopper else []
    return [*first, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Attention(nn.Module):
    """Causal self-attention in which groups of heads share keys and values."""

    kernels: Sequence[SDPBackend] = ()
    """Kernels in order of preference; empty lets PyTorch choose."""
    window: int | None = None
    """Maximum positions that one attends to, itself counted."""
    query_spans: Callable[[int], list[range]] = staticmethod(lambda length: [range(length)])
    """Positions of a sequence with queries on this process; keys and values are of all."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a = architecture
        self.head_dimension = a.head_dimension
        self.query = nn.Linear(a.width, a.heads * a.head_dimension, bias=False)
        self.key = nn.Linear(a.width, a.key_value_head_count * a.head_dimension, bias=False)
        self.value = nn.Linear(a.width, a.key_value_head_count * a.head_dimension, bias=False)
        self.output = nn.Linear(a.heads * a.head_dimension, a.width, bias=False)

    def project_heads(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, T, H, E), keys and values (B, T, K, E), before rotation."""
        q_BTHE, k_BTKE, v_BTKE = (
            projection(x_BTD).unflatten(-1, (-1, self.head_dimension))
            for projection in (self.query, self.key, self.value)
        )
        return q_BTHE, k_BTKE, v_BTKE

    def forward(self, x_BTD: Tensor, cosine_TE: Tensor, sine_TE: Tensor, limits: Tensor | None = None) -> Tensor:
        """Return the attention of each position within its limits, (B, T, D); limits: see `attention_limits`."""
        q_BHTE, k_BKTE, v_BKTE = (x.transpose(1, 2) for x in self.project_heads(x_BTD))
        k_BKTE = rotate(k_BKTE, cosine_TE, sine_TE)
        batch, _, length, _ = k_BKTE.shape
        spans = self.query_spans(length)
        if len(spans) == 1:
            y_BTHE = self._attend(rotate(q_BHTE, cosine_TE, sine_TE), k_BKTE, v_BKTE, limits)
        else:
            if limits is None:  # neither documents nor a window
                rows = torch.arange(0, batch * length + 1, length, dtype=torch.int32, device=x_BTD.device)
                limits = make_attention_mask(rows.new_empty(batch, length), rows, None, q_BHTE.dtype)
            assert limits is not None
            outputs = []
            parts = torch.split(q_BHTE, [*map(len, spans)], dim=2)
            for span, part_BHTE in zip(spans, parts, strict=True):
                here = slice(span.start, span.stop)
                asked_BHTE = rotate(part_BHTE, cosine_TE[here], sine_TE[here])
                k, v = (x_BKTE[:, :, : span.stop] for x_BKTE in (k_BKTE, v_BKTE))
                outputs.append(self._attend(asked_BHTE, k, v, slice_attention_mask(limits, length, span)))
            y_BTHE = torch.cat(outputs, dim=1)
        y_BTD: Tensor = self.output(y_BTHE.flatten(2))
        return y_BTD

    def _attend(self, q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, limits: Limits) -> Tensor:
        """Return the attention of queries, (B, T, H, E), to keys and values, which may start at earlier positions."""
        grouped = q_BHTE.shape[1] != k_BKTE.shape[1]
        if isinstance(limits, Tensor) and limits.dtype == torch.int32:
            limits = limits, limits
        if isinstance(limits, tuple):
            q_NHE, k_NKE, v_NKE = (x.transpose(1, 2).flatten(0, 1) for x in (q_BHTE, k_BKTE, v_BKTE))
            longest = q_BHTE.shape[2], k_BKTE.shape[2]  # of a document
            before = -1 if self.window is None else self.window - 1
            if grouped and not VARLEN_KERNEL_GROUPS:
                k_NKE, v_NKE = (x.repeat_interleave(q_NHE.shape[1] // x.shape[1], 1) for x in (k_NKE, v_NKE))
            options: dict[str, Any] = {"enable_gqa": grouped} if VARLEN_KERNEL_GROUPS else {}
            y_NHE = varlen_attn(q_NHE, k_NKE, v_NKE, *limits, *longest, window_size=(before, 0), **options)
            assert isinstance(y_NHE, Tensor)
            return y_NHE.reshape(-1, q_BHTE.shape[2], *y_NHE.shape[1:])
        with sdpa_kernel(list(self.kernels), set_priority=True) if self.kernels else nullcontext():
            y_BHTE = F.scaled_dot_product_attention(
                q_BHTE, k_BKTE, v_BKTE, attn_mask=limits, is_causal=limits is None, enable_gqa=grouped
            )
        return y_BHTE.transpose(1, 2)
