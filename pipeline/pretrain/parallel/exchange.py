"""What processes tell each other: a few numbers, which all of them get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from pipeline.core.disk_space import disk_full_error, is_disk_full
from pipeline.core.errors import DiskFull


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


# Work that the processes of a training divide, each piece on one of them, such as the files of a model.


def by_turns(works: Sequence[Callable[[], None]], *, places: Sequence[Path], beat: Callable[[], None]) -> None:
    """Do pieces of work, each on one process and as many at once as there are processes; all processes call this.

    They agree after every round, each `beat` before it, and all raise DiskFull where one of them had no room. Those of
    a round that is not full are spread over all processes, and so over the nodes.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    for first in range(0, len(works), size):
        beat()
        turn = works[first : first + size]
        error: str | None = None
        for number, work in enumerate(turn):
            if number * size // len(turn) == rank:
                try:
                    work()
                except Exception as problem:
                    if not is_disk_full(problem):
                        raise
                    error = str(disk_full_error(problem, places))
        errors: list[str | None] = [None] * size
        dist.all_gather_object(errors, error)
        if found := next((each for each in errors if each), None):
            raise DiskFull(found)
