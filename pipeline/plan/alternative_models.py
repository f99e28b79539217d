"""Advise other shapes and meshes for a model, and plan models of other sizes for the platform."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import flops_per_token, parameter_count
from pipeline.plan.settings import MeshPlan, ModelPlan, PlatformPlan, TrainingPlan
from pipeline.plan.training_cost_formulas import tensor_parallel_degrees, work_per_pipeline_rank
from pipeline.plan.training_step_operations import count_key_value_heads_read
from pipeline.plan.training_time import explain_unknown_step_time

PRESETS = ("llama3-1b", "llama3-3b", "llama3-8b", "gptnl-30b", "llama3-70b")
TOKENS_PER_PARAMETER = {
    20: "Chinchilla (Hoffmann et al. 2022)",
    200: "ten times as many",
    1875: "Llama 3 8B (15 trillion tokens)",
}
VOCABULARY_SIZE, SEQUENCE_LENGTH = 128_256, 8192  # of Llama 3
BATCH_SIZE = 512
"""Minimum sequences in a step, 4 million tokens: the batch at the start of Llama 3 (Grattafiori et al. 2024, section
3.4.1). More devices get more."""
SIZE_KEYS = (
    *("seconds", "device_hours", "energy_joules", "carbon_grams", "water_liters", "cost_euros"),
    *("published_least_seconds", "published_most_seconds"),
)


def plan_model_sizes(planned: Callable[[ModelPlan], dict[str, Any]], platform: PlatformPlan) -> list[dict[str, Any]]:
    """Return a row for each model size and number of tokens; none where the platform states no peak.

    Each size takes the fastest settings that fit into memory: strategy, tensor parallelism within a node, micro-batch
    size, full recomputation or none. A size that never fits has no figures.

    Args:
        planned: returns the plan of a model.
    """
    if platform.peak_flops_per_second is None:
        return []
    rows = []
    for preset in PRESETS:
        architecture = Architecture.model_validate({"preset": preset})
        parameters = parameter_count(architecture, VOCABULARY_SIZE)
        best = _find_fastest(architecture, planned, platform)
        for ratio in TOKENS_PER_PARAMETER:
            row = {
                "model": preset,
                "parameters": parameters,
                "tokens_per_parameter": ratio,
                "tokens": ratio * parameters,
            }
            rows.append(row | _estimate_training_cost(best, ratio * parameters, planned))
    return rows


def _estimate_training_cost(
    best: ModelPlan | None, tokens: int, planned: Callable[[ModelPlan], dict[str, Any]]
) -> dict[str, Any]:
    """Return the cost of training on so many tokens with the chosen settings, and these."""
    if best is None:
        return {"way": None, **dict.fromkeys(SIZE_KEYS)}
    t = best.training
    steps = math.ceil(tokens / (t.batch_size * t.sequence_length))
    plan = planned(best.model_copy(update={"training": t.model_copy(update={"steps": steps})}))
    way = f"{t.strategy}, tensor {t.mesh.tensor}, micro-batch {t.micro_batch_size}, recomputation {t.recomputation}"
    return {"way": way, **{key: plan[key] for key in SIZE_KEYS}}


def _find_fastest(
    architecture: Architecture, planned: Callable[[ModelPlan], dict[str, Any]], platform: PlatformPlan
) -> ModelPlan | None:
    """Return the fastest settings that fit, the first of equal ones; None where none fits."""
    candidates: list[tuple[float, ModelPlan]] = []
    for model in _list_candidates(architecture, platform):
        plan = planned(model)
        recomputes = model.training.recomputation == "full"
        if plan["memory_fits_with_recomputation" if recomputes else "memory_fits"] is not False:
            candidates.append((plan["step_seconds"] or math.inf, model))
    return min(candidates, key=lambda pair: pair[0])[1] if candidates else None


def _list_candidates(architecture: Architecture, platform: PlatformPlan) -> Iterator[ModelPlan]:
    """Yield settings to train a model on all devices; only one where step times cannot be computed."""
    devices = platform.devices * platform.nodes
    degrees = [t for t in tensor_parallel_degrees(architecture, platform.devices) if platform.devices % t == 0]
    for strategy, tensor, micro, recomputation in product(
        ("hybrid_shard", "shard_optimizer", "shard_grad_op", "full_shard"), degrees, (1, 2, 4), ("none", "full")
    ):
        data = devices // tensor
        training = TrainingPlan(
            strategy=strategy,
            mesh=MeshPlan(tensor=tensor),
            precision="bf16",
            sequence_length=SEQUENCE_LENGTH,
            batch_size=-(-BATCH_SIZE // (data * micro)) * data * micro,
            micro_batch_size=micro,
            steps=1,
            recomputation=recomputation,
            compile=True,
        )
        model = ModelPlan(architecture=architecture, training=training, vocabulary_size=VOCABULARY_SIZE)
        yield model
        if explain_unknown_step_time(model, platform, devices):
            return


# Advice on other shapes and meshes of a model, each with its expected gain and source.


TILE_ELEMENTS = 64
"""Matrix units of an A100 or H100 are fastest on multiples of 128 bytes, 64 elements of two bytes: Anthony et al. 2024
(The Case for Co-Designing Model Architectures with Hardware, arXiv 2401.14489), section 3."""
SHAPE_SOURCE = "Anthony et al. 2024, arXiv 2401.14489"
IMBALANCE_THRESHOLD = 0.05
"""Share of a stage's time. A longer wait for the longest stage is worth another number of layers."""
SHAPE_GAIN = "up to 39 % of the throughput, measured between shapes with equally many parameters"


