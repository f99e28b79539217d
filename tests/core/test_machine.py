"""A machine description lists the hardware; GPUs come from their driver, and a failing driver stops nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from pipeline.core import machine


def test_machine_description_equals_system_commands() -> None:
    description = machine.describe_machine()
    assert description["kernel"] == os.uname().release
    assert description["libc"] == " ".join(platform.libc_ver())
    assert description["cpu_model"] is None or description["cpu_model"] in Path("/proc/cpuinfo").read_text()


def nvidia(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "dev").mkdir()
    (root / "dev/nvidia0").touch()
    answers = {
        "nvmlInit": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.82.07",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetName": lambda handle: "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=85520809984),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)


def test_nvidia_gpus_are_read_from_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia(tmp_path, monkeypatch)
    description = machine.describe_machine(tmp_path)
    assert (description["driver"], description["driver_cuda"]) == ("NVIDIA 580.82.07", "13.0")
    assert description["gpus"] == [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85520809984}]


def test_unresponsive_driver_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia(tmp_path, monkeypatch)

    def lost() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", lost)
    description = machine.describe_machine(tmp_path)
    assert description["gpus"] is None and description["gpus_unknown"].startswith("NVML does not answer")


def test_amd_dies_are_read_from_the_kernel(tmp_path: Path) -> None:
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for number, version in ((0, 0), (1, 90010), (2, 90010)):
        bank = nodes / str(number) / "mem_banks/0"
        bank.mkdir(parents=True)
        (nodes / str(number) / "properties").write_text(f"simd_count 440\ngfx_target_version {version}\n")
        (bank / "properties").write_text("heap_type 1\nsize_in_bytes 68702699520\n")
    for name, text in (
        ("sys/module/amdgpu/version", "6.10.5\n"),
        ("opt/rocm/.info/version", "7.0.2\n"),
        ("dev/kfd", ""),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    description = machine.describe_machine(tmp_path)
    assert (description["driver"], description["driver_rocm"]) == ("amdgpu 6.10.5", "7.0.2")
    assert description["gpus"] == [{"name": "gfx90a", "memory_bytes": 68702699520}] * 2
