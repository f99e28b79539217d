"""What processes tell each other: a few numbers, which all of them get."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor


def gathered(device: torch.device, *values: float | Tensor) -> NDArray[np.float64]:
    """Return the values of each process, (processes, values), with one collective and one wait for the device."""
    here = [0.0 if isinstance(value, Tensor) else value for value in values]  # copied to the device at once
    row = torch.tensor(here, dtype=torch.float64, device=device)
    for number, value in enumerate(values):
        if isinstance(value, Tensor):
            row[number] = value
    table = row.new_empty(dist.get_world_size() * len(row))
    dist.all_gather_into_tensor(table, row)
    found: NDArray[np.float64] = table.view(-1, len(row)).cpu().numpy()
    return found


def added(device: torch.device, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums over all processes of an array that each of them has, element by element."""
    tensor = torch.from_numpy(values).to(device)
    dist.all_reduce(tensor)
    found: NDArray[np.float64] = tensor.cpu().numpy()
    return found
