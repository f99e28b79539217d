"""Joules of a job: read from the machine's energy counters where it has them, estimated where it has none.

Each part of the machine is told apart: GPUs by NVML or AMD SMI through zeus, processors and memory by RAPL, and
what no counter covers by a stated power model. A reading says which is which; a counter that stands still is no
measurement, and a zero is never shown as measured.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypedDict

import psutil

from pipeline.energy.processes import (
    cpu_seconds_of_process_tree,
    memory_bytes_of_process_tree,
    peak_memory_bytes_of_process_tree,
)

__all__ = [
    "MeterReading",
    "Meters",
    "Reading",
    "combine",
    "cpu_seconds_of_process_tree",
    "peak_memory_bytes_of_process_tree",
    "start_meters",
]

POWERCAP = Path("/sys/class/powercap")
DEVICES = Path("/dev")

# codecarbon 3.3.2 assumes 4 W per thread (DEFAULT_POWER_PER_CORE); per busy second, so that a job pays for its own use.
CPU_WATTS_PER_BUSY_THREAD = 4.0
CPU_MODEL = "estimate: 4 W per busy logical processor (codecarbon 3.3.2, power per thread) × CPU seconds of the job"
# The usual figure of 3 W per 8 GB, for the memory that the job holds, so that jobs on one machine add up.
MEMORY_WATTS_PER_GIGABYTE = 3 / 8
MEMORY_MODEL = "estimate: 3 W per 8 GB × resident memory of the job × seconds"
RAPL_MODEL = "counters {zones} of the machine × the job's share of the machine's busy CPU seconds"
GPU_MODEL = "{source} of {count} GPU(s), whole boards"
GPU_UNREADABLE = "GPU present, its energy could not be read: not counted"


class MeterReading(TypedDict):
    """What one meter says since the start."""

    meter: str
    joules: float
    measured: bool
    model: str | None


class Reading(TypedDict):
    """All meters since the start; `measured` is true where every one of them is."""

    joules: float
    measured: bool
    meters: list[MeterReading]


def combine(readings: Sequence[Reading]) -> Reading:
    """The sum of readings of the same job, such as those of its nodes: meters of one kind are added up."""
    merged: dict[tuple[str, str | None, bool], float] = {}
    for meter in (meter for reading in readings for meter in reading["meters"]):
        key = (meter["meter"], meter["model"], meter["measured"])
        merged[key] = merged.get(key, 0.0) + meter["joules"]
    return _reading([_meter(name, joules, measured, model) for (name, model, measured), joules in merged.items()])


def _meter(name: str, joules: float, measured: bool, model: str | None) -> MeterReading:
    return MeterReading(meter=name, joules=joules, measured=measured and joules > 0, model=model)


def _reading(meters: list[MeterReading]) -> Reading:
    joules = sum(meter["joules"] for meter in meters)
    return Reading(joules=joules, measured=bool(meters) and all(meter["measured"] for meter in meters), meters=meters)


class Rapl:
    """The energy counters of processor packages and memory below a powercap folder.

    Packages include their cores; a `psys` zone would count them again and is left out. Counters wrap around at
    `max_energy_range_uj` (some within minutes), so `joules` wants to be called at least once a minute.
    """

    def __init__(self, powercap: Path = POWERCAP) -> None:
        self._energy_microjoules = 0
        self._zones: dict[Path, tuple[str, int]] = {}
        for zone in sorted(powercap.glob("intel-rapl:*")):
            with contextlib.suppress(OSError, ValueError):  # since 2020 most systems let only root read the counters
                name = (zone / "name").read_text().strip()
                if name.startswith("package") or name == "dram":
                    self._zones[zone] = (name, int((zone / "max_energy_range_uj").read_text()))
        self._last = {zone: counter for zone in self._zones if (counter := self._counter(zone)) is not None}

    @staticmethod
    def _counter(zone: Path) -> int | None:
        try:
            return int((zone / "energy_uj").read_text())
        except (OSError, ValueError):
            return None

    @property
    def zones(self) -> list[str]:
        """Names of the readable zones, such as package-0 and dram."""
        return [self._zones[zone][0] for zone in self._last]

    def joules(self) -> float:
        """Joules of the whole machine since this object was made."""
        for zone, last in list(self._last.items()):
            counter = self._counter(zone)
            if counter is None:
                continue
            wrapped = self._zones[zone][1] if counter < last else 0
            self._energy_microjoules += counter - last + wrapped
            self._last[zone] = counter
        return self._energy_microjoules / 1e6


class Gpu(Protocol):
    """What is used of a zeus GPU: counters in millijoules, power in milliwatts."""

    def supports_get_total_energy_consumption(self) -> bool: ...
    def get_total_energy_consumption(self) -> int: ...
    def get_average_power_usage(self) -> int: ...


class Gpus:
    """The energy of a list of GPUs: their counters, or their power × time where a board has no counter."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._counting = [gpu for gpu in gpus if gpu.supports_get_total_energy_consumption()]
        self._power_only = [gpu for gpu in gpus if gpu not in self._counting]
        self._first_millijoules = sum(gpu.get_total_energy_consumption() for gpu in self._counting)
        self._integrated_millijoules = 0.0
        self._last_seconds = time.monotonic()
        source = "power × time" if not self._counting else "energy counters"
        self.model = GPU_MODEL.format(source=source, count=len(gpus))

    def joules(self) -> float:
        """Joules since this object was made."""
        now_seconds = time.monotonic()
        power_milliwatts = sum(gpu.get_average_power_usage() for gpu in self._power_only)
        self._integrated_millijoules += power_milliwatts * (now_seconds - self._last_seconds)
        self._last_seconds = now_seconds
        counted = sum(gpu.get_total_energy_consumption() for gpu in self._counting) - self._first_millijoules
        return (counted + self._integrated_millijoules) / 1e3


