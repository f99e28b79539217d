"""Read the energy counters of a node as the first act of a process, before it imports what takes time.

A meter that is found later begins with them. Nothing is imported but what Python has loaded when it starts, and
NVIDIA's library where the node has its GPUs. AMD's library takes too long; on nodes of Cray, files have its counters.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

POWERCAP = "/sys/class/powercap"
PM_COUNTERS = "/sys/cray/pm_counters"
DEVICES = "/dev"
CPU_TIMES = "/proc/stat"

ATTEMPT_VARIABLE = "PIPELINE_ATTEMPT"
"""The variable with the name of the attempt; it marks processes under other parents, such as those of srun."""

READINGS_VARIABLE = "PIPELINE_READINGS"
"""The variable with the folder of an attempt's readings, for meters on its other nodes."""

NODE_VARIABLE = "PIPELINE_METERED_NODE"
"""The variable with the node that the attempt itself meters."""


class CounterSample(NamedTuple):
    """The counters of a node at one time.

    Attributes:
        moment: by `monotonic_seconds`.
        cpu_seconds: user and system time of this process since it began.
        node_cpu_seconds: user, nice and system time of the node.
        files: the texts of RAPL's and of Cray's counters, by path.
        board_millijoules: the counter of each NVIDIA GPU, by UUID.
    """

    moment: float
    cpu_seconds: float
    node_cpu_seconds: float
    files: Mapping[str, str]
    board_millijoules: Mapping[str, int]


def monotonic_seconds() -> float:
    """Return the seconds of a clock that nobody sets and that, on Linux, runs on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def node_name(environment: Mapping[str, str] = os.environ) -> str:
    """Return Slurm's name of this node, or else its host name."""
    return environment.get("SLURMD_NODENAME") or os.uname().nodename


def meters_additional_node(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this is the first process here of an attempt whose own meter is on another node."""
    first = (environment.get("LOCAL_RANK") or environment.get("SLURM_LOCALID") or "0") == "0"
    is_attempt = environment.get(READINGS_VARIABLE) and environment.get(ATTEMPT_VARIABLE)
    return bool(first and is_attempt) and environment.get(NODE_VARIABLE) != node_name(environment)


def read_node_cpu_seconds() -> float:
    """Return the user, nice and system time of the node, from proc_stat(5); 0 where there is no such file."""
    with suppress(OSError, ValueError), open(CPU_TIMES, encoding="ascii") as stream:
        return sum(map(int, stream.readline().split()[1:4])) / os.sysconf("SC_CLK_TCK")  # guests are in them already
    return 0.0


def _list_folder(folder: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []


def _read_files(paths: list[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for path in paths:
        with suppress(OSError, ValueError), open(path, encoding="ascii") as stream:
            texts[path] = stream.read()
    return texts


def _read_nvidia_boards() -> dict[str, int]:
    counters: dict[str, int] = {}
    with suppress(Exception):  # a broken driver must not stop the job that it measures
        import pynvml

        pynvml.nvmlInit()
        for number in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):  # a board without such a counter, or off the bus
                board = pynvml.nvmlDeviceGetHandleByIndex(number)
                counters[str(pynvml.nvmlDeviceGetUUID(board))] = pynvml.nvmlDeviceGetTotalEnergyConsumption(board)
    return counters


def sample_counters() -> CounterSample:
    """Read all counters of this node; where Cray's are, they measure all parts."""
    moment, cpu_seconds, node_cpu_seconds = monotonic_seconds(), time.process_time(), read_node_cpu_seconds()
    names = [name for name in _list_folder(PM_COUNTERS) if name == "freshness" or name.endswith("energy")]
    files = _read_files([f"{PM_COUNTERS}/{name}" for name in names])
    boards: dict[str, int] = {}
    if not files:
        zones = [name for name in _list_folder(POWERCAP) if name.startswith("intel-rapl:")]
        files = _read_files([f"{POWERCAP}/{zone}/energy_uj" for zone in zones])
        has_boards = any(name.startswith("nvidia") and name[6:].isdigit() for name in _list_folder(DEVICES))
        if has_boards and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
            boards = _read_nvidia_boards()
    return CounterSample(moment, cpu_seconds, node_cpu_seconds, files, boards)


_startup_sample: CounterSample | None = None


def keep_startup_sample() -> None:
    """Sample the counters for the first meter of this process."""
    global _startup_sample
    _startup_sample = sample_counters()


def pop_startup_sample() -> CounterSample | None:
    """Return the sample of this process once; None where there is none."""
    global _startup_sample
    sample, _startup_sample = _startup_sample, None
    return sample


def _forget_in_child() -> None:
    global _startup_sample
    _startup_sample = None


os.register_at_fork(after_in_child=_forget_in_child)
