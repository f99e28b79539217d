"""Cross-entropy of a linear layer's logits that never exist all at once.

The rows are taken in sixteen parts: each part's logits are made, their losses and gradients taken, and their memory
used again. The gradients are computed with the losses, so that no logits are made a second time. PyTorch's own
`linear_cross_entropy` does likewise, but adds the losses up in the logits' precision: in bf16 the sum over 1,000 tokens
is off by a percent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PARTS = 16
IGNORED = -100


class _LinearCrossEntropy(torch.autograd.Function):
    """The sum of the losses; its backward pass scales the gradients that the forward pass made."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_VD: Tensor, target_N: Tensor, with_gradient: bool) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=x_ND.device)
        x_gradient_ND = torch.empty_like(x_ND) if with_gradient else None
        # Sixteen roundings to bf16 would add up: this sum stays float32.
        weight_gradient_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if with_gradient else None
        rows = max(-(-x_ND.shape[0] // PARTS), 1)
        for start in range(0, x_ND.shape[0], rows):
            part = slice(start, start + rows)
            into = None if x_gradient_ND is None else x_gradient_ND[part]
            total += _part(x_ND[part], weight_VD, target_N[part], into, weight_gradient_VD)
        if x_gradient_ND is not None and weight_gradient_VD is not None:
            ctx.save_for_backward(x_gradient_ND, weight_gradient_VD.to(weight_VD.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x_gradient_ND, weight_gradient_VD = ctx.saved_tensors
        scale = upstream[0]
        # In place: PyTorch refuses a second backward pass, because the saved tensors have changed.
        return x_gradient_ND.mul_(scale), weight_gradient_VD.mul_(scale), None, None


def _part(
    x_ND: Tensor, weight_VD: Tensor, target_N: Tensor, x_gradient_ND: Tensor | None, weight_gradient_VD: Tensor | None
) -> Tensor:
    """Return the sum of some rows' losses; set their gradient and add to that of the weight where they are wanted."""
    counts = target_N != IGNORED
    place = (torch.arange(len(target_N), device=target_N.device), torch.where(counts, target_N, 0))
    # One buffer serves as logits, probabilities and gradient.
    buffer_NV = (x_ND @ weight_VD.T).float()
    buffer_NV -= buffer_NV.amax(-1, keepdim=True)
    of_target_N = buffer_NV[place]
    sums_N = buffer_NV.exp_().sum(-1)
    if x_gradient_ND is not None and weight_gradient_VD is not None:
        buffer_NV /= sums_N[:, None]
        buffer_NV[place] -= 1.0
        buffer_NV *= counts[:, None]
        gradient_NV = buffer_NV.to(x_ND.dtype)
        torch.mm(gradient_NV, weight_VD, out=x_gradient_ND)
        _add_product(weight_gradient_VD, gradient_NV.T, x_ND)
    return torch.where(counts, sums_N.log() - of_target_N, 0.0).sum()


def _add_product(sum_: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a matrix product to a float32 sum."""
    if left.dtype == torch.float32:
        sum_.addmm_(left, right)
    elif sum_.is_cuda:
        torch.addmm(sum_, left, right, out_dtype=torch.float32, out=sum_)
    else:
        sum_ += left @ right


def linear_cross_entropy(x_BTD: Tensor, weight_VD: Tensor, target_BT: Tensor) -> Tensor:
    """Return the summed cross-entropy of the logits x W^T in nats, a float32 scalar; a target of -100 does not count.

    It holds a sixteenth of the logits at a time, float32, beside the gradients of both arguments.
    """
    loss: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        x_BTD.flatten(0, -2), weight_VD, target_BT.flatten(), torch.is_grad_enabled()
    )
    return loss