def _gpu_kind(devices: Path = DEVICES) -> str | None:
    """`nvml` or `amdsmi` where a GPU is present and not hidden from this job, before anything heavy is imported."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return None
    if any(devices.glob("nvidia[0-9]*")):
        return "nvml"
    return "amdsmi" if (devices / "kfd").exists() else None


def _find_gpus() -> Gpus | None:
    """The GPUs that zeus finds; None where it finds none or may not read them (its reasons go to the log)."""
    try:
        from zeus.device.gpu import get_gpus

        gpus: list[Gpu] = list(get_gpus().gpus)
        return Gpus(gpus) if gpus else None
    except Exception as error:  # a meter that does not work must not stop the job that it measures
        logging.getLogger(__name__).warning("GPU energy cannot be read: %s", error)
        return None


def _busy_cpu_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


class Meters:
    """The meters of one job, running from their making; `read` may be called from any thread, as often as wished.

    `gpus=False` is for a job that uses no GPU, and for all but one of the processes of a job on the same node, so
    that boards are counted once. Processors and memory are counted by the job's share and add up by themselves.
    """

    def __init__(self, *, gpus: bool = True, powercap: Path = POWERCAP) -> None:
        self._lock = threading.Lock()
        self._gpu_kind = _gpu_kind() if gpus else None
        self._gpus = _find_gpus() if self._gpu_kind else None
        self._gpu_joules = 0.0
        self._rapl = Rapl(powercap)
        self._machine_joules = 0.0
        self._rapl_joules = 0.0
        self._memory_joules = 0.0
        self._first_cpu_seconds = self._cpu_seconds = cpu_seconds_of_process_tree()
        self._busy_seconds = _busy_cpu_seconds()
        self._last_seconds = time.monotonic()

    def _advance(self) -> None:
        """Bring every sum up to now."""
        now_seconds, machine_joules, busy_seconds = time.monotonic(), self._rapl.joules(), _busy_cpu_seconds()
        # A grandchild that outlived its parent leaves the tree: the sum may not fall.
        cpu_seconds = max(self._cpu_seconds, cpu_seconds_of_process_tree())
        busy_interval = busy_seconds - self._busy_seconds
        share = min(1.0, (cpu_seconds - self._cpu_seconds) / busy_interval) if busy_interval > 0 else 1.0
        self._rapl_joules += (machine_joules - self._machine_joules) * share
        gigabytes = memory_bytes_of_process_tree() / 1e9
        self._memory_joules += gigabytes * MEMORY_WATTS_PER_GIGABYTE * (now_seconds - self._last_seconds)
        self._machine_joules, self._cpu_seconds = machine_joules, cpu_seconds
        self._busy_seconds, self._last_seconds = busy_seconds, now_seconds
        if self._gpus is not None:
            with contextlib.suppress(Exception):  # a board that falls off the bus: the last good sum stands
                self._gpu_joules = max(self._gpu_joules, self._gpus.joules())

    def read(self) -> Reading:
        """Energy since the start."""
        with self._lock:
            self._advance()
            meters = []
            if self._gpus is not None and self._gpu_kind is not None:
                meters.append(_meter(self._gpu_kind, self._gpu_joules, True, self._gpus.model))
            elif self._gpu_kind is not None:
                meters.append(_meter(self._gpu_kind, 0.0, False, GPU_UNREADABLE))
            zones = self._rapl.zones if self._machine_joules > 0 else []
            if any(zone.startswith("package") for zone in zones):
                meters.append(_meter("rapl", self._rapl_joules, True, RAPL_MODEL.format(zones=", ".join(zones))))
            else:
                cpu_joules = (self._cpu_seconds - self._first_cpu_seconds) * CPU_WATTS_PER_BUSY_THREAD
                meters.append(_meter("cpu_time_model", cpu_joules, False, CPU_MODEL))
            if "dram" not in zones:
                meters.append(_meter("memory_model", self._memory_joules, False, MEMORY_MODEL))
            return _reading(meters)


def start_meters(*, gpus: bool = True) -> Meters:
    """Start the meters of a job; see `Meters`."""
    return Meters(gpus=gpus)
