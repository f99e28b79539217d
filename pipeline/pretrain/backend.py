"""What the training loop needs of a backend, and what both backends share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.pretrain.pieces import Piece
from pipeline.pretrain.settings import Training

Accept = Callable[[float], bool]
"""Says of the gradient's norm whether the step is taken; the same on every process."""


class Batch(NamedTuple):
    """Input and target tokens, each (B, T); a target of -100 does not count. Documents: see `Llama.forward`."""

    input_BT: Tensor
    target_BT: Tensor
    document_BT: Tensor | None = None


class Backend(Protocol):
    """A model and its optimizer, spread over the processes. Every process calls the same methods in the same order."""

    data_rank: int
    """Which part of the global batch this process computes; processes that share a model's work have the same."""
    data_size: int
    """The number of these parts."""

    def accumulate(self, micro_batches: Sequence[Batch]) -> Tensor:
        """Add up the gradients of a step and return the sum of this process's token losses.

        Over all processes these add up to the sum of the global batch: each token's loss is counted by one of them.
        """

    def update(self, learning_rate: float, accept: Accept) -> float:
        """Take the step and return the global norm of the gradient before clipping, which may be infinite or NaN.

        Where the norm is not accepted the gradients are dropped; weights and optimizer stay as they are, bit for bit.
        """

    def loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum of the token losses of a batch likewise, without a gradient."""

    def token_losses(self, batch: Batch) -> Tensor | None:
        """Return the loss of every token likewise, (B, T), zero on processes that must not count; None: not here."""

    def pieces(self) -> list[Piece]:
        """Return what this process holds of parameters (float32) and optimizer state: the memory itself, no copies."""

    def optimizer_step(self) -> int:
        """Return how many steps the optimizer has taken."""


def token_loss_sum(logits_BTV: Tensor, target_BT: Tensor) -> Tensor:
    """Return the summed cross-entropy in nats, computed in float32."""
    return F.cross_entropy(logits_BTV.float().flatten(0, 1), target_BT.flatten(), reduction="sum")


def token_losses(model: Callable[..., Tensor], batch: Batch, at_once: int = 1024) -> Tensor:
    """Return the cross-entropy of every token in nats, (B, T) in float32, 0 where the target does not count.

    One sequence goes through the model at a time, and few tokens of it have float32 logits, so that memory is bounded.
    """
    rows = []
    for row, target_T in enumerate(batch.target_BT):
        document_BT = None if batch.document_BT is None else batch.document_BT[row : row + 1]
        logits_TV = model(batch.input_BT[row : row + 1], None, document_BT)[0]
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
