"""How busy a process's device is and how full, looked at every few seconds by a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import psutil
import torch

from pipeline.pretrain.monitors.metrics import UNKNOWN

SECONDS_BETWEEN_SAMPLES = 2.0


class Sample(NamedTuple):
    """Utilisation, the share of time in which the device worked on anything (not how well), and memory in use."""

    utilization: float
    memory_bytes: float


def sampler(device: torch.device, threads: int) -> Callable[[], Sample]:
    """Return a function that looks at a device once: a whole GPU, or a process's share of its threads on a CPU."""
    if device.type == "cuda":
        return lambda: Sample(torch.cuda.utilization(device) / 100, torch.cuda.device_memory_used(device))
    process = psutil.Process()
    process.cpu_percent(None)
    return lambda: Sample(process.cpu_percent(None) / 100 / threads, process.memory_info().rss)


class Gauges:
    """The samples since the last step, taken until the process ends."""

    def __init__(self, sample: Callable[[], Sample], every_seconds: float = SECONDS_BETWEEN_SAMPLES) -> None:
        self._sample, self._every = sample, every_seconds
        self._lock = threading.Lock()
        self._samples: list[Sample] = []
        self._last: Sample | None = None
        self._failed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        try:
            sample = self._sample()
        except Exception as error:  # a device that does not answer must not stop the training
            logging.getLogger(__name__).warning("the device does not tell how busy it is: %s", error)
            with self._lock:
                self._failed, self._last, self._samples = True, None, []
            return
        with self._lock:
            self._samples.append(sample)

    def _work(self) -> None:
        while not self._stop.wait(self._every):
            if not self._failed:
                self._look()

    def take(self) -> Sample | None:
        """Return the mean of the samples since the last call; of a step without one, the last before it."""
        if self._last is None and not self._samples and not self._failed:
            self._look()
        with self._lock:
            samples, self._samples = self._samples, []
            if samples:
                self._last = Sample(*(sum(values) / len(samples) for values in zip(*samples, strict=True)))
            return self._last

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join()


EVERY = 50
"""Steps between probes, each of about 50 milliseconds."""
RUNS = 5


class Probe:
    """Times products of two matrices, the median of five runs, each longer than a turn on a shared core."""

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
