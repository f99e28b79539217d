"""The mesh of the processes: pipeline x data (replicate x shard, context in it) x tensor, by their layout."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pipeline.pretrain.parallel.layout import Layout, check, layout

__all__ = ["Layout", "check", "context_group", "experts", "layout", "make"]


def make(sizes: Layout, device_type: str) -> DeviceMesh:
    """Return the mesh with the dimensions pipeline, replicate, shard and tensor."""
    shape = (sizes.pipeline, sizes.replicate, sizes.shard, sizes.tensor)
    return init_device_mesh(device_type, shape, mesh_dim_names=("pipeline", "replicate", "shard", "tensor"))


def experts(sizes: Layout, device_type: str) -> DeviceMesh:
    """Return the mesh in which `expert` is parted from `shard`: neighbours, that divide the experts."""
    shape = (sizes.pipeline, sizes.replicate, sizes.shard // sizes.expert, sizes.expert, sizes.tensor)
    names = ("pipeline", "replicate", "shard", "expert", "tensor")
    return init_device_mesh(device_type, shape, mesh_dim_names=names)


def context_group(sizes: Layout, device_type: str) -> dist.ProcessGroup:
    """Return the processes that share a sequence with this one: neighbours within replicate x shard."""
    shape = (sizes.pipeline, sizes.data, sizes.context, sizes.tensor)
    names = ("pipeline", "data", "context", "tensor")
    return init_device_mesh(device_type, shape, mesh_dim_names=names).get_group("context")
