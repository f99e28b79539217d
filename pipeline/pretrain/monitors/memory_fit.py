"""What a process needs of memory, by the plan's formulas, and what would fit: known without torch."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.core.errors import InputError
from pipeline.core.settings import Settings
from pipeline.model.architectures import DeviceWork
from pipeline.model.settings import Architecture
from pipeline.model.size import activation_bytes
from pipeline.plan import formulas
from pipeline.plan.formulas import device_parameters, layers_under_way
from pipeline.plan.settings import TrainingPlan
from pipeline.plan.strategies import STRATEGIES, backend_strategies
from pipeline.pretrain.parallel import process_layout
from pipeline.pretrain.parallel.process_layout import ProcessLayout, layout
from pipeline.pretrain.settings import Training

USABLE = 0.9
"""Share of the memory that the estimate may take: buffers and fragmentation come on top."""
GIBIBYTE = 2**30
NOTHING_FITS = "no strategy of {backend} fits at these numbers, so use more or larger devices"


def state_bytes(training: Training, architecture: Architecture, vocabulary_size: int, sizes: ProcessLayout) -> float:
    """Return the bytes of weights, gradients and optimizer state of one process."""
    return formulas.model_state_bytes(
        device_parameters(architecture, vocabulary_size, TrainingPlan.model_validate(training)),
        strategy=training.strategy,
        precision=training.precision,
        devices=sizes.replicate * sizes.shard,
        node=sizes.shard,
    )


def estimate_bytes(
    training: Training, architecture: Architecture, vocabulary_size: int, sizes: ProcessLayout, micro_batch_size: int
) -> float:
    """Return the bytes of state, gathered weights and activations of a process, selective recomputation as none."""
    plan = TrainingPlan.model_validate(training)
    under_way = layers_under_way(architecture, vocabulary_size, plan)
    at_once = architecture.model_copy(update={"layers": under_way})
    tokens = micro_batch_size * training.sequence_length // (sizes.context * sizes.tensor)
    again = training.recomputation == "full"
    work = DeviceWork(tokens, training.precision, again, sizes.tensor, sizes.context)
    activations = activation_bytes(at_once, vocabulary_size, work)
    gathered = formulas.gathered_bytes(architecture, vocabulary_size, plan)
    scores = formulas.score_bytes(at_once, plan, tokens, recomputation=again)
    return state_bytes(training, architecture, vocabulary_size, sizes) + gathered + activations + scores


def proposals(
    training: Training,
    architecture: Architecture,
    vocabulary_size: int,
    processes: int,
    per_node: int,
    limit_bytes: float,
) -> Iterator[tuple[Training, float]]:
    """Yield settings, with their bytes, that are estimated to take at most so much, the least change first."""
    now, kept = training.micro_batch_size, training.recomputation

    def needed(other: Training) -> float:
        return estimate_bytes(
            other, architecture, vocabulary_size, layout(other, processes, per_node), other.micro_batch_size
        )

    share = training.batch_size // layout(training, processes, per_node).data
    sizes = [size for size in range(now, 0, -1) if share % size == 0]
    others = [name for name in backend_strategies(training.backend) if name != training.strategy]
    possible = [kept, "full"] if kept != "full" else [kept]
    mesh = training.mesh.model_copy(update={"shard": None})
    limit = min(limit_bytes, needed(training.model_copy(update={"mesh": mesh})) * (1 - 1e-9))
    for strategy, again, size in itertools.product((training.strategy, *others), possible, sizes):
        changes = {"strategy": strategy, "recomputation": again, "micro_batch_size": size, "mesh": mesh}
        other = training.model_copy(update=changes)
        if (bytes_of_it := needed(other)) <= limit:
            yield other, bytes_of_it


def in_words(training: Training, other: Training) -> str:
    """Return the settings of a proposal; recomputation is named where it changes."""
    also = "" if other.recomputation == training.recomputation else f", recomputation {other.recomputation}"
    return f"strategy {other.strategy}{also} with micro_batch_size {other.micro_batch_size}"


def what_would_fit(
    training: Training,
    architecture: Architecture,
    vocabulary_size: int,
    processes: int,
    per_node: int,
    capacity_bytes: int,
) -> str:
    """Return what is estimated to fit, the least change first, and less than what is asked for now."""
    model = training, architecture, vocabulary_size, processes, per_node
    for other, needed in proposals(*model, capacity_bytes * USABLE):
        return f"{in_words(training, other)} should fit (an estimate of {needed / GIBIBYTE:.3g} GiB); set these"
    return NOTHING_FITS.format(backend=training.backend)


TRACERS = {"fsdp": "pipeline.pretrain.monitors.traced_step", "deepspeed": "pipeline.pretrain.monitors.traced_engine"}
FIRST_PROCESS = {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
ROOT = Path(__file__).parents[3]


class TraceRequest(Settings):
    """A training on its processes, and whether its kernels are those of a CPU or of a GPU."""

    training: Training
    architecture: Architecture
    vocabulary_size: int = Field(ge=1)
    processes: int = Field(ge=1)
    per_node: int = Field(ge=1)
    device: Literal["cpu", "gpu"] = "gpu"


class Memory(Settings):
    """What one process holds in the moment in which it holds most; the parts add up to the peak."""

    peak_bytes: int
    parameters_bytes: int = Field(description="its own share of them, float32")
    optimizer_bytes: int
    gradients_bytes: int
    gathered_bytes: int = Field(description="parameters of all that share them, while a block computes")
    communication_bytes: int = Field(description="what is being gathered or reduced")
    loss_bytes: int = Field(description="logits, and the gradients that are made with them")
    activations_bytes: int = Field(description="everything else that forward and backward hold")
    peak_in: str = Field(description="the part of the model that computes then, and in which pass")
    stage: int = Field(description="the process of the pipeline that holds most, counted from 0")


def trace(request: TraceRequest) -> Memory:
    """Return the peak of a process of the stage that holds most, by a process that traces one step.

    What is taken before a training (CUDA's context and NCCL's buffers, some GB) is not in it, nor what an allocator
    loses by rounding; a compiled or float8 block is traced as the plain one that it replaces.
    """
    training = request.training
    strategy = STRATEGIES[training.strategy]
    if strategy.optimizer_on_disk or (request.device == "gpu" and strategy.offloads_optimizer):
        raise InputError(f"the memory of strategy {training.strategy} is known by formula alone")
    process_layout.check(training, request.architecture, request.vocabulary_size, request.processes, request.per_node)
    done = subprocess.run(
        [sys.executable, "-m", TRACERS[training.backend]],
        input=request.model_dump_json(),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **FIRST_PROCESS, "LOCAL_WORLD_SIZE": str(request.per_node)},
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise InputError(f"the step could not be traced: {said[-1] if said else f'exit {done.returncode}'}")
    return Memory.model_validate_json(done.stdout.splitlines()[-1])
