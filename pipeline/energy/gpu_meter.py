"""Meter the GPUs of a node: NVIDIA's through NVML, AMD's through AMD SMI, both with zeus.

A board with an energy counter is read by it, another by its power over time. For a card with two dies (MI250X), AMD SMI
reports the energy of the card under its first die and nothing under the second, which is not counted as a board.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from pipeline.energy import startup_counters
from pipeline.energy.rapl_and_cray_meters import MeteredPart, PartsMeter, UnreadableMeter
from pipeline.energy.startup_counters import CounterSample

DEVICES = Path(startup_counters.DEVICES)
MILLI = 1e3


class Gpu(Protocol):
    """The methods of a zeus GPU that are used here; counters in millijoules, power in milliwatts."""

    def get_name(self) -> str: ...
    def supports_get_total_energy_consumption(self) -> bool: ...
    def get_total_energy_consumption(self) -> int: ...
    def get_instant_power_usage(self) -> int: ...
    def get_average_power_usage(self) -> int: ...
    def get_power_management_limit(self) -> int: ...
    @property
    def handle(self) -> Any: ...


def _read_limit_watts(gpu: Gpu) -> float | None:
    try:
        return gpu.get_power_management_limit() / MILLI or None
    except Exception:  # the errors differ by driver
        return None


def _has_energy_counter(gpu: Gpu) -> bool:
    """Return whether a GPU has an energy counter; True where it does not answer, so that each sample tries again.

    zeus decides by an NVIDIA board's architecture; only the reading shows that the driver has no counter.
    """
    try:
        return gpu.supports_get_total_energy_consumption() and gpu.get_total_energy_consumption() >= 0
    except Exception as error:
        return "NotSupported" not in type(error).__name__


def _read_architecture(meter: str, gpu: Gpu) -> str:
    """Return the architecture of an NVIDIA board in NVML's words, such as `ampere`; else nothing."""
    if meter != "nvml":
        return ""
    with suppress(Exception):  # an old driver
        import pynvml

        prefix, number = "NVML_DEVICE_ARCH_", pynvml.nvmlDeviceGetArchitecture(gpu.handle)
        names = (name for name in dir(pynvml) if name.startswith(prefix) and getattr(pynvml, name) == number)
        return next(names).removeprefix(prefix).lower()
    return ""


def _read_watts(meter: str, gpu: Gpu) -> float:
    """Return the power of a GPU: now, its short average (MI200), or the one figure of NVIDIA's oldest drivers."""
    try:
        return gpu.get_instant_power_usage() / MILLI
    except Exception:
        try:
            return gpu.get_average_power_usage() / MILLI
        except Exception:
            if meter != "nvml":
                raise
            import pynvml

            return float(pynvml.nvmlDeviceGetPowerUsage(gpu.handle)) / MILLI


def _is_silent(gpu: Gpu) -> bool:
    try:
        return gpu.get_total_energy_consumption() == 0
    except Exception:
        return True


def _is_second_die(meter: str, number: int, gpu: Gpu) -> bool:
    """Return whether a GPU is the second die of an MI250 or MI250X, whose card is read through the die before it."""
    return meter == "amd_smi" and number % 2 == 1 and "MI250" in gpu.get_name() and _is_silent(gpu)


class GpuMeter(PartsMeter):
    """The boards of one vendor.

    Args:
        meter: the library that reads them, `nvml` or `amd_smi`.
        gpus: each with its name, in the driver's order.
    """

    def __init__(self, meter: str, gpus: Sequence[tuple[str, Gpu]]) -> None:
        names: list[str] = []
        parts: list[MeteredPart] = []
        self._boards: list[Gpu] = []
        for number, (name, gpu) in enumerate(gpus):
            if _is_second_die(meter, number, gpu):
                names.append(names[-1])
                continue
            names.append(name)
            self._boards.append(gpu)
            method: Literal["counter", "power"] = "counter" if _has_energy_counter(gpu) else "power"
            most, architecture = _read_limit_watts(gpu), _read_architecture(meter, gpu)
            parts.append(MeteredPart(meter, "board", name, most_watts=most, method=method, architecture=architecture))
        super().__init__(parts)
        self._meter = meter
        self.gpus = names

    def begin(self, now: float, sample: CounterSample) -> None:
        """Begin with counters that were sampled before; a board without one begins with its first reading."""
        for part in self.parts:
            if part.method == "counter" and part.name in sample.board_millijoules:
                part.add_counter_sample(sample.board_millijoules[part.name] / MILLI, now)
                part.read_energy_since_last_call(now)

    def sample(self, now: float) -> None:
        """Read all boards; one that fails does not affect the others."""
        for gpu, part in zip(self._boards, self.parts, strict=True):
            try:
                if part.method == "counter":
                    part.add_counter_sample(gpu.get_total_energy_consumption() / MILLI, now)
                else:
                    part.add_power_sample(_read_watts(self._meter, gpu), now)
            except Exception as error:  # a board that fell off the bus
                part.mark_unknown(f"it could not be read ({error})")


def find_gpu_driver(devices: Path = DEVICES) -> str | None:
    """Return `nvml` or `amd_smi` where this job may see GPUs, without importing anything heavy."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return None
    if any(devices.glob("nvidia[0-9]*")):
        return "nvml"
    return "amd_smi" if (devices / "kfd").exists() else None


def _list_gpus(meter: str) -> list[tuple[str, Gpu]]:
    """Return the GPUs that zeus finds, each with its UUID."""
    from zeus.device.gpu import get_gpus

    gpus = list(get_gpus().gpus)
    if meter == "nvml":
        import pynvml

        return [(str(pynvml.nvmlDeviceGetUUID(gpu.handle)), gpu) for gpu in gpus]
    import amdsmi

    return [(str(amdsmi.amdsmi_get_gpu_device_uuid(gpu.handle)), gpu) for gpu in gpus]


def find_gpu_meter(
    meter: str | None, gpus: Callable[[str], list[tuple[str, Gpu]]] = _list_gpus
) -> GpuMeter | UnreadableMeter | None:
    """Return the meter of the GPUs of a driver; None without one."""
    if meter is None:
        return None
    try:
        return GpuMeter(meter, gpus(meter))
    except Exception as error:  # a broken meter must not stop the job that it measures
        logging.getLogger(__name__).warning("GPU energy cannot be read: %s", error)
        return UnreadableMeter(meter, "board", f"{meter}: there are GPUs, but their energy cannot be read ({error})")
