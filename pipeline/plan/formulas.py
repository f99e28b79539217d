"""Compute, memory, time, energy and carbon of a training run, each from its published formula."""

from __future__ import annotations

from pipeline.model.settings import Architecture
from pipeline.plan.settings import Precision
from pipeline.plan.strategies import STRATEGIES, Placed

JOULES_PER_KWH = 3_600_000
GENERAL_PURPOSE_FLOPS = 1e23  # indicative criterion for a general-purpose model: Commission guidelines, EU AI Act, 2025

# Bytes per parameter of weights, gradients and optimizer state with Adam. bf16: weights and gradients of 2 bytes, and
# fp32 master weights, first and second moment: Rajbhandari et al. 2020 (ZeRO), section 3.1. fp32 needs no master copy.
STATE_BYTES: dict[Precision, tuple[int, int, int]] = {"bf16": (2, 2, 12), "fp32": (4, 4, 8)}

LOSS_PARTS = 16  # of the logits, of which the loss holds one at a time: `pipeline.model.loss.PARTS`


def training_flops(parameters: float, tokens: float, *, recomputation: bool = False) -> float:
    """Return the floating-point operations of training: 6 N D, or 8 N D where activations are computed again.

    2 N per token forward and 4 N backward, a second forward with recomputation: Kaplan et al. 2020, section 2.1;
    Narayanan et al. 2021, appendix. Attention's own products are not in it (`pipeline.model.size.flops_per_token`).
    """
    return (8 if recomputation else 6) * parameters * tokens


def model_state_bytes(
    parameters: float, *, strategy: str, precision: Precision, devices: int, node: int | None = None
) -> float:
    """Return the bytes on one device of weights, gradients and Adam's state.

    `node` devices share one copy in a hybrid strategy; without it all do. Buffers, fragmentation and the weights that a
    sharded strategy gathers for one block at a time come on top.
    """
    share: dict[Placed, float] = {"all": 1.0, "share": 1 / devices, "node": 1 / (node or devices), "host": 0.0}
    pairs = zip(STATE_BYTES[precision], STRATEGIES[strategy].places, strict=True)
    return sum(parameters * size * share[placed] for size, placed in pairs)


def activation_bytes(
    architecture: Architecture,
    vocabulary_size: int,
    *,
    tokens: int,
    precision: Precision,
    recomputation: bool = False,
    tensor: int = 1,
) -> float:
    """Return the bytes that one device holds at most for the backward pass of `tokens` tokens, besides model state.

    Korthikanti et al. 2022 (Reducing activation recomputation), section 4, counted for this architecture and an
    attention kernel that keeps no matrix of scores. A block keeps, per token, 4 D + 2 H + 2 K + 4 F elements: the
    inputs of both norms and of the attention's and the feed-forward's projections (4 D), the queries and the
    attention's result (2 H, H the joint width of the heads), keys and values (2 K, K theirs), gate, its activation, up
    and their product (4 F). With recomputation only the input of each block stays (D), and one block at a time in full.

    The output keeps its norm's input and result and the latter's gradient (3 D). The loss takes a sixteenth of the fp32
    logits at a time (`pipeline.model.loss`), in bf16 with a copy, and then the output weight's gradient also exists in
    fp32. Where `tensor` devices split the model, `tokens` is the share of one of them: the inputs of the projections
    (2 D) and all logits are those of the whole group, the logits with probabilities and gradient in fp32.
    """
    a = architecture
    block = 2 * (1 + tensor) * a.width + 2 * (a.heads + a.groups) * a.head_dimension + 4 * a.hidden
    blocks = a.layers * a.width + block if recomputation else a.layers * block
    element, copy = (2, 2) if precision == "bf16" else (4, 0)
    if tensor > 1:
        return tokens * (element * (blocks + 2 * a.width) + 12 * tensor * vocabulary_size)
    weight_gradient = 4 * vocabulary_size * a.width if precision == "bf16" else 0
    logits = (4 + copy) * vocabulary_size / LOSS_PARTS
    return tokens * (element * (blocks + 3 * a.width) + logits) + weight_gradient


def duration_seconds(flops: float, *, devices: int, peak_flops_per_second: float, utilization: float) -> float:
    """Return the time that devices of a given peak need at a given utilization of it (1 = all of the peak)."""
    return flops / (devices * peak_flops_per_second * utilization)


def energy_joules(seconds: float, *, devices: int, device_power_watts: float) -> float:
    """Return the energy of the devices, each at a constant power; without the building's overhead."""
    return seconds * devices * device_power_watts


def carbon_grams(joules: float, *, pue: float, carbon_intensity_grams_per_kwh: float) -> float:
    """Return grams of CO2 equivalent: energy x PUE x intensity.

    PUE is the building's energy over that of computing: Patterson et al. 2021, section 2.
    """
    return joules / JOULES_PER_KWH * pue * carbon_intensity_grams_per_kwh


def tensor_parallel_degrees(architecture: Architecture, largest: int = 8) -> list[int]:
    """Return the degrees up to `largest` by which the attention splits: divisors of heads and of key-value heads."""
    a = architecture
    return [degree for degree in range(1, largest + 1) if a.heads % degree == 0 and a.groups % degree == 0]
