"""What to change when a device's memory does not suffice, by the plan's formulas."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from pipeline.core.errors import OutOfMemory
from pipeline.pretrain.monitors.memory_fit import GIBIBYTE, what_would_fit
from pipeline.pretrain.settings import SegmentSettings
from pipeline.tokens.token_reader import TokenReader


def is_exceeded(error: BaseException) -> bool:
    """Return whether an error says that a device, or the main memory of a CPU, has no room for a tensor."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate" in str(error)


def advice(settings: SegmentSettings, vocabulary_size: int, processes: int, per_node: int, capacity_bytes: int) -> str:
    """Return the sentence for a process that ran out of memory: what is estimated to fit, the least change first."""
    training = settings.training
    would_fit = what_would_fit(training, settings.architecture, vocabulary_size, processes, per_node, capacity_bytes)
    return (
        f"out of memory, {capacity_bytes / GIBIBYTE:.3g} GiB for one process, with training.strategy "
        f"{training.strategy} and micro_batch_size {training.micro_batch_size}: {would_fit}"
    )


def capacity_bytes(device: torch.device, per_node: int) -> int:
    """Return the memory that one process has: its device's, or its share of the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    share = int(psutil.virtual_memory().total // per_node)
    return share if allowed == resource.RLIM_INFINITY else min(share, allowed)


@contextmanager
def explained(settings: SegmentSettings, index: Path, processes: int) -> Iterator[None]:
    """Turn a lack of memory, in one of so many processes, into an OutOfMemory that says what would fit."""
    try:
        yield
    except RuntimeError as error:
        if not is_exceeded(error):
            raise
        on_gpu = isinstance(error, torch.OutOfMemoryError)
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        per_node = int(os.environ["LOCAL_WORLD_SIZE"])
        vocabulary_size = TokenReader(index, "train").vocabulary_size
        capacity = capacity_bytes(device, per_node)
        raise OutOfMemory(advice(settings, vocabulary_size, processes, per_node, capacity)) from error
