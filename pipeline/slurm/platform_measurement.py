"""Measure the rates of this node that a plan needs, as lines for its platform's file."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from pipeline.core.errors import InputError
from pipeline.pretrain.processes import device_and_process_group

MATRIX_SIZES = {"cuda": 8192, "cpu": 2048}
COPIED_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}
WRITTEN_BYTES = 4 << 30
WRITTEN_AT_ONCE_BYTES = 1 << 26
WARM_UP_CALLS = 3


def _seconds_per_call(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return the mean time of a call, repeated for so long, after calls that load kernels and raise clocks."""
    for _ in range(WARM_UP_CALLS):
        call()
    device_and_process_group.synchronize_device(device)
    started, calls = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds or not calls:
        call()
        device_and_process_group.synchronize_device(device)
        calls += 1
    return elapsed / calls


def measure_matrix_rate(device: torch.device, size: int, seconds: float) -> float:
    """Return the operations per second of products of two random bf16 matrices of `size` x `size`."""
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    result = torch.empty_like(left)
    return 2 * size**3 / _seconds_per_call(lambda: torch.mm(left, right, out=result), device, seconds)


def measure_copy_rate(source: torch.device, target: torch.device, size_bytes: int, seconds: float) -> float:
    """Return the bytes per second that copies move: read and written on one device, sent between two."""
    content = torch.randint(256, (size_bytes,), dtype=torch.uint8, device=source)
    copy = torch.empty_like(content, device=target)
    moved = size_bytes * (2 if source == target else 1)
    return moved / _seconds_per_call(lambda: copy.copy_(content), target, seconds)


def measure_storage_rate(folder: Path, size_bytes: int) -> float:
    """Return the bytes per second of writing a file of random bytes to a folder and to its disk; the file is removed.

    Raises:
        InputError: the folder does not exist, cannot be written, or has too little space.
    """
    try:
        if shutil.disk_usage(folder).free < 2 * size_bytes:
            raise InputError(f"{folder} has less than {2 * size_bytes >> 30} GiB free: name another --folder")
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".measured-") as file:
            content = os.urandom(min(WRITTEN_AT_ONCE_BYTES, size_bytes))
            started = time.perf_counter()
            for _ in range(size_bytes // len(content)):
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
            return size_bytes / (time.perf_counter() - started)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}: name a folder that you can write with --folder") from None


def measure_node(
    folder: Path | None, seconds: float, written_bytes: int = WRITTEN_BYTES
) -> Iterator[tuple[str, float]]:
    """Yield keys of a platform's file with their values: rates of a device, of links between two, and of a folder.

    Args:
        seconds: how long each rate of a device is measured.
    """
    _, device = device_and_process_group.choose_backend_and_device(0)
    yield "matrix_flops_per_second", measure_matrix_rate(device, MATRIX_SIZES[device.type], seconds)
    size = COPIED_BYTES[device.type]
    yield "memory_bytes_per_second", measure_copy_rate(device, device, size, seconds)
    if device_and_process_group.count_visible_devices() > 1:
        yield "node_bytes_per_second", measure_copy_rate(device, torch.device("cuda", 1), size, seconds)
    if folder:
        yield "storage_bytes_per_second", measure_storage_rate(folder, written_bytes)
