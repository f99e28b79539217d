"""A machine says what it is; its GPUs are told by their driver, and a driver that fails stops nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from pipeline.core import machine


def test_this_machine_is_what_its_own_commands_say() -> None:
    told = machine.describe_machine()
    assert told["kernel"] == os.uname().release
    assert told["libc"] == " ".join(platform.libc_ver())
    assert told["cpu_model"] is None or told["cpu_model"] in Path("/proc/cpuinfo").read_text()


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


def test_gpus_of_nvidia_are_told_by_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia(tmp_path, monkeypatch)
    told = machine.describe_machine(tmp_path)
    assert (told["driver"], told["driver_cuda"]) == ("NVIDIA 580.82.07", "13.0")
    assert told["gpus"] == [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85520809984}]


def test_a_driver_that_does_not_answer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia(tmp_path, monkeypatch)

    def lost() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", lost)
    told = machine.describe_machine(tmp_path)
    assert told["gpus"] is None and told["gpus_unknown"].startswith("NVML does not answer")


def test_dies_of_amd_are_told_by_the_kernel(tmp_path: Path) -> None:
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
    told = machine.describe_machine(tmp_path)
    assert (told["driver"], told["driver_rocm"]) == ("amdgpu 6.10.5", "7.0.2")
    assert told["gpus"] == [{"name": "gfx90a", "memory_bytes": 68702699520}] * 2
