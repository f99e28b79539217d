"""How fast each device is by itself, now and then: who computes slower than the others makes all of them wait.

In a step every process waits for the slowest at the first exchange, so that all steps look alike. A probe is a little
work without any exchange, timed.
"""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from pipeline.pretrain.monitors.slow_processes import UNKNOWN

EVERY = 50
"""Steps between probes, each of about 50 milliseconds."""
RUNS = 5


class Probe:
    """Times products of two matrices on a device, the median of five runs; nothing waits for them.

    A run is longer than the turn that a process gets on a shared core, so that a core with others on it shows.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        width, dtype = (4096, torch.bfloat16) if self._on_gpu else (256, torch.float32)
        self._products = 50 if self._on_gpu else 25
        self._matrix = torch.ones(width, width, dtype=dtype, device=device)
        self._product = torch.empty_like(self._matrix)
        self._marks: list[Any] = []

    def begin(self, step: int) -> None:
        """Do the work behind a step, where it is its turn."""
        if step % EVERY:
            return
        self._marks = [self._mark()]
        for _ in range(RUNS):
            for _ in range(self._products):
                torch.mm(self._matrix, self._matrix, out=self._product)
            self._marks.append(self._mark())

    def _mark(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def take(self) -> float:
        """Return the seconds of the last probe, once; UNKNOWN where there is none, or a GPU has not done it yet."""
        if not self._marks or (self._on_gpu and not self._marks[-1].query()):
            return UNKNOWN
        marks, self._marks = self._marks, []
        if self._on_gpu:
            return median(float(start.elapsed_time(end)) / 1000 for start, end in pairwise(marks))
        return median(float(end - start) for start, end in pairwise(marks))