def advise_shapes(model: ModelPlan, platform: PlatformPlan, planned: dict[str, Any]) -> list[dict[str, str]]:
    """Return advice on the model's shape and mesh, each with `advice`, `gain` and `source`.

    Args:
        planned: the model's entry in the plan.
    """
    return [*_advise_widths(model), *_advise_heads(model, platform), *_advise_pipeline(model, planned)]


def _make_advice(advice: str, gain: str, source: str) -> dict[str, str]:
    return {"advice": advice, "gain": gain, "source": source}


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _advise_widths(model: ModelPlan) -> list[dict[str, str]]:
    """Return advice on matrix sizes that are not a multiple of `TILE_ELEMENTS` on each device."""
    a, t = model.architecture, model.training.mesh.tensor
    advice = []

    def advise_multiple(name: str, size: int, unit: int, remedy: str = "", gain: str = SHAPE_GAIN) -> None:
        if size % unit:
            words = f"the {name} is {size:,}; {_round_up(size, unit):,}{remedy} would be faster"
            advice.append(_make_advice(words, gain, SHAPE_SOURCE))

    head = _round_up(a.head_dimension, TILE_ELEMENTS)
    number = a.width // head
    heads = f"{number} head{'s' * (number != 1)}" if a.width % head == 0 else f"head_width {head}"
    advise_multiple("head width", a.head_dimension, TILE_ELEMENTS, f", with {heads},")
    advise_multiple("width", a.width, TILE_ELEMENTS)
    advise_multiple(
        "feed-forward width",
        a.intermediate_width,
        TILE_ELEMENTS * t,
        f", a multiple of {TILE_ELEMENTS} on each device,",
    )
    each = flops_per_token(a, model.vocabulary_size, model.training.sequence_length)
    share = 6 * a.width * model.vocabulary_size / each
    gain = f"of the output's matrix product, which takes {100 * share:.0f} % of the operations"
    advise_multiple("vocabulary size", model.vocabulary_size, TILE_ELEMENTS * t, gain=gain)
    return advice


def _advise_heads(model: ModelPlan, platform: PlatformPlan) -> list[dict[str, str]]:
    """Return advice where attention heads do not divide over the tensor-parallel devices, or else those of a node."""
    a, t = model.architecture, model.training.mesh.tensor
    degrees = [t] if t > 1 else [d for d in range(2, platform.devices + 1) if platform.devices % d == 0]
    source = "Korthikanti et al. 2022, arXiv 2205.05198, section 4.2"
    if degrees and all(a.heads % d for d in degrees):
        parts = " to ".join(f"1/{d}" for d in dict.fromkeys((degrees[0], degrees[-1])))
        numbers = " or ".join(map(str, degrees))
        words = f"{a.heads} heads do not divide over {numbers} devices; a multiple of {degrees[0]} would"
        gain = f"tensor parallelism, with {parts} of a block's matrices and activations on a device"
        return [_make_advice(words, gain, source)]
    if a.key_value_head_count % t == 0:
        return []
    better = next(
        number for number in range(a.key_value_head_count, a.heads + 1) if a.heads % number == number % t == 0
    )
    words = f"{a.key_value_head_count} key-value heads do not divide over {t} devices; {better} would"
    read = count_key_value_heads_read(a.key_value_head_count, t)
    gain = (
        f"each device computes {read} of them instead of {a.key_value_head_count / t:.3g} and holds the matrices of all"
    )
    return [_make_advice(words, gain, source)]


def _stage_imbalance(model: ModelPlan, layers: int) -> float:
    """Return how much longer the longest stage is than the mean, as a share of the mean."""
    architecture = model.architecture.model_copy(update={"layers": layers})
    work = work_per_pipeline_rank(architecture, model.vocabulary_size, model.training)
    return max(work) * len(work) / sum(work) - 1


def _advise_pipeline(model: ModelPlan, planned: dict[str, Any]) -> list[dict[str, str]]:
    """Return advice on unequal pipeline stages, and on a bubble that more micro-batches would make smaller."""
    a, p = model.architecture, model.training.mesh.pipeline
    if p == 1:
        return []
    source = "Narayanan et al. 2021, arXiv 2104.04473, section 2.2"
    advice = []
    waits = {layers: _stage_imbalance(model, layers) for layers in range(a.layers, a.layers + p + 1)}
    if waits[a.layers] > IMBALANCE_THRESHOLD:
        better = min(waits, key=waits.__getitem__)
        words = f"{a.layers} layers and the output make {p} unequal stages; {better} layers would be more equal"
        advice.append(_make_advice(words, f"the longest stage takes {waits[a.layers]:.1%} more than the mean", source))
    data = max(planned["devices_used"] // (model.training.mesh.tensor * p * model.training.mesh.context), 1)
    m = max(model.training.batch_size // (data * model.training.micro_batch_size), 1)
    idle = (p - 1) / model.training.mesh.interleaving
    now, then = idle / (m + idle), idle / (4 * p + idle)
    if m < 4 * p:
        words = f"{p} stages wait less with {4 * p} than with {m} micro-batches: raise batch_size or take fewer devices"
        gain = f"{100 * (now - then):.0f} % of the step, of which the bubble takes {100 * now:.0f} %"
        advice.append(_make_advice(words, gain, source))
    return advice
