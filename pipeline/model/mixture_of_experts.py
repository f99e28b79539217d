"""A mixture of experts: a router sends each token to a few of many feed-forward blocks (Shazeer et al. 2017).

No token is dropped: rows, one for each token and visited expert, are sorted by expert and multiplied in one grouped
product (Gale et al. 2022, MegaBlocks). The load-balancing loss is that of a sequence
(DeepSeek-AI 2024, DeepSeek-V2, section 2.1.3), in the gradients alone:
see docs/explanation/parallel-training.md.
Axes besides those of `pipeline.model.decoder`: N experts, C of them that a token visits, R rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from pipeline.model import decoder
from pipeline.model.settings import Architecture


class _PermuteRows(torch.autograd.Function):
    """Gathers rows of a matrix, possibly several times; the gradient is a sum in a fixed order."""

    @staticmethod
    def forward(ctx: Any, x_MD: Tensor, from_R: Tensor, back_R: Tensor) -> Tensor:
        ctx.save_for_backward(back_R)
        ctx.shape = len(x_MD), len(from_R) // max(len(x_MD), 1), x_MD.shape[1]
        return x_MD[from_R]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        (back_R,) = ctx.saved_tensors
        return upstream[0][back_R].view(ctx.shape).sum(1), None, None


def permute_rows(x_MD: Tensor, order_R: Tensor, back_R: Tensor) -> Tensor:
    """Return rows of x: row order_R[r] // (R / M) becomes row r; `back_R` is the inverse of `order_R`."""
    from_R = order_R if len(x_MD) == len(order_R) else order_R // (len(order_R) // len(x_MD))
    return cast(Tensor, _PermuteRows.apply(x_MD, from_R, back_R))  # type: ignore[no-untyped-call]


class _AddToGradient(torch.autograd.Function):
    """The identity, with a tensor added to its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor) -> Tensor:
        ctx.save_for_backward(added)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return upstream[0] + ctx.saved_tensors[0], None


class Router(nn.Linear):
    """Chooses the experts of each token with the highest probability."""

    balance = 0.0
    """Weight of the load-balancing loss, divided by the tokens of a step like the gradients."""
    context: dist.ProcessGroup | None = None
    """The processes that share a sequence."""

    def __init__(self, architecture: Architecture) -> None:
        assert architecture.experts and architecture.experts_per_token
        super().__init__(architecture.width, architecture.experts, bias=False)
        self.chosen = architecture.experts_per_token

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Return weights (B, T, C), which sum to 1, and numbers (B, T, C) of experts, and the visits of each, (N)."""
        probability_BTN = super().forward(x_BTD).softmax(-1, dtype=torch.float32)
        expert_BTC = probability_BTN.topk(self.chosen).indices
        every_BN = torch.arange(self.out_features, device=x_BTD.device).repeat(len(x_BTD), 1)
        sorted_BR = expert_BTC.flatten(1).sort().values
        ends_BN = torch.searchsorted(sorted_BR, every_BN, right=True)
        visits_BN = ends_BN.diff(prepend=ends_BN.new_zeros(len(x_BTD), 1))
        visits_N = visits_BN.sum(0)
        if self.balance and torch.is_grad_enabled():
            probability_BTN = self._add_balancing_gradient(probability_BTN, visits_BN)
        weight_BTC = probability_BTN.gather(-1, expert_BTC)
        weight_BTC = weight_BTC / weight_BTC.sum(-1, keepdim=True)
        return weight_BTC.to(x_BTD.dtype), expert_BTC, visits_N

    def _add_balancing_gradient(self, probability_BTN: Tensor, visits_BN: Tensor) -> Tensor:
        tokens = probability_BTN.shape[1]
        if self.context is not None:
            dist.all_reduce(visits_BN, group=self.context)
            tokens *= self.context.size()
        added_BN = self.balance * self.out_features / tokens * visits_BN.float()
        added_BTN = added_BN[:, None].expand(probability_BTN.shape)
        return cast(Tensor, _AddToGradient.apply(probability_BTN, added_BTN))  # type: ignore[no-untyped-call]


def grouped_matmul(x_RX: Tensor, weight_NYX: Tensor, ends_N: Tensor) -> Tensor:
    """Return each row times the transposed matrix of its group, (R, Y); rows of group n end before ends_N[n], int32."""
    return F.grouped_mm(x_RX, weight_NYX.transpose(-2, -1), offs=ends_N)


class ExpertLinear(nn.Module):
    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))

    def forward(self, x_RX: Tensor, ends_N: Tensor) -> Tensor:
        """Return each row times the transposed matrix of its expert, as `grouped_matmul`.

        With expert parallelism, the gradient is the mean over the processes that sent rows, like all other gradients.
        """
        if not isinstance(self.weight, DTensor):
            return grouped_matmul(x_RX, self.weight, ends_N)
        own, processes = self.weight.to_local(), self.weight.device_mesh.size()
        if own.requires_grad:
            own.register_hook(lambda gradient: gradient / processes)  # type: ignore[no-untyped-call]
        return grouped_matmul(x_RX, own, ends_N)


Exchange = Callable[[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor], Tensor]
"""Takes the experts' function of rows and visits, rows in the order of all experts, and their visits."""


class Experts(decoder.FeedForward):
    """SwiGLU of the experts that the router chooses, summed with the router's weights."""

    exchange: Exchange = staticmethod(lambda compute, x_RD, visits_N: compute(x_RD, visits_N))
    """With expert parallelism, it sends rows to the processes of their experts."""

    gate: ExpertLinear
    up: ExpertLinear
    down: ExpertLinear

    def __init__(self, architecture: Architecture) -> None:
        nn.Module.__init__(self)
        a = architecture
        assert a.experts
        self.router = Router(a)
        self.gate = ExpertLinear(a.experts, a.width, a.intermediate_width)
        self.up = ExpertLinear(a.experts, a.width, a.intermediate_width)
        self.down = ExpertLinear(a.experts, a.intermediate_width, a.width)

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return (B, T, D), and how many tokens visit each expert, (N,)."""
        weight_BTC, expert_BTC, visits_N = self.router(x_BTD)
        order_R = expert_BTC.flatten().argsort(stable=True)
        back_R = order_R.argsort()
        x_RD = permute_rows(x_BTD.flatten(0, 1), order_R, back_R)
        y_RD = permute_rows(self.exchange(self._compute, x_RD, visits_N), back_R, order_R)
        y_BTCD = y_RD.view(*expert_BTC.shape, -1)
        return (y_BTCD * weight_BTC[..., None]).sum(-2), visits_N

    def _compute(self, x_RD: Tensor, visits_N: Tensor) -> Tensor:
        ends_N = visits_N.cumsum(0).to(torch.int32)
        y_RD: Tensor = self.down(F.silu(self.gate(x_RD, ends_N)) * self.up(x_RD, ends_N), ends_N)
        return y_RD
