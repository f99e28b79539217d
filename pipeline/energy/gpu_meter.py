"""Meter the GPUs of a node: NVIDIA's by NVML, AMD's by AMD SMI, both through zeus.

A board with an energy counter is read by it, another by its power over time. Of a card with two dies (MI250X) AMD SMI
tells the energy of the card under its first die and nothing under the second, which is no board of its own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from pipeline.energy.meters import MeteredPart, UnreadableMeter
from pipeline.energy.readings import Reading

DEVICES = Path("/dev")
MILLI = 1e3


class Gpu(Protocol):
    """What is used of a zeus GPU: counters in millijoules, power in milliwatts."""

    def get_name(self) -> str: ...
    def supports_get_total_energy_consumption(self) -> bool: ...
    def get_total_energy_consumption(self) -> int: ...
    def get_instant_power_usage(self) -> int: ...
    def get_average_power_usage(self) -> int: ...
    def get_power_management_limit(self) -> int: ...


def _read_limit_watts(gpu: Gpu) -> float | None:
    try:
        return gpu.get_power_management_limit() / MILLI or None
    except Exception:  # each driver has errors of its own
        return None


def _has_energy_counter(gpu: Gpu) -> bool:
    """Return whether a GPU has an energy counter; one that does not answer is asked for it at each look.

    zeus goes by an NVIDIA board's architecture; where the driver has no counter for it, only the reading says so.
    """
    try:
        return gpu.supports_get_total_energy_consumption() and gpu.get_total_energy_consumption() >= 0
    except Exception as error:
        return "NotSupported" not in type(error).__name__


def _read_watts(gpu: Gpu) -> float:
    """Return what a GPU draws: now, or on average over a moment where its driver tells no more, as that of MI200."""
    try:
        return gpu.get_instant_power_usage() / MILLI
    except Exception:
        return gpu.get_average_power_usage() / MILLI


def _is_silent(gpu: Gpu) -> bool:
    """Return whether a GPU shows neither energy nor power."""
    try:
        return gpu.get_total_energy_consumption() == 0
    except Exception:
        return True


def _is_second_die(meter: str, number: int, gpu: Gpu) -> bool:
    """Return whether a GPU is the second die of an MI250 or MI250X, whose card is read under the die before it."""
    return meter == "amd_smi" and number % 2 == 1 and "MI250" in gpu.get_name() and _is_silent(gpu)


class GpuMeter:
    """The boards of one vendor, each with its own name.

    Args:
        meter: what reads them, `nvml` or `amd_smi`.
        gpus: in the order of the driver, with the name of each.
    """

    def __init__(self, meter: str, gpus: Sequence[tuple[str, Gpu]]) -> None:
        self.gpus: list[str] = []
        self._boards: list[tuple[Gpu, bool, MeteredPart]] = []
        for number, (name, gpu) in enumerate(gpus):
            if _is_second_die(meter, number, gpu):
                self.gpus.append(self.gpus[-1])
            else:
                self.gpus.append(name)
                self._boards.append(
                    (
                        gpu,
                        _has_energy_counter(gpu),
                        MeteredPart(meter, "board", name, most_watts=_read_limit_watts(gpu)),
                    )
                )

    def read(self, now: float) -> None:
        """Look at every board; one that cannot be read leaves the others as they are."""
        for gpu, counts, part in self._boards:
            try:
                if counts:
                    part.counter(gpu.get_total_energy_consumption() / MILLI, now)
                else:
                    part.power(_read_watts(gpu), now)
            except Exception as error:  # a board that fell off the bus
                part.lost(f"it could not be read ({error})")

    def take(self, now: float) -> list[Reading]:
        """Return the readings since the last call."""
        self.read(now)
        return [part.take(now, "counter" if counts else "power") for _, counts, part in self._boards]


def find_gpu_driver(devices: Path = DEVICES) -> str | None:
    """Return `nvml` or `amd_smi` where there are GPUs that this job may see, before anything heavy is imported."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return None
    if any(devices.glob("nvidia[0-9]*")):
        return "nvml"
    return "amd_smi" if (devices / "kfd").exists() else None


def _list_gpus(meter: str) -> list[tuple[str, Gpu]]:
    """Return the GPUs that zeus finds, each with its UUID, which no other board of the world has."""
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
    """Return the meter of the GPUs of a kind; None where there are none."""
    if meter is None:
        return None
    try:
        return GpuMeter(meter, gpus(meter))
    except Exception as error:  # a meter that does not work must not stop the job that it measures
        logging.getLogger(__name__).warning("GPU energy cannot be read: %s", error)
        return UnreadableMeter(meter, "board", f"{meter}: there are GPUs, but their energy cannot be read ({error})")
