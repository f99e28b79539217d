"""Reads the batch of the next step while this one computes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray
from torch import Tensor, device, from_numpy


class Loader:
    """The batches of one process by their step, one step ahead.

    `read` returns the arrays of a step and must be a pure function of it: whoever changes what a step reads, as a
    skipped batch does, calls `forget`.
    """

    def __init__(self, read: Callable[[int], tuple[NDArray[Any], ...]], target: device) -> None:
        self._read, self._target = read, target
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        self._ahead: dict[int, Future[tuple[Tensor, ...]]] = {}
        self.stall_seconds = 0.0
        """How long the last `get` waited."""

    def _load(self, step: int) -> tuple[Tensor, ...]:
        tensors = tuple(from_numpy(array) for array in self._read(step))
        # Pinned memory is copied to the device while it computes.
        return tuple(tensor.pin_memory() for tensor in tensors) if self._target.type == "cuda" else tensors

    def get(self, step: int) -> tuple[Tensor, ...]:
        """Return the tensors of a step on the device and start to read those of the next."""
        began = time.perf_counter()
        future = self._ahead.pop(step, None) or self._pool.submit(self._load, step)
        tensors = future.result()
        self.stall_seconds = time.perf_counter() - began
        self.forget()
        self._ahead[step + 1] = self._pool.submit(self._load, step + 1)
        return tuple(tensor.to(self._target, non_blocking=True) for tensor in tensors)

    def forget(self) -> None:
        """Drop what was read ahead."""
        for future in self._ahead.values():
            future.cancel()
        self._ahead.clear()

    def close(self) -> None:
        """Read no more."""
        self.forget()
        self._pool.shutdown()
