"""Compute the cross-entropy of a linear layer's logits without holding all logits at once.

It processes the rows in sixteen chunks, or in fewer of 2,048 rows, and computes gradients with the losses, so that no
logits are computed twice. PyTorch's own `linear_cross_entropy` is similar, but sums the losses in the logits'
precision: in bf16 the sum over 1,000 tokens is off by a percent. With a vocabulary that is split over processes, it
exchanges only the largest logit, the sum and the target's logit of a row (Shoeybi et al. 2020).
The z-loss, weight x log^2 Z of each token (Chowdhery et al. 2022, PaLM, section 5), is in the gradients alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

PARTS, LEAST_ROWS = 16, 2048
IGNORED = -100


class _LinearCrossEntropy(torch.autograd.Function):
    """The sum of the losses; the forward pass computes the gradients, and the backward pass scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        target_N: Tensor,
        with_gradient: bool,
        group: dist.ProcessGroup | None,
        z_loss: float,
        compiled: bool,
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=x_ND.device)
        x_gradient_ND = torch.empty_like(x_ND) if with_gradient else None
        # Stay in float32, because sixteen roundings to bf16 would add up.
        weight_gradient_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if with_gradient else None
        rows = max(-(-x_ND.shape[0] // PARTS), LEAST_ROWS)
        for start in range(0, x_ND.shape[0], rows):
            part = slice(start, start + rows)
            into = None if x_gradient_ND is None else x_gradient_ND[part]
            total += _compute_rows(
                x_ND[part], weight_VD, target_N[part], into, weight_gradient_VD, group, z_loss, compiled
            )
        if x_gradient_ND is not None and weight_gradient_VD is not None:
            ctx.save_for_backward(x_gradient_ND, weight_gradient_VD.to(weight_VD.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None, None, None, None, None]:
        x_gradient_ND, weight_gradient_VD = ctx.saved_tensors
        scale = upstream[0]
        # In place, so PyTorch refuses a second backward pass.
        return x_gradient_ND.mul_(scale), weight_gradient_VD.mul_(scale), None, None, None, None, None


def _compute_rows(
    x_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    x_gradient_ND: Tensor | None,
    weight_gradient_VD: Tensor | None,
    group: dist.ProcessGroup | None,
    z_loss: float,
    compiled: bool,
) -> Tensor:
    """Return the sum of some rows' losses; write their gradient and add to that of the weight if they are given."""
    counts_N = target_N != IGNORED
    column_N = target_N - (0 if group is None else group.rank() * len(weight_VD))
    here_N = counts_N & (column_N >= 0) & (column_N < len(weight_VD))
    place_N = torch.where(here_N, column_N, 0)
    of = _compiled_cross_entropy() if compiled and group is None else _cross_entropy_of_logits
    loss_N, gradient_NV = of(x_ND @ weight_VD.T, place_N, here_N, counts_N, group, z_loss, x_gradient_ND is not None)
    if x_gradient_ND is not None and weight_gradient_VD is not None:
        torch.mm(gradient_NV, weight_VD, out=x_gradient_ND)
        _add_product(weight_gradient_VD, gradient_NV.T, x_ND)
    return loss_N.sum()


def _cross_entropy_of_logits(
    logits_NV: Tensor,
    place_N: Tensor,
    here_N: Tensor,
    counts_N: Tensor,
    group: dist.ProcessGroup | None,
    z_loss: float,
    with_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """Return the losses of rows of logits, and the gradient in their memory if `with_gradient`.

    Args:
        place_N: the column of a row's target where it is `here_N`.
        here_N: whether this process has the target's column.
        counts_N: whether the row's loss counts.
    """
    dtype, rows_N = logits_NV.dtype, torch.arange(len(place_N), device=place_N.device)
    largest_N = logits_NV.amax(-1).float()
    if group is not None:
        dist.all_reduce(largest_N, dist.ReduceOp.MAX, group)
    # One buffer serves as logits, exponentials and gradient.
    buffer_NV = logits_NV.float().sub_(largest_N[:, None])
    of_target_N = torch.where(here_N, buffer_NV[rows_N, place_N], 0.0)
    sums_N = buffer_NV.exp_().sum(-1)
    if group is not None:
        both_2N = torch.stack((of_target_N, sums_N))
        dist.all_reduce(both_2N, group=group)
        of_target_N, sums_N = both_2N
    loss_N = torch.where(counts_N, sums_N.log() - of_target_N, 0.0)
    if not with_gradient:
        return loss_N, buffer_NV
    factor_N = counts_N / sums_N
    if z_loss:  # whose gradient is 2 weight log Z times the probabilities
        factor_N = factor_N * (1 + 2 * z_loss * (sums_N.log() + largest_N))
    if torch.compiler.is_compiling():  # by comparison, which needs no buffer of float32
        is_target_NV = torch.arange(logits_NV.shape[1], device=place_N.device) == place_N[:, None]
        return loss_N, (buffer_NV * factor_N[:, None] - (is_target_NV & here_N[:, None]).float()).to(dtype)
    buffer_NV *= factor_N[:, None]
    buffer_NV[rows_N, place_N] -= here_N.float()
    return loss_N, buffer_NV.to(dtype)


@cache
def _compiled_cross_entropy() -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the compiled function; lazily, because PyTorch's compiler takes 1.5 seconds to load."""
    return torch.compile(_cross_entropy_of_logits, dynamic=False)


def _add_product(sum_: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == torch.float32:
        sum_.addmm_(left, right)
    elif sum_.is_cuda:
        torch.addmm(sum_, left, right, out_dtype=torch.float32, out=sum_)
    else:
        sum_ += (left @ right).float()  # makes a copy that memory tracing can count


def linear_cross_entropy(
    x_BTD: Tensor,
    weight_VD: Tensor,
    target_BT: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    z_loss: float = 0.0,
    compiled: bool = False,
) -> Tensor:
    """Return the summed cross-entropy of the logits x W^T in nats, a float32 scalar; targets of -100 are ignored.

    It holds a sixteenth of the logits at a time, or those of 2,048 rows, in float32, and the gradients of both inputs.

    Args:
        group: processes with equal shares of the vocabulary, in the order of ranks, and the same x. The loss covers the
            full vocabulary; the gradient of x is the part from the own share.
        z_loss: weight of log^2 Z, in nats, in the gradients; the returned loss excludes it.
        compiled: whether to compile the computation on logits without a group.
    """
    loss: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        x_BTD.flatten(0, -2), weight_VD, target_BT.flatten(), torch.is_grad_enabled(), group, z_loss, compiled
    )
    return loss


def token_cross_entropies(logits_BTV: Tensor, target_BT: Tensor, at_once: int = 1024) -> Tensor:
    """Return the cross-entropies in nats, (B, T), float32, 0 for ignored targets, in chunks of `at_once` rows."""
    parts = zip(torch.split(logits_BTV.flatten(0, 1), at_once), torch.split(target_BT.flatten(), at_once), strict=True)
    losses = [F.cross_entropy(logits.float(), target, reduction="none") for logits, target in parts]
    return torch.cat(losses).view(target_BT.shape)
