"""Estimate the memory of a process by the plan's formulas or by tracing, and advise settings that fit.

The estimates need no torch, because `plan` and the start of a run use them.
"""

from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil
from pydantic import Field

from pipeline.core.errors import InputError, OutOfMemory
from pipeline.core.settings import Settings
from pipeline.model.settings import Architecture
from pipeline.plan import training_cost_formulas
from pipeline.plan.settings import TrainingPlan
from pipeline.plan.sharding_strategy_definitions import STRATEGIES, list_backend_strategies
from pipeline.plan.training_cost_formulas import parameters_per_device
from pipeline.pretrain.parallel import process_layout
from pipeline.pretrain.parallel.process_layout import ProcessLayout, make_layout
from pipeline.pretrain.settings import SegmentSettings, Training

if TYPE_CHECKING:
    import torch

USABLE_SHARE = 0.9
"""Share of the memory that an estimate may take; the rest is for buffers and fragmentation."""
GIBIBYTE = 2**30
NOTHING_FITS = "no strategy of {backend} fits, so use more or larger devices"


def state_bytes(training: Training, architecture: Architecture, vocabulary_size: int, sizes: ProcessLayout) -> float:
    """Return the bytes of weights, gradients and optimizer state of one process."""
    return training_cost_formulas.model_state_bytes(
        parameters_per_device(architecture, vocabulary_size, TrainingPlan.model_validate(training)),
        strategy=training.strategy,
        precision=training.precision,
        devices=sizes.replicate * sizes.shard,
        node=sizes.shard,
    )


def estimate_bytes(
    training: Training, architecture: Architecture, vocabulary_size: int, sizes: ProcessLayout, micro_batch_size: int
) -> float:
    """Return the bytes of state, gathered weights and activations; selective recomputation counts as none."""
    changed = training.model_copy(update={"micro_batch_size": micro_batch_size})
    return sum(
        training_cost_formulas.device_bytes(
            architecture,
            vocabulary_size,
            TrainingPlan.model_validate(changed),
            devices=sizes.replicate * sizes.shard,
            node=sizes.shard,
            recomputation=training.recomputation == "full",
        )
    )


def list_proposals(
    training: Training,
    architecture: Architecture,
    vocabulary_size: int,
    processes: int,
    per_node: int,
    limit_bytes: float,
) -> Iterator[tuple[Training, float]]:
    """Yield settings that are estimated to fit, with their bytes, the smallest change first."""
    now, kept = training.micro_batch_size, training.recomputation

    def needed(other: Training) -> float:
        return estimate_bytes(
            other, architecture, vocabulary_size, make_layout(other, processes, per_node), other.micro_batch_size
        )

    share = training.batch_size // make_layout(training, processes, per_node).data
    sizes = [size for size in range(now, 0, -1) if share % size == 0]
    others = [name for name in list_backend_strategies(training.backend) if name != training.strategy]
    possible = [kept, "full"] if kept != "full" else [kept]
    mesh = training.mesh.model_copy(update={"shard": None})
    limit = min(limit_bytes, needed(training.model_copy(update={"mesh": mesh})) * (1 - 1e-9))
    for strategy, recomputation, size in itertools.product((training.strategy, *others), possible, sizes):
        changes = {"strategy": strategy, "recomputation": recomputation, "micro_batch_size": size, "mesh": mesh}
        other = training.model_copy(update=changes)
        if (bytes_of_it := needed(other)) <= limit:
            yield other, bytes_of_it


def format_proposal(training: Training, other: Training) -> str:
    """Format the settings of a proposal; recomputation only where it changes."""
    also = "" if other.recomputation == training.recomputation else f", recomputation {other.recomputation}"
    return f"strategy {other.strategy}{also} with micro_batch_size {other.micro_batch_size}"


def advise_settings(
    training: Training,
    architecture: Architecture,
    vocabulary_size: int,
    processes: int,
    per_node: int,
    capacity_bytes: int,
) -> str:
    """Return a sentence with the smallest change of settings that is estimated to fit."""
    model = training, architecture, vocabulary_size, processes, per_node
    for other, needed in list_proposals(*model, capacity_bytes * USABLE_SHARE):
        return f"{format_proposal(training, other)} should fit (an estimate of {needed / GIBIBYTE:.3g} GiB); set these"
    return NOTHING_FITS.format(backend=training.backend)


