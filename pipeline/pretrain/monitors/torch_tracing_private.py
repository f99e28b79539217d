"""Collect the private names of PyTorch that memory tracing uses, each with its purpose.

They work with torch 2.13 (`tests/pretrain/monitors/test_torch_tracing_private.py`). A new version may rename them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.pipelining.schedules as torch_schedules
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.fsdp2_mem_tracker import _FSDPRefType as FSDPRefType
from torch.distributed._tools.mem_tracker import _TOTAL_KEY as TOTAL_KEY
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

TRIED_WITH = "2.13"
__all__ = [
    "ITEM",
    "REDUCE_SCATTER",
    "TOTAL_KEY",  # the sum of the kinds
    "TRIED_WITH",
    "FSDPMemTracker",  # counts by kind what an FSDP step holds
    "FSDPRefType",  # the kinds
    "FakeTensorMode",  # tensors that hold no data
    "TorchDispatchMode",  # sees every operator that is called
    "exclude_shape_propagation_memory",
    "fake_tensors",
    "join_fake_group",
    "skip_pipeline_stage_communication",
    "tree_leaves",  # the tensors in what an operator returns
]

ITEM, REDUCE_SCATTER = torch.ops.aten._local_scalar_dense.default, torch.ops.c10d._reduce_scatter_base_.default
"""The operators of `tensor.item()` and of a reduction that leaves each process its share."""


def fake_tensors() -> FakeTensorMode:
    """Return the mode in which tensors have shapes and no data; tensors with data are allowed."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def join_fake_group(rank: int, processes: int) -> None:
    """Join a fake process group in which every collective succeeds at once.

    What DTensor remembers of a rank of an earlier group holds that one's meshes, which are equal to those of this one.
    """
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
    dist.init_process_group("fake", rank=rank, world_size=processes, store=FakeStore())


def _skip_negotiation(
    _: torch_schedules._PipelineSchedule, stages: Sequence[Any], has_backward: bool, p2p_done: bool
) -> None:
    """Replace the negotiation of shapes between stages."""
    from torch.distributed.pipelining._utils import InferenceMode  # 2.11, without it, traces all but pipelines

    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC


@contextmanager
def skip_pipeline_stage_communication() -> Iterator[None]:
    """Let a pipeline's stage run alone, without communication with neighbors."""
    with (
        patch.object(torch_schedules._PipelineSchedule, "_warmup_p2p", _skip_negotiation),
        patch.object(torch_schedules, "_batch_p2p", lambda *_, **__: []),
    ):
        yield


@contextmanager
def exclude_shape_propagation_memory() -> Iterator[None]:
    """Do not count the full tensors on which DTensor computes result shapes, because no step holds them."""
    work_out = ShardingPropagator._propagate_tensor_meta_non_cached

    def propagate_shapes_without_counting(self: ShardingPropagator, *given: Any) -> Any:
        with _disable_current_modes():
            return work_out(self, *given)

    with patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", propagate_shapes_without_counting):
        yield
