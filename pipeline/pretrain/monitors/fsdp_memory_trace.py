"""Trace the memory of a training step with FSDP: model, strategy and mesh run on tensors that hold no data.

It runs as a process of its own, because a process can join one group only, and plays one rank of any number. It reads a
`TraceRequest` from the standard input and writes a `PeakMemory` to the standard output. PyTorch's tracker counts the
live tensors.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from enum import Enum
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.model import loss, mixture_of_experts
from pipeline.plan.settings import TrainingPlan
from pipeline.plan.training_cost_formulas import layers_per_pipeline_rank
from pipeline.pretrain.monitors.memory_estimate import PeakMemory, TraceRequest
from pipeline.pretrain.monitors.torch_tracing_private import (
    TOTAL_KEY,
    FakeTensorMode,
    FSDPMemTracker,
    FSDPRefType,
    exclude_shape_propagation_memory,
    fake_tensors,
    join_fake_group,
    skip_pipeline_stage_communication,
)
from pipeline.pretrain.parallel import expert_parallel, process_layout
from pipeline.pretrain.parallel.backend import Batch
from pipeline.pretrain.parallel.fsdp import FsdpBackend
from pipeline.pretrain.settings import SegmentSettings

CPU = torch.device("cpu")
FEW_LAYERS = 6, 7
"""Layers of the two traces that a deeper model's memory is extrapolated from: three blocks at each end are affected by
what comes before and after the blocks, and in the second trace one is not."""
# Compiled kernels cannot be traced, and hold no more memory than the ones that they replace.
UNTRACED_OPTIONS = {"compile": False, "float8": False, "async_tensor_parallel": False}


class _Moment(NamedTuple):
    """The computing part of the model and its pass."""

    micro_batch: int
    direction: str
    after: str
    """The part that computes, or between two parts the one before, such as `blocks.3.attention`."""
    is_between: bool

    def __str__(self) -> str:
        return f"{'between blocks' if self.is_between else self.after}, {self.direction}"

    def number_block_from_nearer_end(self, layers: int) -> _Moment | None:
        """Return the moment with its block counted from the nearer end, from the last one on as -1, -2, -3.

        A block in the middle has no name of its own, as its memory is between that of the blocks at its ends.
        """
        index = self._block
        if index is None or index < (near := FEW_LAYERS[0] // 2):
            return self
        return self._in_block(index - layers) if index >= layers - near else None

    def with_block_from_start(self, layers: int) -> _Moment:
        """Return the moment with its block counted from the first one."""
        index = self._block
        return self._in_block(index % layers) if index is not None else self

    @property
    def _block(self) -> int | None:
        name, _, rest = self.after.partition(".")
        return int(rest.partition(".")[0]) if name == "blocks" and rest else None

    def _in_block(self, index: int) -> _Moment:
        _, _, inside = self.after.removeprefix("blocks.").partition(".")
        return self._replace(after=f"blocks.{index}.{inside}".removesuffix("."))


_Held = dict[Any, int]
"""Bytes by the tracker's kinds, with their sum as `TOTAL_KEY`."""


class _Loss(Enum):
    """A kind of memory in addition to the tracker's."""

    LOSS = "Loss"


class DatalessStart:
    """Replaces the `SegmentStart` of a training whose tensors hold no data."""

    optimizer_step = 0

    def load(self, pieces: Sequence[object]) -> None:
        """Do nothing."""


