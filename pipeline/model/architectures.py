"""Which architectures there are, a line each, and what is known of them without torch; `networks` has the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from pipeline.model.settings import Architecture

ARCHITECTURES = {
    "llama": "pipeline.model.llama",
}
"""By name, the package that declares its `SHAPE`."""

Precision = Literal["fp32", "bf16"]


class FlopsPerToken(Protocol):
    """See `pipeline.model.size.flops_per_token`."""

    def __call__(
        self, architecture: Architecture, vocabulary_size: int, sequence_length: int, *, recomputation: bool
    ) -> int: ...


class ParameterCount(Protocol):
    """See `pipeline.model.size.parameter_count`."""

    def __call__(self, architecture: Architecture, vocabulary_size: int) -> int: ...


class ActivationBytes(Protocol):
    """See `pipeline.model.size.activation_bytes`."""

    def __call__(
        self,
        architecture: Architecture,
        vocabulary_size: int,
        *,
        tokens: int,
        precision: Precision,
        recomputation: bool,
        tensor: int,
    ) -> float: ...


@dataclass(frozen=True)
class Shape:
    """An architecture as a plan knows it."""

    presets: Mapping[str, Mapping[str, Any]]
    """By name, the fields of `pipeline.model.settings.Architecture` that it fills; no other architecture has it."""
    parameter_count: ParameterCount
    flops_per_token: FlopsPerToken
    activation_bytes: ActivationBytes


def shape(name: str) -> Shape:
    """Return what the architecture of that name declares."""
    found: Shape = import_module(ARCHITECTURES[name]).SHAPE
    return found


def presets() -> dict[str, str]:
    """Return all presets, each with the name of its architecture."""
    return {preset: name for name in ARCHITECTURES for preset in shape(name).presets}
