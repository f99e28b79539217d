"""What another shape or mesh would bring: each with its expected gain and who says so."""

from __future__ import annotations

import math
from typing import Any

from pipeline.model.size import flops_per_token
from pipeline.plan.settings import ModelPlan, PlatformPlan

UNIT = 64
"""Elements of two bytes that fill the 128 bytes in which an A100's or H100's matrix units read best: Anthony et al.
2024 (The Case for Co-Designing Model Architectures with Hardware, arXiv 2401.14489), section 3."""
SHAPES = "Anthony et al. 2024, arXiv 2401.14489"
UP_TO = "up to 39 % of the throughput, between shapes of as many parameters"


def advice(model: ModelPlan, platform: PlatformPlan, planned: dict[str, Any]) -> list[dict[str, str]]:
    """Return what could be better, each with `advice`, `gain` and `source`; `planned` is its part of the plan."""
    return [*_widths(model), *_key_value_heads(model, platform), *_stages(model, planned)]


def _told(advice: str, gain: str, source: str) -> dict[str, str]:
    return {"advice": advice, "gain": gain, "source": source}


def _next(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _widths(model: ModelPlan) -> list[dict[str, str]]:
    """Return which sizes of matrices on one device are no multiple of the unit."""
    a, t = model.architecture, model.training.mesh.tensor
    found = []
    if a.head_dimension % UNIT:
        better = _next(a.head_dimension, UNIT)
        heads = f"{a.width // better} heads" if a.width % better == 0 else f"head_width {better}"
        found.append(_told(f"a head has {a.head_dimension}: {better}, such as by {heads}", UP_TO, SHAPES))
    if a.width % UNIT:
        found.append(_told(f"the width is {a.width}: {_next(a.width, UNIT)}", UP_TO, SHAPES))
    unit = UNIT * t
    if a.hidden % unit:
        words = f"the feed-forward width is {a.hidden}: {_next(a.hidden, unit)}, a multiple of {UNIT} on each device"
        found.append(_told(words, UP_TO, SHAPES))
    if model.vocabulary_size % unit:
        each = flops_per_token(a, model.vocabulary_size, model.training.sequence_length)
        share = 6 * a.width * model.vocabulary_size / each
        found.append(
            _told(
                f"the vocabulary has {model.vocabulary_size:,}: {_next(model.vocabulary_size, unit):,}",
                f"of the output's product, {100 * share:.0f} % of the operations",
                SHAPES,
            )
        )
    return found


def _key_value_heads(model: ModelPlan, platform: PlatformPlan) -> list[dict[str, str]]:
    """Return whether the tensor devices, or those of a node where there are none, could split the attention."""
    a, t = model.architecture, model.training.mesh.tensor
    degrees = [t] if t > 1 else [d for d in range(2, platform.devices + 1) if platform.devices % d == 0]
    if not degrees or any(a.heads % d == 0 and a.groups % d == 0 for d in degrees):
        return []
    numbers = [n for n in range(a.groups, a.heads + 1) if a.heads % n == 0 and n % degrees[0] == 0]
    better = (
        f"{numbers[0]} of {a.heads} heads" if numbers else f"a multiple of {degrees[0]}, and heads a multiple of it"
    )
    parts = " to ".join(f"1/{d}" for d in dict.fromkeys((degrees[0], degrees[-1])))
    return [
        _told(
            f"{a.groups} key-value heads split over none of {', '.join(map(str, degrees))} devices: {better}",
            f"tensor parallelism, which leaves {parts} of a block's matrices and activations on a device",
            "Korthikanti et al. 2022, arXiv 2205.05198, section 4.2",
        )
    ]


def _stages(model: ModelPlan, planned: dict[str, Any]) -> list[dict[str, str]]:
    """Return whether stages are equal, and what more micro-batches would save of their bubble."""
    a, p = model.architecture, model.training.mesh.pipeline
    if p == 1:
        return []
    source = "Narayanan et al. 2021, arXiv 2104.04473, section 2.2"
    found = []
    if a.layers % p:
        words = f"{a.layers} layers on {p} stages: {_next(a.layers, p)}, or training refuses them"
        found.append(
            _told(words, f"the longest stage sets the pace: {math.ceil(a.layers / p) * p / a.layers - 1:.1%}", source)
        )
    data = max(planned["devices_used"] // (model.training.mesh.tensor * p * model.training.mesh.context), 1)
    m = max(model.training.batch_size // (data * model.training.micro_batch_size), 1)
    now, then = (p - 1) / (m + p - 1), (p - 1) / (4 * p + p - 1)
    if m < 4 * p:
        words = f"{m} micro-batches on {p} stages: {4 * p}, by a larger batch_size or fewer devices"
        found.append(_told(words, f"{100 * (now - then):.0f} % of the step: the bubble is {100 * now:.0f} %", source))
    return found
