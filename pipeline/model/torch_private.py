"""Collect the private names of PyTorch that a training uses, each with its purpose; memory tracing has its own module.

They work with torch 2.13 (`tests/model/test_torch_private.py`). A new version may rename them without notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch._C._distributed_c10d import HashStore
from torch.distributed._functional_collectives import all_to_all_single_autograd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

TRIED_WITH = "2.13"
__all__ = [
    "TRIED_WITH",
    "HashStore",  # rendezvous of a single process without a port
    "all_to_all_single_autograd",  # differentiable all-to-all with unequal numbers of rows
    "find_local_shape",
    "flight_recordings",
    "overlap_tensor_parallel",
]


def find_local_shape(
    shape: tuple[int, ...],
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    coordinate: Sequence[int] | None = None,
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the shape and the offset of a process's shard of a distributed tensor: this one, or a mesh coordinate."""
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

    place = mesh.get_coordinate() if coordinate is None else coordinate
    assert place is not None  # this process is in the mesh
    return _compute_local_shape_and_global_offset(shape, mesh.shape, [*place], placements)


def overlap_tensor_parallel(group: ProcessGroup) -> None:
    """Let the compiler overlap the communication of tensor parallelism with matrix products."""
    import torch._inductor.config
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    torch._inductor.config._micro_pipeline_tp = True
    enable_symm_mem_for_group(group.group_name)


def flight_recordings() -> Iterator[bytes]:
    """Yield the last collectives of this process as JSON, from the recorders of NCCL and of other backends."""
    from torch._C import _distributed_c10d

    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):  # the first is in GPU builds only
        if recorder := getattr(_distributed_c10d, name, None):
            yield recorder()