class _Backend(FsdpBackend):
    def __init__(self, settings: SegmentSettings, vocabulary_size: int, fake: FakeTensorMode) -> None:
        self.fake = fake
        super().__init__(settings, vocabulary_size, DatalessStart(), CPU)  # type: ignore[arg-type]

    def _allocate(self, optimizer_step: int) -> None:
        with self.fake:
            super()._allocate(optimizer_step)

    def batches(self) -> list[Batch]:
        """Return enough micro-batches for memory to stop growing.

        A pipeline fills before its first backward pass, which interleaving may delay to the second round (Narayanan et
        al. 2021, section 2.2).
        """
        training, sizes = self.training, self.layout
        enough = sizes.pipeline + (1 if training.mesh.interleaving == 1 else sizes.pipeline)
        number = min(training.batch_size // sizes.data // training.micro_batch_size, enough)
        shape = training.micro_batch_size, training.sequence_length
        packed = training.sampling.mask_documents
        zeros = [torch.zeros(shape, dtype=torch.long) for _ in range(2)]
        rows = torch.arange(0, zeros[0].numel() + 1, training.sequence_length, dtype=torch.int32)
        return [Batch(zeros[0], zeros[1], rows if packed else None) for _ in range(number)]


class _Tracker(FSDPMemTracker):  # type: ignore[no-untyped-call]
    """PyTorch's tracker, which also separates the loss, and records the computing module at the peak."""

    def __init__(self, backend: _Backend) -> None:
        super().__init__(backend.model, backend.optimizer)
        self._ref_class: Any = [*FSDPRefType, _Loss.LOSS]
        self.peaks: dict[_Moment, _Held] = {}
        self.micro_batch, self._after = 0, ""

    def _fsdp_state_post_forward(self, fsdp_mod: Any, orig_fsdp_state_post_fw: Any) -> Any:
        """Return the hook of a module: of those that share one group only the last ends its forward pass.

        PyTorch's tracker ends it with each. The group would then reduce the gradients of each on its own, and add sums
        of different sizes where replicas are summed after several micro-batches.
        """
        hook = super()._fsdp_state_post_forward(fsdp_mod, orig_fsdp_state_post_fw)
        return hook if fsdp_mod is fsdp_mod._get_fsdp_state()._modules[-1] else lambda *_: None

    def _fsdp_param_group_post_backward(self, fsdp_mod: Any, orig_fsdp_param_group_post_backward: Any) -> Any:
        """Return the hook, which also counts sums that wait for those of other replicas as gradients."""
        hook = super()._fsdp_param_group_post_backward(fsdp_mod, orig_fsdp_param_group_post_backward)

        def track_partially_reduced_gradients(*given: Any) -> None:
            hook(*given)
            group = fsdp_mod._get_fsdp_state()._fsdp_param_group
            if (waiting := group._partial_reduce_output) is not None:
                self._update_and_maybe_create_winfos(waiting, FSDPRefType.SHARDED_GRAD, update_existing=True)

        return track_partially_reduced_gradients

    def _track(self, reftype: Any, tensor: Tensor) -> None:
        is_computed = reftype in (FSDPRefType.ACT, FSDPRefType.TEMP)
        kind: Any = _Loss.LOSS if is_computed and self._innermost() == "output" else reftype
        super()._track(kind, tensor)

    def _innermost(self) -> str:
        """Return the computing part of the model, such as `blocks.3.attention` or `output`; empty between them."""
        names = [
            name.partition(".")[2].removeprefix("stages").removeprefix(".")  # a stage as a pipeline sees it
            for name in self._mod_tracker.parents
            if name != "Global"
        ]
        return max(names, key=lambda name: (len(name), name), default="")

    def _update_peak_stats(self, peak_state: Any) -> None:
        """Keep the peak of each moment; PyTorch's tracker instead updates the peak of every module."""
        held, part = self._curr_mem_snap.get(CPU, {}), self._innermost()
        self._after = part or self._after
        direction = "backward" if self._mod_tracker.is_bw else "forward"
        moment = _Moment(self.micro_batch, direction, self._after, not part)
        if held.get(TOTAL_KEY, 0) > self.peaks.get(moment, {}).get(TOTAL_KEY, 0):
            self.peaks[moment] = dict(held)


class _RmsNorm(torch.autograd.Function):
    """A norm that keeps what a GPU's kernel keeps: input, weight, and a number per position. A CPU's keeps more."""

    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, weight_D: Tensor) -> Tensor:
        ctx.save_for_backward(x_BTD, weight_D, x_BTD[..., :1].float())
        return torch.empty_like(x_BTD)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor]:
        x_BTD, weight_D, _ = ctx.saved_tensors
        return torch.empty_like(x_BTD), torch.empty_like(weight_D)


