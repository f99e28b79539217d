"""Exchange the results of a batch between all processes, and decide on the device whether to take the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.pretrain.parallel.process_groups import HostCopy, all_gather_values


class PendingResult(NamedTuple):
    """The results of a batch on their way to the host."""

    accepted: Tensor
    """Whether loss and gradient norm are good, on the device."""
    global_values: HostCopy
    """Loss, gradient norm, and the values that are equal on all processes."""
    table: HostCopy
    """The other values of each process."""

    def wait_for_results(self) -> tuple[dict[str, float], list[float], NDArray[np.float64]]:
        """Wait for loss and gradient_norm, the equal values, and the others, (processes, values)."""
        loss, norm, *equal = self.global_values.wait_for_host_copy().tolist()
        return {"loss": loss, "gradient_norm": norm}, equal, self.table.wait_for_host_copy()


def all_gather_results(
    loss: Tensor,
    norm: float | Tensor,
    *,
    tokens: int,
    others: Sequence[float | Tensor],
    equal: Sequence[Tensor],
    thresholds: Mapping[str, float],
) -> PendingResult:
    """All-gather the results of a batch with one collective; the host waits for nothing.

    Args:
        loss: the summed token losses that this process counts.
        norm: the gradient norm, which is infinite for all where it is not finite for one.
        tokens: those of the global batch.
        others: further values of this process.
        equal: further values that all processes have.
        thresholds: the largest good `loss` and `gradient_norm`.
    """
    table = all_gather_values(loss.device, loss, norm, *others)
    norms = table[:, 1]
    values = {
        "loss": table[:, 0].sum() / tokens,
        "gradient_norm": torch.where(norms.isfinite().all(), norms.max(), math.inf),
    }
    good = [value.isfinite() & (value <= thresholds[name]) for name, value in values.items()]
    summary = torch.stack([*values.values(), *equal])
    return PendingResult(torch.stack(good).all(), HostCopy(summary), HostCopy(table[:, 2:].contiguous()))
