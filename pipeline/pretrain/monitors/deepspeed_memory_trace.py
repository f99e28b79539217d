"""Trace the memory of a training step with DeepSpeed: its engine runs on tensors that hold no data.

It runs as a process of its own, like `fsdp_memory_trace`. Memory is counted from the first weight on, because starting
the engine needs memory too.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.pretrain.monitors.fsdp_memory_trace import (
    CPU,
    DatalessStart,
    emulate_gpu_kernels,
    make_segment_settings,
    patch_expert_dispatch,
)
from pipeline.pretrain.monitors.memory_estimate import PeakMemory, TraceRequest
from pipeline.pretrain.monitors.torch_tracing_private import (
    ITEM,
    REDUCE_SCATTER,
    TorchDispatchMode,
    fake_tensors,
    join_fake_group,
    tree_leaves,
)
from pipeline.pretrain.parallel.backend import Batch

MICRO_BATCHES = 3
"""Maximum micro-batches of a step: the third starts with the memory that the first two leave."""
TRACED_STEPS = 2
"""Stage 3 prefetches from the second step on, once it knows the order: zero/partitioned_param_coordinator.py."""
ENGINE_MODULE = "deepspeed.runtime.engine"
# Functions of DeepSpeed 0.19.8 that compute or gather; all others of DeepSpeed communicate.
PASSES = "backward", "forward"
COMPUTE_FUNCTIONS = {
    (ENGINE_MODULE, "backward"),
    (ENGINE_MODULE, "forward"),
    ("deepspeed.utils.nvtx", "wrapped_fn"),
} | {("deepspeed.runtime.zero.linear", name) for name in ("zero3_linear_wrap", *PASSES)}
GATHER_MODULES = ("deepspeed.runtime.zero.partition_parameters", "deepspeed.runtime.zero.partitioned_param_coordinator")


class _AllocationTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the live bytes of each kind, and keeps their peak."""

    def __init__(self, gloo: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gloo, self.starts = gloo, True
        self.held: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.peak_bytes, self.peak_in = 0, ""
        self.alive: dict[int, list[Any]] = {}  # by storage: a weak reference and the kind

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        if function is ITEM:
            known = getattr(arguments[0], "constant", None)
            return arguments[0].dtype.is_floating_point * 0.0 if known is None else known.item()
        result = function(*arguments, **(named or {}))
        # Gloo reduces a full copy before it keeps a share (ProcessGroupGloo::_reduce_scatter_base).
        copies = [torch.empty_like(arguments[1])] if self.gloo and function is REDUCE_SCATTER else []
        for tensor in (*tree_leaves(result), *copies):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                self._count_storage(tensor)
        return result

    def _count_storage(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, number = id(storage), storage.nbytes()
        if key in self.alive:
            return

        def subtract_freed_bytes(_: object) -> None:
            self.held[self.alive.pop(key)[1]] -= number

        kind, place = self._classify_allocation()
        self.alive[key] = [weakref.ref(storage, subtract_freed_bytes), kind]
        self.held[kind] += number
        if (total := self.held.total()) > self.peak_bytes:
            self.peak_bytes, self.peak_in, self.peak = total, place, self.held.copy()

    def _classify_allocation(self) -> tuple[str, str]:
        """Return the kind of a new tensor, and its place: function, module and phase of the engine."""
        frames = list(_list_call_frames())
        calls = {name for module, name in frames if module == ENGINE_MODULE}
        doing = "start" if self.starts else next((one for one in PASSES if one in calls), "step")
        module, name = next((one for one in frames if one not in COMPUTE_FUNCTIONS), ("", ""))
        if self.starts:
            kind = "parameters"
        elif module in GATHER_MODULES:
            kind = "gathered"
        elif module.startswith("deepspeed"):
            kind = "communication"
        else:
            kind = "loss" if module == "pipeline.model.loss" else "activations"
        return kind, f"{name} of {module.rpartition('.')[2]}, {doing}"

    def reclassify(self, kind: str, tensors: Iterable[Tensor | None]) -> None:
        """Count live tensors as another kind from now on."""
        for tensor in tensors:
            if tensor is not None and (entry := self.alive.get(id(tensor.untyped_storage()))):
                number = tensor.untyped_storage().nbytes()
                self.held[entry[1]] -= number
                self.held[kind] += number
                entry[1] = kind

    def peak_memory(self) -> PeakMemory:
        kinds = [name for name in PeakMemory.model_fields if name.endswith("_bytes") and name != "peak_bytes"]
        parts = {name: self.peak[name.removesuffix("_bytes")] for name in kinds}
        return PeakMemory(peak_bytes=self.peak_bytes, peak_in=self.peak_in, stage=0, **parts)


def _list_call_frames() -> Iterator[tuple[str, str]]:
    """Yield module and function of the callers, innermost first: DeepSpeed's and the pipeline's other modules."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if module != __name__ and module.startswith(("deepspeed", "pipeline.")):
            yield module, frame.f_code.co_name
        frame = frame.f_back


def _apply(module: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    """Change a module's tensors in place, as `nn.Module._apply` does only for tensors with data."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.data = change(parameter.data)
        for part in module.modules():
            part._buffers.update({name: change(one) for name, one in part._buffers.items() if one is not None})
    return module


@contextmanager
def _patch_for_fake_tensors(device: str) -> Iterator[None]:
    from deepspeed.runtime.zero import utils

    with ExitStack() as patches:
        patches.enter_context(patch.object(nn.Module, "_apply", _apply))
        # Other processes say the same: there are none.
        patches.enter_context(patch.object(utils, "get_lst_from_rank0", list))
        patches.enter_context(patch.object(utils, "assert_lst_len_same_as_other_ranks", lambda ints: None))
        if device == "gpu":
            patches.enter_context(emulate_gpu_kernels())
        patches.enter_context(patch_expert_dispatch())
        patches.enter_context(fake_tensors())
        yield


def trace_engine(request: TraceRequest) -> PeakMemory:
    """Return the peak of a process that starts and takes two steps."""
    from pipeline.pretrain.parallel.deepspeed import DeepSpeedBackend  # once the processes have met

    training, settings = request.training, make_segment_settings(request)
    held = _AllocationTracker(gloo=request.device == "cpu")
    with _patch_for_fake_tensors(request.device), held:
        backend = DeepSpeedBackend(settings, request.vocabulary_size, DatalessStart(), CPU)  # type: ignore[arg-type]
        weights = [getattr(one, "ds_tensor", one) for one in backend.parameters.values()]
        states = [one for state in backend.base.state.values() for one in state.values()]
        begun = [entry[0]() for entry in held.alive.values()]
        held.reclassify("gradients", [torch.empty(0, dtype=torch.uint8).set_(one) for one in begun if one is not None])
        held.reclassify("parameters", [*weights, *backend._flat_parameters()])
        held.reclassify("optimizer", states)
        held.starts = False
        for parameter in backend.parameters.values():
            parameter.register_post_accumulate_grad_hook(lambda one: held.reclassify("gradients", [one.grad]))
        number = min(training.batch_size // backend.data_size // training.micro_batch_size, MICRO_BATCHES)
        zeros = torch.zeros(training.micro_batch_size, training.sequence_length, dtype=torch.long)
        rows = torch.arange(0, zeros.numel() + 1, training.sequence_length, dtype=torch.int32)
        batch = Batch(zeros, zeros, rows if training.sampling.mask_documents else None)
        for _ in range(TRACED_STEPS):
            backend.accumulate_gradients([batch] * number)
            backend.update(training.learning_rate, lambda norm: True)
    return held.peak_memory()


def main() -> int:
    """Trace the requested training and print its peak."""
    warnings.simplefilter("ignore")
    request = TraceRequest.model_validate_json(sys.stdin.read())
    join_fake_group(0, request.processes)
    print(trace_engine(request).model_dump_json())
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
