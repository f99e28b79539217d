"""The mesh of the processes: pipeline x data (replicate x shard, context in it) x tensor, by their layout."""

from __future__ import annotations

from datetime import timedelta
from math import prod

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from pipeline.pretrain.parallel.process_layout import ProcessLayout

PATIENCE = timedelta(hours=1)
"""How long a process waits for the others of a group, whichever it is."""


def _along(shape: tuple[int, ...], dimension: int) -> list[int]:
    """Return the processes whose places in an array of all of them differ from this one's in one dimension alone."""
    ranks = torch.arange(prod(shape)).view(shape)
    place = (ranks == dist.get_rank()).nonzero()[0].tolist()
    members: list[int] = ranks[(*place[:dimension], slice(None), *place[dimension + 1 :])].tolist()
    return members


def _group(members: list[int]) -> dist.ProcessGroup:
    """Return a group of these processes, which alone have to call this, in the same order as their other groups."""
    made: dist.ProcessGroup = dist.new_group(members, timeout=PATIENCE, use_local_synchronization=True)
    return made


def _mesh(shape: tuple[int, ...], names: tuple[str, ...], device_type: str) -> DeviceMesh:
    """Return a mesh of all processes, each of which makes the groups that it is in.

    There is none for a dimension that holds all processes, and one for all dimensions of size 1.
    """
    assert dist.group.WORLD is not None
    groups = {tuple(range(prod(shape))): dist.group.WORLD}
    chosen = []
    for dimension in range(len(shape)):
        members = _along(shape, dimension)
        if tuple(members) not in groups:
            groups[tuple(members)] = _group(members)
        chosen.append(groups[tuple(members)])
    ranks = torch.arange(prod(shape)).view(shape)
    return DeviceMesh.from_group(chosen, device_type, ranks, mesh_dim_names=names)


def make(sizes: ProcessLayout, device_type: str) -> DeviceMesh:
    """Return the mesh with the dimensions pipeline, replicate, shard and tensor."""
    shape = (sizes.pipeline, sizes.replicate, sizes.shard, sizes.tensor)
    return _mesh(shape, ("pipeline", "replicate", "shard", "tensor"), device_type)


def experts(sizes: ProcessLayout, device_type: str) -> DeviceMesh:
    """Return the mesh in which `expert` is parted from `shard`: neighbours, that divide the experts."""
    shape = (sizes.pipeline, sizes.replicate, sizes.shard // sizes.expert, sizes.expert, sizes.tensor)
    return _mesh(shape, ("pipeline", "replicate", "shard", "expert", "tensor"), device_type)


def context_group(sizes: ProcessLayout) -> dist.ProcessGroup:
    """Return the processes that share a sequence with this one: neighbours within replicate x shard."""
    return _group(_along((sizes.pipeline, sizes.data, sizes.context, sizes.tensor), 2))
