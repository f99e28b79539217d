"""Measure the use of devices in each step: utilization, memory, speed against the peak, and slow processes.

Model FLOPs utilization is the model's arithmetic over the device's peak (`flops_per_token`: 6 N plus attention,
Chowdhery et al. 2022). Hardware FLOPs utilization also counts the recomputed blocks (8 N). The peak depends on the
precision and is that of bf16 with float8 products; without a known peak the utilization is unknown.
"""

from __future__ import annotations

import json
import logging
import platform
import resource
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.cuda import nccl

from pipeline.core import platform_files
from pipeline.core.batch_schedule import StepRange
from pipeline.core.machine import describe_machine
from pipeline.energy.startup_counters import node_name
from pipeline.model.compilation_and_precision import is_deterministic
from pipeline.model.size_and_cost import flops_per_token
from pipeline.pretrain.monitors import metrics
from pipeline.pretrain.monitors.metrics import UNKNOWN, Metrics
from pipeline.pretrain.processes import device_and_process_group
from pipeline.pretrain.settings import SegmentSettings


class Telemetry:
    """Figures of each process once a step; process 0 writes devices and nodes to `scratch`/device.json."""

    def __init__(
        self, settings: SegmentSettings, vocabulary_size: int, device: torch.device, scratch: Path | None
    ) -> None:
        training = settings.training
        name, self._device = device_and_process_group.get_device_name(device), device
        self._peak = training.peak_flops_per_second or peak_flops_per_second(name, training.precision)
        places: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(places, (node_name(), describe_machine()))
        self.nodes: list[str] = [node for node, _ in places]
        nodes = dict(places)
        if scratch:
            described = {
                "device": name,
                "peak_flops_per_second": self._peak,
                "container": platform_files.current_container_image(),  # of this process, not of its launcher
                "python": platform.python_version(),
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
                "hip": torch.version.hip,
                # AMD's RCCL has the same name.
                "nccl": ".".join(map(str, nccl.version())) if device.type == "cuda" else None,  # type: ignore[no-untyped-call]
                "deterministic": is_deterministic(),
                "nodes": dict(sorted(nodes.items())),
            }
            (scratch / "device.json").write_text(json.dumps(described), encoding="utf-8")
        self._training, self._shape = training, (settings.architecture, vocabulary_size)
        self._sampler = DeviceSampler(make_sampler(device, training.threads))
        self.probe = SpeedProbe(device)

    def _memory_bytes(self) -> int:
        """Return the peak memory of this process, on the device or, without one, in main memory."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def local_values(self, stall_seconds: float) -> list[float]:
        """Return the figures of this process: utilization, used and peak memory, data stall, last probe."""
        sample = self._sampler.take_mean()
        busy = [sample.utilization, sample.memory_bytes] if sample else [UNKNOWN, UNKNOWN]
        return [*busy, self._memory_bytes(), stall_seconds, self.probe.pop_last_probe_seconds()]

    def summarize(self, size: StepRange, seconds: float, table: NDArray[np.float64]) -> Metrics:
        """Summarize the figures of all processes, (processes, 5): mean and minimum use, maximum memory and stall."""
        busy, used, peak, stall, probes = table.T.tolist()
        known = min(busy) >= 0
        tokens = size.batch_size * self._training.sequence_length
        of_model, on_hardware = (
            flops_per_token(*self._shape, size.sequence_length, recomputation=recomputation)
            for recomputation in (False, self._training.recomputation == "full")
        )
        per_peak = tokens / seconds / self._peak / len(busy) if self._peak else None
        return {
            "tokens_per_second": tokens / seconds,
            "model_flops_utilization": None if per_peak is None else of_model * per_peak,
            "hardware_flops_utilization": None if per_peak is None else on_hardware * per_peak,
            "device_utilization": sum(busy) / len(busy) if known else None,
            "device_utilization_least": min(busy) if known else None,
            "memory_bytes": int(max(peak)),
            "memory_used_bytes": int(max(used)) if known else None,
            "data_stall_seconds": max(stall),
            **metrics.summarize_probes(probes),
            "ended_unix_seconds": round(time.time(), 3),
        }


TERA = 1e12


class Peak(NamedTuple):
    """Matrix operations in 10^12 per second, a multiply-add counts as two; None where there is no such unit."""

    bf16: float
    fp8: float | None
    fp32: float | None
    source: str


# By prefix of the device name; the longest match counts. fp32 is full precision, not TF32.
PEAKS = {
    "NVIDIA A100-SXM4": Peak(312, None, 19.5, "NVIDIA, A100 data sheet"),
    "NVIDIA A100-PCIE": Peak(312, None, 19.5, "NVIDIA, A100 data sheet"),
    "NVIDIA A100 80GB PCIe": Peak(312, None, 19.5, "NVIDIA, A100 data sheet"),
    "NVIDIA H100": Peak(989.4, 1978.9, 66.9, "NVIDIA, H100 data sheet, SXM, half of the figures with sparsity"),
    "NVIDIA H100 PCIe": Peak(756, 1513, 51, "NVIDIA, H100 data sheet, PCIe, half of the figures with sparsity"),
    "NVIDIA H100 NVL": Peak(835, 1670, 60, "NVIDIA, H100 data sheet, NVL, half of the figures with sparsity"),
    "NVIDIA H200": Peak(989.4, 1978.9, 66.9, "NVIDIA, H200 data sheet, SXM, half of the figures with sparsity"),
    "NVIDIA H200 NVL": Peak(835, 1670, 60, "NVIDIA, H200 data sheet, NVL, half of the figures with sparsity"),
    "NVIDIA GH200": Peak(989.4, 1978.9, 66.9, "NVIDIA, GH200 data sheet, half of the figures with sparsity"),
    "NVIDIA B200": Peak(2250, 4500, None, "NVIDIA, Blackwell data sheet, HGX B200, dense"),
    # Each die of these two is a device.
    "AMD Instinct MI250": Peak(181.05, None, 45.25, "AMD, MI250 data sheet, half a module, matrix"),
    "AMD Instinct MI250X": Peak(191.5, None, 47.85, "AMD, MI250X data sheet, half a module, matrix"),
    "AMD Instinct MI300X": Peak(1307.4, 2614.9, 163.4, "AMD, MI300X data sheet, matrix, dense"),
}


def find_peak_flops(device_name: str) -> Peak | None:
    """Return the peak of a device, or None for an unknown one or a part of one (MIG)."""
    fitting = [name for name in PEAKS if device_name.startswith(name)]
    return PEAKS[max(fitting, key=len)] if fitting and "MIG" not in device_name else None


def peak_flops_per_second(device_name: str, precision: str) -> float | None:
    """Return a device's peak in `bf16`, `fp8` or `fp32`, or None where it is unknown."""
    peaks = find_peak_flops(device_name)
    figure = {"bf16": peaks.bf16, "fp8": peaks.fp8, "fp32": peaks.fp32}[precision] if peaks else None
    return figure * TERA if figure else None


