"""What the training loop needs of a backend, and what both backends share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.model.decoder import Decoder
from pipeline.pretrain.checkpoints.tensor_shards import TensorShard

AcceptStep = Callable[[float | Tensor], bool]
"""Says of the gradient's norm whether the step is taken; the same on every process."""


class Batch(NamedTuple):
    """Input and target tokens, each (B, T); a target of -100 does not count. Documents: see `Decoder.forward`."""

    input_BT: Tensor
    target_BT: Tensor
    documents: Tensor | None = None


class Backend(Protocol):
    """A model and its optimizer, spread over the processes. Every process calls the same methods in the same order."""

    data_rank: int
    """Which part of the global batch this process computes; processes that share a model's work have the same."""
    data_size: int
    """The number of these parts."""
    model: Decoder
    """The model, or the layers of it that this process has."""

    def accumulate(self, micro_batches: Sequence[Batch]) -> Tensor:
        """Add up the gradients of a step and return the sum of the token losses that this process counts."""

    def update(self, learning_rate: float, accept: AcceptStep) -> float | Tensor:
        """Take the step and return the global norm of the gradient before clipping, which may be infinite or NaN.

        Whoever reads a tensor waits for the device. Where the norm is not accepted the gradients are dropped; weights
        and optimizer stay as they are, bit for bit.
        """

    def layer_norms(self) -> dict[str, float]:
        """Return the norms of gradients, before they are clipped, and weights by layer, of all processes."""

    def token_losses(self, batch: Batch) -> Tensor:
        """Return the loss of every token likewise, (B, T), without a gradient: zero where another process counts it."""

    def state_shards(self) -> list[TensorShard]:
        """Return what this process holds of parameters (float32) and optimizer state: the memory itself, no copies."""

    def optimizer_step(self) -> int:
        """Return how many steps the optimizer has taken."""


def layer_name(name: str) -> str:
    """Return the layer of a parameter by its name: `blocks.3`, `embedding`, `norm`, `output`."""
    return ".".join(name.split(".")[: 2 if name.startswith("blocks.") else 1])


def token_cross_entropies(logits_BTV: Tensor, target_BT: Tensor, at_once: int = 1024) -> Tensor:
    """Return the cross-entropies in nats, (B, T), float32, 0 where a target does not count, some at a time."""
    parts = zip(torch.split(logits_BTV.flatten(0, 1), at_once), torch.split(target_BT.flatten(), at_once), strict=True)
    losses = [F.cross_entropy(logits.float(), target, reduction="none") for logits, target in parts]
    return torch.cat(losses).view(target_BT.shape)


def token_losses(model: Callable[..., Tensor], batch: Batch) -> Tensor:
    """Return `Backend.token_losses` of a batch; one sequence goes through the model at a time."""
    rows, length = [], batch.input_BT.shape[1]
    for number in range(len(batch.input_BT)):
        row = slice(number, number + 1)
        documents = None
        if batch.documents is not None:  # those of other rows become empty
            documents = (batch.documents - number * length).clamp(0, length)
        rows.append(token_cross_entropies(model(batch.input_BT[row], None, documents), batch.target_BT[row]))
    return torch.cat(rows)
