"""Load the batch of the next step while the current one computes, and split batches into micro-batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, device, from_numpy

from pipeline.pretrain.parallel.backend import Batch
from pipeline.pretrain.settings import Training
from pipeline.tokens.data_order import Integers
from pipeline.tokens.sampler import document_boundaries


class PrefetchingLoader:
    """Loads the batches of one process one step ahead; call `discard_prefetched` when `read` changes."""

    def __init__(self, read: Callable[[int], tuple[NDArray[Any], ...]], target: device) -> None:
        self._read, self._target = read, target
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        self._ahead: dict[int, Future[tuple[Tensor, ...]]] = {}
        self.stall_seconds = 0.0
        """Wait of the last `get`."""

    def _load(self, step: int) -> tuple[Tensor, ...]:
        tensors = tuple(from_numpy(array) for array in self._read(step))
        # Pinned memory is copied to the device while it computes.
        return tuple(tensor.pin_memory() for tensor in tensors) if self._target.type == "cuda" else tensors

    def get(self, step: int) -> tuple[Tensor, ...]:
        """Return the tensors of a step on the device and start to read the next step."""
        began = time.perf_counter()
        future = self._ahead.pop(step, None) or self._pool.submit(self._load, step)
        tensors = future.result()
        self.stall_seconds = time.perf_counter() - began
        self.discard_prefetched()
        self._ahead[step + 1] = self._pool.submit(self._load, step + 1)
        return tuple(tensor.to(self._target, non_blocking=True) for tensor in tensors)

    def discard_prefetched(self) -> None:
        """Discard the batches that were read ahead."""
        for future in self._ahead.values():
            future.cancel()
        self._ahead.clear()

    def close(self) -> None:
        self.discard_prefetched()
        self._pool.shutdown()


# Micro-batches of a step.


def find_document_offsets(
    input_BT: Integers, training: Training, begin_of_text_id: int, length: int
) -> list[NDArray[np.int32]]:
    """Return the document offsets of each micro-batch (see `Decoder.forward`); none without document masks."""
    if not training.sampling.mask_documents:
        return []
    firsts = range(0, len(input_BT), size := training.micro_batch_size)
    parts = [input_BT[first : first + size].reshape(-1, length) for first in firsts]
    return [document_boundaries(part_BT, begin_of_text_id) for part_BT in parts]


def split_into_micro_batches(
    input_BT: Tensor, target_BT: Tensor, documents: Sequence[Tensor], training: Training, length: int
) -> list[Batch]:
    """Split a batch of (B, T) tokens and its `find_documents` into micro-batches; rows are cut to `length`."""
    cut = [x_BT.reshape(-1, length) for x_BT in (input_BT, target_BT)]
    rows = training.micro_batch_size * len(cut[0]) // len(input_BT)
    inputs, targets = (torch.split(x_BT, rows) for x_BT in cut)
    limits: Sequence[Tensor | None] = documents or [None] * len(inputs)
    return [Batch(*one) for one in zip(inputs, targets, limits, strict=True)]


def make_batch(
    input_BT: Integers, target_BT: Integers, training: Training, begin_of_text_id: int, device: torch.device
) -> Batch:
    """Return full rows as one batch on a device, after their synchronous copy.

    With document masks it has the offsets of each row by itself, (B, documents + 1), the last one repeated.
    """
    arrays: list[NDArray[Any]] = [input_BT, target_BT]
    if training.sampling.mask_documents:
        rows = [document_boundaries(row_T[None], begin_of_text_id) for row_T in input_BT]
        most = max(map(len, rows))
        arrays.append(np.stack([np.pad(offsets, (0, most - len(offsets)), mode="edge") for offsets in rows]))
    return Batch(*(torch.from_numpy(array).to(device) for array in arrays))
