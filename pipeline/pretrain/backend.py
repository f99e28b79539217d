"""What the training loop needs of a backend, and what both backends share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.pretrain.settings import Training

Batch = tuple[Tensor, Tensor]
"""Input and target tokens, each (B, T); a target of -100 does not count."""


class Backend(Protocol):
    """A model and its optimizer, spread over the processes. Every process calls the same methods in the same order."""

    def accumulate(self, micro_batches: Sequence[Batch]) -> Tensor:
        """Add up the gradients of a step and return the sum of this process's token losses."""

    def update(self, learning_rate: float) -> float:
        """Take the step and return the global norm of the gradient before clipping."""

    def loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum of the token losses of a batch, without a gradient."""

    def token_losses(self, batch: Batch) -> Tensor | None:
        """Return the loss of every token likewise, (B, T), zero on processes that must not count; None: not here."""

    def weights(self) -> dict[str, Tensor]:
        """Return all parameters in full by name, float32 on the CPU, on process 0; nothing on the others."""

    def moments(self) -> dict[str, Tensor]:
        """Return the optimizer's running averages likewise, as `exp_avg.NAME` and `exp_avg_sq.NAME`."""


def token_loss_sum(logits_BTV: Tensor, target_BT: Tensor) -> Tensor:
    """Return the summed cross-entropy in nats, computed in float32."""
    return F.cross_entropy(logits_BTV.float().flatten(0, 1), target_BT.flatten(), reduction="sum")


def token_losses(logits_of: Callable[[Tensor], Tensor], batch: Batch, at_once: int = 1024) -> Tensor:
    """Return the cross-entropy of every token in nats, (B, T) in float32, 0 where the target does not count.

    One sequence goes through the model at a time, and few tokens of it have float32 logits, so that memory is bounded.
    """
    rows = []
    for input_T, target_T in zip(batch[0], batch[1], strict=True):
        logits_TV = logits_of(input_T[None])[0]
        parts = zip(torch.split(logits_TV, at_once), torch.split(target_T, at_once), strict=True)
        rows.append(torch.cat([F.cross_entropy(logits.float(), target, reduction="none") for logits, target in parts]))
    return torch.stack(rows)


def adamw(parameters: Iterable[torch.nn.Parameter], training: Training, *, fused: bool) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov & Hutter 2019) that decays matrices and leaves the norms' vectors alone."""
    every = list(parameters)
    groups = [
        {"params": [p for p in every if p.dim() >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in every if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=training.learning_rate,
        betas=(training.beta1, training.beta2),
        eps=training.epsilon,
        fused=fused,
    )
