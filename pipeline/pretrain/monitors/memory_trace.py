"""What a training step needs of a device's memory, by tracing it: known without a GPU and without torch in here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.core.errors import InputError
from pipeline.core.settings import Settings
from pipeline.model.settings import Architecture
from pipeline.plan.strategies import STRATEGIES
from pipeline.pretrain.parallel import process_layout
from pipeline.pretrain.settings import Training

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

    Raises:
        InputError: the processes cannot be laid out so, or state lies in main memory, not told from a GPU's,
            or on a disk.
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
