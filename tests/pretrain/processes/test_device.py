"""Peak FLOPS by name, the devices of a platform, and one error if they are missing."""

import subprocess
import sys

import pytest
import torch

from pipeline.config import platforms
from pipeline.core import platform_files
from pipeline.core.errors import InputError
from pipeline.pretrain.monitors.telemetry import PEAKS, find_peak_flops, peak_flops_per_second
from pipeline.pretrain.processes import device_and_process_group, launch_command
from pipeline.pretrain.processes.launch_command import count_processes_per_node


@pytest.mark.parametrize(
    ("name", "precision", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H100 NVL", "fp8", 1670),
        ("NVIDIA H200", "fp32", 66.9),
        ("NVIDIA A100-SXM4-40GB", "bf16", 312),
        ("NVIDIA A100-SXM4-40GB", "fp8", None),
        ("NVIDIA A100-SXM-64GB", "bf16", None),  # another chip of the same name
        ("AMD Instinct MI250X", "bf16", 191.5),
        ("AMD Instinct MI250", "bf16", 181.05),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", None),
        ("NVIDIA GeForce RTX 4090", "bf16", None),
        ("CPU", "fp32", None),
    ],
)
def test_peak_flops_by_device(name: str, precision: str, teraflops: float | None) -> None:
    result = peak_flops_per_second(name, precision)
    assert result == (None if teraflops is None else pytest.approx(teraflops * 1e12))
    assert (find_peak_flops(name) is None) == (
        (name not in PEAKS and not any(name.startswith(k) for k in PEAKS)) or "MIG" in name
    )


def test_every_peak_has_a_source_and_fp8_is_faster() -> None:
    assert all(entry.source for entry in PEAKS.values())
    assert all(entry.fp8 is None or entry.fp8 > 1.9 * entry.bf16 for entry in PEAKS.values())
    assert all(entry.fp32 is None or entry.fp32 < entry.bf16 for entry in PEAKS.values())


@pytest.mark.parametrize(
    "name", ["juwels-booster", "local", "lumi", "snellius", "leonardo", "marenostrum5", "jean-zay", "jupiter", "alps"]
)
def test_every_platform_file_is_valid_and_has_its_own_name(name: str) -> None:
    platform_settings = platforms.load_platform_settings(name)
    assert platform_settings.name == name and platform_settings.launch
    processes = count_processes_per_node(platform_settings.launch)
    assert processes == platform_settings.devices
    if platform_settings.device and platform_settings.peak_flops_per_second:
        assert platform_settings.peak_flops_per_second in {entry.bf16 * 1e12 for entry in PEAKS.values()}


def test_lumi_cpu_masks_bind_each_die_to_seven_of_its_cores() -> None:
    launch = platform_files.load_platform("lumi")["launch"]
    masks = [int(mask, 16) for mask in launch.split("mask_cpu:")[1].split(",")]
    assert len(masks) == 8 and all(mask.bit_count() == 7 for mask in masks)
    union = 0
    for mask in masks:
        assert not union & mask
        union |= mask
    domains = [(mask.bit_length() - 1) // 16 for mask in masks]
    assert domains == [3, 3, 1, 1, 0, 0, 2, 2]
    assert not any(union >> core & 1 for core in range(0, 64, 8))


def test_platform_variables_are_set_only_if_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_and_process_group, "find_torch_build", lambda: "rocm")
    monkeypatch.setattr(device_and_process_group, "count_visible_devices", lambda: 8)
    environment = {"NCCL_NET_GDR_LEVEL": "SYS", "USER": "ada", "SLURM_JOB_ID": "7"}
    launch_command.set_platform_variables("lumi", environment)
    device_and_process_group.check_devices("lumi", 8, {})
    written = platforms.load_platform_settings("lumi").environment
    caches = dict.fromkeys(("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"), "/tmp/ada-miopen-7")
    given = {"USER": "ada", "SLURM_JOB_ID": "7", "NCCL_NET_GDR_LEVEL": "SYS"}
    assert environment == {**written, **caches, **given}
    with pytest.raises(InputError, match="launch starts 16 processes on a node where 8 devices are seen"):
        device_and_process_group.check_devices("lumi", 16, {})


def test_missing_gpu_on_a_gpu_platform_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    device_and_process_group.check_devices(None, 1, {})
    device_and_process_group.check_devices("local", 2, {})
    monkeypatch.setattr(device_and_process_group, "count_visible_devices", lambda: 0)
    monkeypatch.setattr(device_and_process_group, "find_torch_build", lambda: "cpu")
    with pytest.raises(InputError, match=r"snellius has cuda devices, but the installed torch is built for cpu"):
        device_and_process_group.check_devices("snellius", 1, {})
    monkeypatch.setattr(device_and_process_group, "find_torch_build", lambda: "rocm")
    with pytest.raises(InputError, match=r"this process sees none \(ROCR_VISIBLE_DEVICES is ''\): start it on"):
        device_and_process_group.check_devices("lumi", 1, {"ROCR_VISIBLE_DEVICES": ""})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cpu_without_a_gpu_uses_gloo() -> None:
    assert (
        device_and_process_group.choose_backend_and_device(3) == ("gloo", torch.device("cpu"))
        and device_and_process_group.get_device_name(torch.device("cpu")) == "CPU"
    )


def test_freed_cpu_tensors_are_reused() -> None:
    program = """
import resource, sys, torch
from pipeline.pretrain.processes import device_and_process_group, launch_command
if "keep" in sys.argv:
    device_and_process_group.keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.empty(2**24).fill_(0)
before = faults()
for _ in range(8):
    torch.empty(2**24).fill_(0)
print(faults() - before)
"""
    mapped, kept = (
        int(subprocess.run([sys.executable, "-c", program, word], capture_output=True, text=True, check=True).stdout)
        for word in ("leave", "keep")
    )
    assert kept < mapped / 4


def test_platform_may_configure_other_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_and_process_group, "count_visible_devices", lambda: 4)
    assert device_and_process_group.choose_backend_and_device(5) == ("nccl", torch.device("cuda", 1))
    monkeypatch.setenv(device_and_process_group.COLLECTIVES, "ucc")
    monkeypatch.setattr(torch.distributed, "is_ucc_available", lambda: True)
    assert device_and_process_group.choose_backend_and_device(1) == ("ucc", torch.device("cuda", 1))
    monkeypatch.setattr(torch.distributed, "is_ucc_available", lambda: False)
    with pytest.raises(InputError, match="PIPELINE_COLLECTIVES is ucc, but the installed torch is built without UCC"):
        device_and_process_group.choose_backend_and_device(1)
