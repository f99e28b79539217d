"""What to change when a device's memory does not suffice, by the plan's formulas."""

from __future__ import annotations

import itertools
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch

from pipeline.errors import InputError
from pipeline.model.recompute import Recomputation
from pipeline.model.settings import Architecture
from pipeline.model.size import parameter_count
from pipeline.plan import formulas
from pipeline.plan.settings import Strategy
from pipeline.pretrain import mesh
from pipeline.pretrain.settings import STRATEGIES, SegmentSettings, Training
from pipeline.tokens.reader import TokenReader

USABLE = 0.9
"""Share of the memory that the estimate may take: buffers, gathered blocks and fragmentation come on top."""
GIBIBYTE = 2**30


def is_exceeded(error: BaseException) -> bool:
    """Return whether an error says that a device, or the main memory of a CPU, has no room for a tensor."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate" in str(error)


def estimate_bytes(
    training: Training, architecture: Architecture, vocabulary_size: int, sizes: mesh.Layout, micro_batch_size: int
) -> float:
    """Return the bytes of state and activations of one process; selective recomputation counts as none.

    A pipeline's stage keeps fewer layers of as many micro-batches, which comes to the same.
    """
    sharing = sizes.replicate * sizes.shard
    state = formulas.model_state_bytes(
        parameter_count(architecture, vocabulary_size) / (sizes.tensor * sizes.pipeline),
        strategy=training.strategy,
        precision=training.precision,
        devices=sharing,
        node=sizes.shard,
    )
    tokens = micro_batch_size * training.sequence_length // (sizes.context * sizes.tensor)
    activations = formulas.activation_bytes(
        architecture,
        vocabulary_size,
        tokens=tokens,
        precision=training.precision,
        recomputation=training.recomputation == "full",
        tensor=sizes.tensor,
    )
    return state + activations


def advice(settings: SegmentSettings, vocabulary_size: int, processes: int, per_node: int, capacity_bytes: int) -> str:
    """Return the sentence for a process that ran out of memory: what is estimated to fit, the least change first."""
    training, now = settings.training, settings.training.micro_batch_size

    def needed(strategy: Strategy, recomputation: Recomputation, micro_batch_size: int) -> float:
        changes = {"strategy": strategy, "recomputation": recomputation}
        other = training.model_copy(update={**changes, "mesh": training.mesh.model_copy(update={"shard": None})})
        sizes = mesh.layout(other, processes, per_node)
        return estimate_bytes(other, settings.architecture, vocabulary_size, sizes, micro_batch_size)

    share = training.batch_size // mesh.layout(training, processes, per_node).data
    sizes = [size for size in range(now, 0, -1) if share % size == 0]
    others = [name for name in STRATEGIES[training.backend] if name != training.strategy]
    kept = training.recomputation
    possible: list[Recomputation] = [kept, "full"] if training.backend == "fsdp" and kept != "full" else [kept]
    limit = min(capacity_bytes * USABLE, needed(training.strategy, kept, now) * (1 - 1e-9))
    problem = (
        f"out of memory, {capacity_bytes / GIBIBYTE:.3g} GiB for one process, with training.strategy "
        f"{training.strategy} and micro_batch_size {now}"
    )
    for strategy, again, size in itertools.product((training.strategy, *others), possible, sizes):
        if needed(strategy, again, size) <= limit:
            also = "" if again == kept else f", recomputation {again}"
            return (
                f"{problem}: strategy {strategy}{also} with micro_batch_size {size} should fit (an estimate of "
                f"{needed(strategy, again, size) / GIBIBYTE:.3g} GiB); set these"
            )
    return f"{problem}: no strategy of {training.backend} fits at these numbers, so use more or larger devices"


def capacity_bytes(device: torch.device, per_node: int) -> int:
    """Return the memory that one process has: its device's, or its share of the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    share = int(psutil.virtual_memory().total // per_node)
    return share if allowed == resource.RLIM_INFINITY else min(share, allowed)


@contextmanager
def explained(arguments: dict[str, Any]) -> Iterator[None]:
    """Turn a lack of memory, in a worker with these arguments, into an InputError that says what would fit."""
    try:
        yield
    except RuntimeError as error:
        if not is_exceeded(error):
            raise
        settings = SegmentSettings.model_validate(arguments["settings"])
        on_gpu = isinstance(error, torch.OutOfMemoryError)
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        per_node = int(os.environ["LOCAL_WORLD_SIZE"])
        vocabulary_size = TokenReader(Path(arguments["paths"]["index"]), "train").vocabulary_size
        capacity = capacity_bytes(device, per_node)
        sentence = advice(settings, vocabulary_size, arguments["world_size"], per_node, capacity)
        raise InputError(sentence) from error
