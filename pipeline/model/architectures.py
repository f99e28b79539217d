"""List the architectures, a line each, with what is known of them without torch; `networks` has the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

ARCHITECTURES = {
    "llama": "pipeline.model.llama",
    "qwen3": "pipeline.model.qwen3",
    "qwen3_moe": "pipeline.model.qwen3_moe",
}
"""By name, the package that declares its `SHAPE`."""

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class DeviceWork:
    """What one device computes at once: `tokens` is its share where `tensor` or `context` devices divide the work."""

    tokens: int
    precision: Precision
    recomputation: bool = False
    """Whether only the input of each block stays, and one block at a time in full."""
    tensor: int = 1
    context: int = 1

    @property
    def element_bytes(self) -> int:
        """Return the bytes of a number in this precision."""
        return 2 if self.precision == "bf16" else 4


@dataclass(frozen=True)
class Shape:
    """An architecture as a plan knows it."""

    presets: Mapping[str, Mapping[str, Any]]
    """By name, the fields of `pipeline.model.settings.Architecture` that it fills; no other architecture has it."""
    parameter_count: Callable[..., int]
    flops_per_token: Callable[..., int]
    activation_bytes: Callable[..., float]
    """These three are called as those of `pipeline.model.size`, which say what they return."""
    active_parameter_count: Callable[..., int] | None = None
    """Likewise of an architecture with experts; all parameters of another are active."""


def get_shape(name: str) -> Shape:
    """Return what the architecture of that name declares."""
    found: Shape = import_module(ARCHITECTURES[name]).SHAPE
    return found


def list_presets() -> dict[str, str]:
    """Return all presets, each with the name of its architecture."""
    return {preset: name for name in ARCHITECTURES for preset in get_shape(name).presets}