TRACERS = {
    "fsdp": "pipeline.pretrain.monitors.fsdp_memory_trace",
    "deepspeed": "pipeline.pretrain.monitors.deepspeed_memory_trace",
}
TRACE_VARIABLES = {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
ROOT = Path(__file__).parents[3]


class TraceRequest(Settings):
    """A training on its processes, with the kernels of a CPU or of a GPU."""

    training: Training
    architecture: Architecture
    vocabulary_size: int = Field(ge=1)
    processes: int = Field(ge=1)
    per_node: int = Field(ge=1)
    device: Literal["cpu", "gpu"] = "gpu"


class PeakMemory(Settings):
    """The memory of one process at its peak; the parts add up to the peak."""

    peak_bytes: int
    parameters_bytes: int = Field(description="the process's shard, float32")
    optimizer_bytes: int
    gradients_bytes: int
    gathered_bytes: int = Field(description="gathered parameters while a block computes")
    communication_bytes: int = Field(description="buffers of gathers and reductions")
    loss_bytes: int = Field(description="logits and their gradients")
    activations_bytes: int = Field(description="all other tensors of forward and backward")
    peak_in: str = Field(description="the computing part of the model and its pass")
    stage: int = Field(description="the pipeline rank with the highest peak, counted from 0")


def trace_memory(request: TraceRequest) -> PeakMemory:
    """Trace one step in a subprocess and return the peak of the pipeline rank with the highest one.

    It excludes CUDA's context and NCCL's buffers, some GB, and rounding losses of the allocator. Compiled and float8
    blocks are traced as plain ones.
    """
    return trace_until_fit([request], 0)[0]


def trace_until_fit(requests: Sequence[TraceRequest], limit_bytes: float) -> list[PeakMemory]:
    """Trace a step of each training in one subprocess, the first one and others up to one that fits.

    All have the backend of the first one; with DeepSpeed there is only one.
    """
    request, *_ = requests
    training = request.training
    strategy = STRATEGIES[training.strategy]
    if strategy.optimizer_on_disk or (request.device == "gpu" and strategy.offloads_optimizer):
        raise InputError(f"strategy {training.strategy} cannot be traced: its memory is known by formula only")
    process_layout.check_mesh_divides_model(
        training, request.architecture, request.vocabulary_size, request.processes, request.per_node
    )
    done = subprocess.run(
        [sys.executable, "-m", TRACERS[training.backend], str(round(limit_bytes))],
        input="\n".join(one.model_dump_json() for one in requests),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **TRACE_VARIABLES, "LOCAL_WORLD_SIZE": str(request.per_node)},
    )
    if done.returncode:
        errors = done.stderr.strip().splitlines()
        raise InputError(f"the step could not be traced: {errors[-1] if errors else f'exit {done.returncode}'}")
    lines = done.stdout.splitlines()
    return [PeakMemory.model_validate_json(line) for line in lines if line.startswith('{"peak_bytes"')]


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is a lack of memory, on a device or in main memory."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate" in str(error)


def format_advice(
    settings: SegmentSettings, vocabulary_size: int, processes: int, per_node: int, capacity_bytes: int
) -> str:
    """Format the error of a process that ran out of memory, with the smallest change that is estimated to fit."""
    training = settings.training
    would_fit = advise_settings(training, settings.architecture, vocabulary_size, processes, per_node, capacity_bytes)
    return (
        f"out of memory, {capacity_bytes / GIBIBYTE:.3g} GiB for one process, with training.strategy "
        f"{training.strategy} and micro_batch_size {training.micro_batch_size}: {would_fit}"
    )


def measure_capacity(device: torch.device, per_node: int) -> int:
    """Return the memory of one process: of its device, or its share of the machine."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    share = int(psutil.virtual_memory().total // per_node)
    return share if allowed == resource.RLIM_INFINITY else min(share, allowed)


@contextmanager
def explain_out_of_memory(settings: SegmentSettings, index: Path, processes: int) -> Iterator[None]:
    """Turn a lack of memory into an OutOfMemory that names settings that would fit."""
    import torch

    from pipeline.tokens.token_reader import TokenReader

    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        on_gpu = isinstance(error, torch.OutOfMemoryError)
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        per_node = int(os.environ["LOCAL_WORLD_SIZE"])
        vocabulary_size = TokenReader(index, "train").vocabulary_size
        capacity = measure_capacity(device, per_node)
        raise OutOfMemory(format_advice(settings, vocabulary_size, processes, per_node, capacity)) from error