SECONDS_BETWEEN_SAMPLES = 2.0


class DeviceSample(NamedTuple):
    """Utilization, the share of time in which the device was busy, and memory in use."""

    utilization: float
    memory_bytes: float


def make_sampler(device: torch.device, threads: int) -> Callable[[], DeviceSample]:
    """Return a function that samples a device: a whole GPU, or a process's share of its threads on a CPU."""
    if device.type == "cuda":
        return lambda: DeviceSample(torch.cuda.utilization(device) / 100, torch.cuda.device_memory_used(device))
    process = psutil.Process()
    process.cpu_percent(None)
    return lambda: DeviceSample(process.cpu_percent(None) / 100 / threads, process.memory_info().rss)


class DeviceSampler:
    """Samples a device in a thread, from the start to the end of the process."""

    def __init__(self, sample: Callable[[], DeviceSample], every_seconds: float = SECONDS_BETWEEN_SAMPLES) -> None:
        self._sample, self._every = sample, every_seconds
        self._lock = threading.Lock()
        self._samples: list[DeviceSample] = []
        self._last: DeviceSample | None = None
        self._failed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_closed, daemon=True)
        self._thread.start()

    def _take_sample(self) -> None:
        try:
            sample = self._sample()
        except Exception as error:  # a device without an answer must not stop the training
            logging.getLogger(__name__).warning("the utilization of the device cannot be read: %s", error)
            with self._lock:
                self._failed, self._last, self._samples = True, None, []
            return
        with self._lock:
            self._samples.append(sample)

    def _sample_until_closed(self) -> None:
        while not self._stop.wait(self._every):
            if not self._failed:
                self._take_sample()

    def take_mean(self) -> DeviceSample | None:
        """Return the mean of the samples since the last call, or else the previous mean."""
        if self._last is None and not self._samples and not self._failed:
            self._take_sample()
        with self._lock:
            samples, self._samples = self._samples, []
            if samples:
                self._last = DeviceSample(*(sum(values) / len(samples) for values in zip(*samples, strict=True)))
            return self._last

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


PROBE_STEPS = 50
"""Steps between probes of about 50 milliseconds each."""
PROBE_RUNS = 5


class SpeedProbe:
    """Times matrix products: the median of five runs, each longer than a time slice on a shared core."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        width, dtype = (4096, torch.bfloat16) if self._on_gpu else (256, torch.float32)
        self._products = 50 if self._on_gpu else 25
        self._matrix = torch.ones(width, width, dtype=dtype, device=device)
        self._product = torch.empty_like(self._matrix)
        self._marks: list[Any] = []

    def begin(self, step: int) -> None:
        """Start the probe after a step in which it is due."""
        if step % PROBE_STEPS:
            return
        self._marks = [self._record_time()]
        for _ in range(PROBE_RUNS):
            for _ in range(self._products):
                torch.mm(self._matrix, self._matrix, out=self._product)
            self._marks.append(self._record_time())

    def _record_time(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def pop_last_probe_seconds(self) -> float:
        """Return the seconds of the last probe once; UNKNOWN without one, or while a GPU still runs it."""
        if not self._marks or (self._on_gpu and not self._marks[-1].query()):
            return UNKNOWN
        marks, self._marks = self._marks, []
        if self._on_gpu:
            return median(float(start.elapsed_time(end)) / 1000 for start, end in pairwise(marks))
        return median(float(end - start) for start, end in pairwise(marks))
