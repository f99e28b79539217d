"""Kernel, C library, processor, GPUs and driver of a machine.

GPUs are listed without a context on them: NVIDIA's by NVML, AMD's by files of the kernel's driver. None of it is part
of a version, so an updated kernel or driver reruns no job; it is in the record.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path("/")


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _libc_version() -> str | None:
    with suppress(ValueError, OSError, AttributeError):  # another C library than GNU's
        return os.confstr("CS_GNU_LIBC_VERSION")
    return None


def _cpu_model(root: Path) -> str | None:
    """Return the name that the processor gives itself; an Arm processor has none there."""
    with suppress(OSError), (root / "proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return None


def _gpu_memory_bytes(handle: Any) -> int | None:
    import pynvml

    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:  # of a GPU that shares the memory of its processor
        return None


def _nvidia_gpus() -> dict[str, Any]:
    """Return driver and GPUs from NVML, or why NVML does not answer."""
    try:
        import pynvml
    except ImportError:
        return {"gpus": None, "gpus_unknown": "there is no nvidia-ml-py"}
    try:
        pynvml.nvmlInit()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        return {
            "driver": f"NVIDIA {pynvml.nvmlSystemGetDriverVersion()}",
            "driver_cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "gpus": [
                {"name": pynvml.nvmlDeviceGetName(one), "memory_bytes": _gpu_memory_bytes(one)} for one in handles
            ],
        }
    except pynvml.NVMLError as error:
        return {"gpus": None, "gpus_unknown": f"NVML does not answer ({error})"}


def _amd_gpus(root: Path) -> dict[str, Any]:
    """Return the driver and the GPUs of AMD, each die one, by the topology of the kernel's driver."""
    gpus = []
    for node in sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*"), key=lambda path: int(path.name)):
        properties = dict(
            line.split(maxsplit=1) for line in (_read_text(node / "properties") or "").splitlines() if " " in line
        )
        version = int(properties.get("gfx_target_version", 0))
        if version:  # the processors are nodes as well
            banks = "\n".join(_read_text(bank) or "" for bank in node.glob("mem_banks/*/properties"))
            sizes = [line.split()[1] for line in banks.splitlines() if line.startswith("size_in_bytes ")]
            name = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
            gpus.append({"name": name, "memory_bytes": sum(map(int, sizes)) or None})
    return {
        "driver": f"amdgpu {_read_text(root / 'sys/module/amdgpu/version') or 'of the kernel'}",
        "driver_rocm": _read_text(root / "opt/rocm/.info/version"),
        "gpus": gpus,
    }


@cache
def describe_machine(root: Path = ROOT) -> dict[str, Any]:
    """Return what this machine is, by an allow-list; `gpus` are those that this process may see.

    Without a name of a person, a folder or a serial number. `root` is where /proc, /sys and /dev are.
    """
    gpus: dict[str, Any] = {"gpus": []}
    if any((root / "dev").glob("nvidia[0-9]*")):
        gpus = _nvidia_gpus()
    elif (root / "dev/kfd").exists():
        gpus = _amd_gpus(root)
    return {
        "architecture": platform.machine(),
        "system": platform.system(),
        "processors": os.cpu_count(),
        "cpu_model": _cpu_model(root),
        "kernel": platform.release(),
        "libc": _libc_version(),
        **gpus,
    }
