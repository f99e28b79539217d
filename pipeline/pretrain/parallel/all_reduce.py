"""All-reduce of a few numbers: every process gets the same."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor


def sums(device: torch.device, *values: float | Tensor) -> list[float]:
    """Return the sums of these values over all processes."""
    tensor = torch.stack([torch.as_tensor(value, dtype=torch.float64, device=device) for value in values])
    dist.all_reduce(tensor)
    return [float(value) for value in tensor.tolist()]


def added(device: torch.device, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums over all processes of an array that each of them has, element by element."""
    tensor = torch.from_numpy(values).to(device)
    dist.all_reduce(tensor)
    found: NDArray[np.float64] = tensor.cpu().numpy()
    return found


def maximum(device: torch.device, value: float) -> float:
    """Return the largest of the processes' values; one that is not finite is infinite."""
    finite = value if math.isfinite(value) else math.inf
    tensor = torch.tensor(finite, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return float(tensor)
