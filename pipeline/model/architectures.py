"""Register the architectures without torch: shapes, sizes and costs; `networks` has the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

ARCHITECTURES = {
    "llama": "pipeline.model.llama_shape",
    "qwen3": "pipeline.model.qwen3_shape",
    "qwen3_moe": "pipeline.model.qwen3_moe_shape",
}
"""By name, the module that declares its `FORMULAS`."""

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class DeviceWork:
    """The work of one device in a pass: `tokens` is its share where `tensor` or `context` devices divide the work."""

    tokens: int
    precision: Precision
    recomputation: bool = False
    """Whether only the input of each block is kept, and one block at a time in full."""
    tensor: int = 1
    context: int = 1

    @property
    def element_bytes(self) -> int:
        return 2 if self.precision == "bf16" else 4


@dataclass(frozen=True)
class ArchitectureFormulas:
    """The declaration of an architecture for a plan."""

    presets: Mapping[str, Mapping[str, Any]]
    """By preset, the fields of `pipeline.model.settings.Architecture` that it sets; names are globally unique."""
    parameter_count: Callable[..., int]
    flops_per_token: Callable[..., int]
    activation_bytes: Callable[..., float]
    """These three have the signatures of the functions of the same name in `pipeline.model.size_and_cost`."""
    active_parameter_count: Callable[..., int] | None = None
    """The same for an architecture with experts; in others all parameters are active."""


def get_architecture_formulas(name: str) -> ArchitectureFormulas:
    formulas: ArchitectureFormulas = import_module(ARCHITECTURES[name]).FORMULAS
    return formulas


def list_presets() -> dict[str, str]:
    """Return the name of the architecture of each preset."""
    return {preset: name for name in ARCHITECTURES for preset in get_architecture_formulas(name).presets}
