"""Make the mesh of the processes, and exchange values and work between them.

The mesh is pipeline x data (replicate x shard, with context in it) x tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from pipeline.core.errors import DiskFull
from pipeline.core.full_disk_errors import disk_full_error, is_disk_full
from pipeline.pretrain.parallel.process_layout import ProcessLayout

COLLECTIVE_TIMEOUT = timedelta(hours=1)
"""The timeout of collectives in every group."""


def _list_ranks_along(shape: tuple[int, ...], dimension: int) -> list[int]:
    """Return the ranks whose coordinates in the mesh differ from this one's in one dimension only."""
    ranks = torch.arange(prod(shape)).view(shape)
    place = (ranks == dist.get_rank()).nonzero()[0].tolist()
    members: list[int] = ranks[(*place[:dimension], slice(None), *place[dimension + 1 :])].tolist()
    return members


def make_group(members: list[int]) -> dist.ProcessGroup:
    """Make a group of these ranks; only they need call this, in the same order as for their other groups.

    Where NCCL is bound to devices, it splits the group of all processes: there all of them make groups at this point.
    """
    made: dist.ProcessGroup = dist.new_group(members, timeout=COLLECTIVE_TIMEOUT, use_local_synchronization=True)
    return made


def _make_mesh(shape: tuple[int, ...], names: tuple[str, ...], device_type: str) -> DeviceMesh:
    """Make a mesh of all processes, where each process makes only its own groups.

    A dimension with all processes uses the world group, and all dimensions of size 1 share one group.
    """
    assert dist.group.WORLD is not None
    groups = {tuple(range(prod(shape))): dist.group.WORLD}
    chosen = []
    for dimension in range(len(shape)):
        members = _list_ranks_along(shape, dimension)
        if tuple(members) not in groups:
            groups[tuple(members)] = make_group(members)
        chosen.append(groups[tuple(members)])
    ranks = torch.arange(prod(shape)).view(shape)
    return DeviceMesh.from_group(chosen, device_type, ranks, mesh_dim_names=names)


def make_mesh(sizes: ProcessLayout, device_type: str) -> DeviceMesh:
    """Make the mesh with the dimensions pipeline, replicate, shard and tensor."""
    shape = (sizes.pipeline, sizes.replicate, sizes.shard, sizes.tensor)
    return _make_mesh(shape, ("pipeline", "replicate", "shard", "tensor"), device_type)


def make_expert_mesh(sizes: ProcessLayout, device_type: str) -> DeviceMesh:
    """Make the mesh in which neighbors of dimension `shard` form the dimension `expert`."""
    shape = (sizes.pipeline, sizes.replicate, sizes.shard // sizes.expert, sizes.expert, sizes.tensor)
    return _make_mesh(shape, ("pipeline", "replicate", "shard", "expert", "tensor"), device_type)


def make_context_group(sizes: ProcessLayout) -> dist.ProcessGroup:
    """Make the group of processes that share a sequence: neighbors within replicate x shard."""
    return make_group(_list_ranks_along((sizes.pipeline, sizes.data, sizes.context, sizes.tensor), 2))


def all_gather_values(device: torch.device, *values: float | Tensor) -> Tensor:
    """All-gather values, (processes, values), float64, with one collective; the host does not wait for the device."""
    numbers = [0.0 if isinstance(value, Tensor) else value for value in values]  # copied to the device at once
    here = torch.tensor(numbers, dtype=torch.float64, pin_memory=device.type == "cuda")
    row = here.to(device, non_blocking=True)
    for number, value in enumerate(values):
        if isinstance(value, Tensor):
            row[number] = value
    table = row.new_empty(dist.get_world_size() * len(row))
    dist.all_gather_into_tensor(table, row)
    return table.view(-1, len(row))


class HostCopy:
    """A copy of a tensor in main memory, which a device makes after its work that is queued now."""

    def __init__(self, tensor: Tensor) -> None:
        self._copy = tensor.detach().to("cpu", non_blocking=True)  # from a GPU into pinned memory
        self._done = tensor.device.type == "cuda" and torch.cuda.current_stream(tensor.device).record_event()

    def wait_for_host_copy(self) -> NDArray[Any]:
        """Return the values; wait for the copy, and not for work that was queued later."""
        if self._done:
            self._done.synchronize()
        values: NDArray[Any] = self._copy.numpy()
        return values


def all_reduce_sum(device: torch.device, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum an array over all processes, element by element."""
    tensor = torch.from_numpy(values).to(device)
    dist.all_reduce(tensor)
    total: NDArray[np.float64] = tensor.cpu().numpy()
    return total


# Work that the processes of a training divide, such as the files of a model.


def distribute_tasks(works: Sequence[Callable[[], None]], *, places: Sequence[Path], beat: Callable[[], None]) -> None:
    """Run tasks, each on one process, in rounds of as many as there are processes; all processes call this.

    A round with fewer tasks is spread over all processes, and so over the nodes.

    Args:
        beat: called before every round.

    Raises:
        DiskFull: the disk of a process is full; raised on all processes after the round.
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
        if first_error := next((each for each in errors if each), None):
            raise DiskFull(first_error)
