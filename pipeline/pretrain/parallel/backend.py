"""Define the interface of a backend for the training loop, and functions of both backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from pipeline.model.decoder import Decoder
from pipeline.pretrain.checkpoints.shard_layout import TensorShard

AcceptStep = Callable[[float | Tensor], bool | Tensor]
"""Decides by the gradient norm whether to take the step, equally on all processes; a tensor is a bool on the device."""


class Batch(NamedTuple):
    """Input and target tokens, each (B, T); targets of -100 are ignored. Documents: see `Decoder.forward`."""

    input_BT: Tensor
    target_BT: Tensor
    documents: Tensor | None = None


class Backend(Protocol):
    """A model and its optimizer, spread over the processes. Every process calls the same methods in the same order."""

    data_rank: int
    """Rank among the data-parallel parts of the global batch; processes of one model have the same."""
    data_size: int
    """Number of data-parallel parts."""
    model: Decoder
    """The model, or this process's layers of it."""

    def accumulate_gradients(self, micro_batches: Sequence[Batch]) -> Tensor:
        """Accumulate the gradients of a step and return the summed token losses that this process counts."""

    def update(self, learning_rate: float, accept: AcceptStep) -> float | Tensor:
        """Take the step and return the global gradient norm before clipping, which may be infinite or NaN.

        Reading the norm or the decision from a tensor waits for the device. If `accept` refuses the norm, the gradients
        are dropped, and weights and optimizer stay the same bit for bit.
        """

    def norms_by_layer(self) -> dict[str, float]:
        """Return the norms of unclipped gradients and of weights by layer, over all processes."""

    def token_losses(self, batch: Batch) -> Tensor:
        """Return the loss of every token, (B, T), without a gradient; zero where another process counts it.

        The batch may be larger than a micro-batch: see `pipeline.pretrain.validation.rows_per_pass`. The native backend
        gathers the weights of a layer once for all of its sequences.
        """

    def state_shards(self) -> list[TensorShard]:
        """Return this process's shards of parameters (float32) and optimizer state, without copies."""

    def optimizer_step_count(self) -> int:
        """Return the number of steps that the optimizer took."""


def layer_name(name: str) -> str:
    """Return the layer of a parameter name: `blocks.3`, `embedding`, `norm` or `output`."""
    return ".".join(name.split(".")[: 2 if name.startswith("blocks.") else 1])
