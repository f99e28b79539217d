"""What one device can compute at best, by the name that it gives itself; what is not here is not known.

Dense figures: where a vendor's sheet states them with sparsity, which training does not use, they are half of it.
"""

from __future__ import annotations

from typing import NamedTuple

TERA = 1e12


class Peak(NamedTuple):
    """Multiply-adds on matrices, counted as two operations, in 10^12 per second; None where there is no such unit."""

    bf16: float
    fp8: float | None
    fp32: float | None
    source: str


# By the beginning of the device's name; of two that fit, the longer one counts. fp32 is full precision, not TF32.
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
    # These two name each of their dies a device.
    "AMD Instinct MI250": Peak(181.05, None, 45.25, "AMD, MI250 data sheet, half a module, matrix"),
    "AMD Instinct MI250X": Peak(191.5, None, 47.85, "AMD, MI250X data sheet, half a module, matrix"),
    "AMD Instinct MI300X": Peak(1307.4, 2614.9, 163.4, "AMD, MI300X data sheet, matrix, dense"),
}


def peak(device_name: str) -> Peak | None:
    """Return the figures of a device, or None for one that is not in the table or a part of one (MIG)."""
    fitting = [name for name in PEAKS if device_name.startswith(name)]
    return PEAKS[max(fitting, key=len)] if fitting and "MIG" not in device_name else None


def peak_flops_per_second(device_name: str, precision: str) -> float | None:
    """Return what a device can reach in `bf16`, `fp8` or `fp32`, or None where it is not known."""
    found = peak(device_name)
    figure = {"bf16": found.bf16, "fp8": found.fp8, "fp32": found.fp32}[precision] if found else None
    return figure * TERA if figure else None
