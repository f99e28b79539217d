"""Muon: a matrix moves by the orthogonal matrix nearest to the mean of its gradients.

Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon/): that mean, with Nesterov's look ahead, goes through
five steps of a Newton-Schulz iteration, which bring all its singular values near 1. Liu et al. 2025 (Moonlight, arXiv
2502.16982), section 2.2: weights decay, and the orthogonal matrix is multiplied by 0.2 times the root of its longer
side. Its elements are then as large as those of an update of AdamW, whose learning rate and decay therefore serve.

`torch.optim.Muon` does the same to a matrix that a process holds whole, always in bf16. It cannot be used here: of a
sharded matrix it would multiply the shards. Axes: R rows and C columns of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from pipeline.pretrain.checkpoints.pieces import placed, whole

MOMENTUM = 0.95
UPDATE_RMS = 0.2
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of x, x^3 and x^5 in the polynomial that each step applies to the singular values."""
SMALLEST_NORM = 1e-7


def orthogonalised(matrix_RC: Tensor, precision: torch.dtype) -> Tensor:
    """Return, in that precision, a matrix with the same singular vectors and singular values of about 0.7 to 1.2.

    Those of less than a thousandth of the matrix's norm stay smaller.
    """
    of_x, of_cube, of_fifth = COEFFICIENTS
    is_tall = matrix_RC.shape[0] > matrix_RC.shape[1]
    x: Tensor = (matrix_RC.T if is_tall else matrix_RC).to(precision)  # so that its square is that of the shorter side
    x = x / x.norm().clamp(min=SMALLEST_NORM)
    for _ in range(ITERATIONS):
        square = x @ x.T
        # Sums are made with the products, in whose precision they are not rounded in between.
        factor = torch.addmm(square, square, square, beta=of_cube, alpha=of_fifth)
        x = torch.addmm(x, factor, x, beta=of_x)
    return x.T if is_tall else x


class Muon(torch.optim.AdamW):
    """Muon of the groups with `orthogonalises`, AdamW of the others.

    The state of a matrix is the mean of its gradients alone, called as AdamW calls it. Each process gathers each matrix
    whole, computes the same, and keeps its part.
    """

    precision = torch.float32
    """Of the iteration."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take the step of all groups; the gradients of orthogonalised matrices are used up."""
        for group in self.param_groups:
            if group["orthogonalises"]:
                for parameter in group["params"]:
                    self._move(parameter, group)
                    parameter.grad = None  # so that AdamW passes over it
        super().step(closure)

    def _move(self, parameter: Tensor, group: dict[str, Any]) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        if gradient is None:
            return
        state["step"] += 1
        mean = state["exp_avg"].lerp_(gradient, 1 - MOMENTUM)
        ahead = gradient.lerp(mean, MOMENTUM)
        ahead_RC = ahead.full_tensor() if isinstance(ahead, DTensor) else ahead
        update_RC = orthogonalised(ahead_RC, self.precision).to(ahead_RC.dtype)
        rate = group["lr"]
        parameter.mul_(1 - rate * group["weight_decay"])
        for piece in placed("", parameter):
            part = update_RC[piece.box.within(whole(parameter.shape))]
            piece.tensor.add_(part, alpha=-rate * UPDATE_RMS * math.sqrt(max(parameter.shape)))