class _GroupedProduct(torch.autograd.Function):
    """A grouped product for groups of unknown size; it keeps rows and matrices."""

    @staticmethod
    def forward(ctx: Any, x_RX: Tensor, weight_NYX: Tensor) -> Tensor:
        ctx.save_for_backward(x_RX, weight_NYX)
        return x_RX.new_empty(len(x_RX), weight_NYX.shape[1])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor]:
        x_RX, weight_NYX = ctx.saved_tensors
        return torch.empty_like(x_RX), torch.empty_like(weight_NYX)


@contextmanager
def patch_expert_dispatch() -> Iterator[None]:
    """Let experts compute without data on visited experts; all processes have equally many rows."""

    def exchange_with_equal_counts(compute: Any, x_RD: Tensor, visits_N: Tensor, *, group: dist.ProcessGroup) -> Tensor:
        equal = [len(x_RD) // group.size()] * group.size()
        equal[0] += len(x_RD) - sum(equal)
        numbers = visits_N.view(group.size(), -1), equal, equal
        with patch.object(expert_parallel, "exchange_row_counts", lambda *_: numbers):
            return exchange(compute, x_RD, visits_N, group=group)

    exchange = expert_parallel.dispatch_and_combine
    product: Any = _GroupedProduct.apply
    with (
        patch.object(mixture_of_experts, "grouped_matmul", lambda x_RX, weight_NYX, _: product(x_RX, weight_NYX)),
        patch.object(expert_parallel, "dispatch_and_combine", exchange_with_equal_counts),
    ):
        yield


@contextmanager
def emulate_gpu_kernels() -> Iterator[None]:
    """Replace kernels by equivalents of a GPU's, which add a product to a sum without a copy."""
    kernel: Any = _RmsNorm.apply
    norm = patch.object(nn.RMSNorm, "forward", lambda module, x_BTD: kernel(x_BTD, module.weight))
    with norm, patch.object(loss, "_add_product", lambda *_: None):
        yield


def make_segment_settings(request: TraceRequest, **changes: bool) -> SegmentSettings:
    """Return a segment with all steps of the training and changed options."""
    training = request.training.model_copy(update=changes)
    return SegmentSettings.model_construct(
        architecture=request.architecture, training=training, seed=0, first_step=0, last_step=training.steps
    )


def trace_stage(request: TraceRequest, stage: int, rank: int) -> PeakMemory:
    """Return the peak memory of a process of one pipeline stage; the process must have joined no group.

    Without a pipeline two traces of a few layers, which have each kind of attention, suffice for many: what is held in
    a moment at either end of the blocks grows by the same with each layer, and what is held in a block in the middle is
    between these.
    """
    layers, windows = request.architecture.layers, request.architecture.windows()
    has_all_masks = {*windows[: FEW_LAYERS[0]]} == {*windows}  # each kind of attention keeps one
    if request.training.mesh.pipeline > 1 or layers <= sum(FEW_LAYERS) or not has_all_masks:
        return _find_peak(_trace_moments(request, rank), stage)
    fewer, more = (_trace_few_layers(request, rank, few) for few in FEW_LAYERS)
    steps = (layers - FEW_LAYERS[1]) // (FEW_LAYERS[1] - FEW_LAYERS[0])
    return _find_peak(
        {
            moment.with_block_from_start(layers): {
                kind: held + steps * (held - fewer[moment].get(kind, 0)) for kind, held in more[moment].items()
            }
            for moment in more
        },
        stage,
    )


def _trace_few_layers(request: TraceRequest, rank: int, layers: int) -> dict[_Moment, _Held]:
    shape = request.architecture.model_copy(update={"layers": layers})
    traced = _trace_moments(request.model_copy(update={"architecture": shape}), rank)
    return {near: held for moment, held in traced.items() if (near := moment.number_block_from_nearer_end(layers))}


def _trace_moments(request: TraceRequest, rank: int) -> dict[_Moment, _Held]:
    """Return what a process holds at most in each moment of a step."""
    join_fake_group(rank, request.processes)
    try:
        fake = fake_tensors()
        with patch_expert_dispatch():
            backend = _Backend(make_segment_settings(request, **UNTRACED_OPTIONS), request.vocabulary_size, fake)
        with emulate_gpu_kernels() if request.device == "gpu" else nullcontext(), patch_expert_dispatch(), fake:
            tracker, batches = _Tracker(backend), backend.batches()
            tracker.track_inputs(tuple(batches))
            alone = skip_pipeline_stage_communication() if backend.pipeline else nullcontext()
            with tracker, exclude_shape_propagation_memory(), alone:
                # The tracker's hooks need to know that the model starts again; in a pipeline not all of it does.
                def start_next_micro_batch(model: nn.Module, _: object) -> None:
                    tracker.memory_tracking.pop(model, None)  # type: ignore[no-untyped-call]
                    tracker.micro_batch += 1

                backend.model.register_forward_pre_hook(start_next_micro_batch, prepend=True)
                backend.accumulate_gradients(batches)
        return tracker.peaks
    finally:
        dist.destroy_process_group()


def _find_peak(peaks: dict[_Moment, _Held], stage: int) -> PeakMemory:
    """Return the moment with most memory, the first of equal ones."""
    moment = max(peaks, key=lambda one: peaks[one][TOTAL_KEY])
    kind, held = FSDPRefType, peaks[moment]

    def sum_bytes_of_kinds(*kinds: Any) -> int:
        return sum(held.get(one, 0) for one in kinds)

    return PeakMemory(
        peak_bytes=held[TOTAL_KEY],
        parameters_bytes=sum_bytes_of_kinds(kind.SHARDED_PARAM),
        optimizer_bytes=sum_bytes_of_kinds(kind.OPT),
        gradients_bytes=sum_bytes_of_kinds(kind.SHARDED_GRAD, kind.UNSHARDED_GRAD),
        gathered_bytes=sum_bytes_of_kinds(kind.UNSHARDED_PARAM),
        communication_bytes=sum_bytes_of_kinds(kind.ALL_GATHER, kind.REDUCE_SCATTER),
        loss_bytes=sum_bytes_of_kinds(_Loss.LOSS),
        activations_bytes=sum_bytes_of_kinds(kind.ACT, kind.TEMP, kind.INP, kind.BUFFER),
        peak_in=str(moment),
        stage=stage,
    )


def trace_peak(request: TraceRequest) -> PeakMemory:
    """Trace the first stage, the stage with most layers and the last, and return the highest peak."""
    sizes = process_layout.make_layout(request.training, request.processes, request.per_node)
    per_stage = request.processes // sizes.pipeline
    training = TrainingPlan.model_validate(request.training)
    layers = layers_per_pipeline_rank(request.architecture, request.vocabulary_size, training)
    stages = sorted({0, layers.index(max(layers)), sizes.pipeline - 1})
    peaks = [trace_stage(request, stage, stage * per_stage) for stage in stages]
    return max(peaks, key=lambda memory: memory.peak_bytes)


def main() -> int:
    """Print the peaks of the first request and of the others, up to one that fits the limit of the command line."""
    warnings.simplefilter("ignore")
    limit_bytes = int(sys.argv[1])
    for number, line in enumerate(sys.stdin.read().splitlines()):
        peak = trace_peak(TraceRequest.model_validate_json(line))
        print(peak.model_dump_json())
        if number and peak.peak_bytes <= limit_bytes:
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
