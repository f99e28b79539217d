"""How long models of one to seventy billion parameters would take on the platform, by how many tokens each sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from pipeline.model.settings import Architecture
from pipeline.model.size import parameter_count
from pipeline.plan.formulas import tensor_parallel_degrees
from pipeline.plan.run_time import obstacles
from pipeline.plan.settings import MeshPlan, ModelPlan, PlatformPlan, TrainingPlan

PRESETS = ("llama3-1b", "llama3-3b", "llama3-8b", "gptnl-30b", "llama3-70b")
TOKENS_PER_PARAMETER = {
    20: "Chinchilla (Hoffmann et al. 2022)",
    200: "ten times as many",
    1875: "Llama 3 8B (15 trillion tokens)",
}
VOCABULARY_SIZE, SEQUENCE_LENGTH = 128_256, 8192  # of Llama 3
BATCH_SIZE = 512
"""Sequences in a step at least, of 4 million tokens together: that of Llama 3 at its start (Grattafiori et al. 2024,
section 3.4.1); more where there are more devices."""
KEPT = (
    *("seconds", "device_hours", "energy_joules", "carbon_grams", "water_liters", "cost_euros"),
    *("published_least_seconds", "published_most_seconds"),
)


def sizes(planned: Callable[[ModelPlan], dict[str, Any]], platform: PlatformPlan) -> list[dict[str, Any]]:
    """Return a row for each size and number of tokens; none where the platform states no peak.

    Each size is trained in the fastest of the ways that fit into memory by the plan: strategy, tensor parallelism
    within a node, micro-batch, full recomputation or none. A size that fits in no way has no figures.

    Args:
        planned: what the plan says of a model.
    """
    if platform.peak_flops_per_second is None:
        return []
    rows = []
    for preset in PRESETS:
        architecture = Architecture.model_validate({"preset": preset})
        parameters = parameter_count(architecture, VOCABULARY_SIZE)
        best = _fastest(architecture, planned, platform)
        for ratio in TOKENS_PER_PARAMETER:
            row = {
                "model": preset,
                "parameters": parameters,
                "tokens_per_parameter": ratio,
                "tokens": ratio * parameters,
            }
            rows.append(row | _figures(best, ratio * parameters, planned))
    return rows


def _figures(best: ModelPlan | None, tokens: int, planned: Callable[[ModelPlan], dict[str, Any]]) -> dict[str, Any]:
    """Return what so many tokens cost in the way that was chosen, and the way."""
    if best is None:
        return {"way": None, **dict.fromkeys(KEPT)}
    t = best.training
    steps = math.ceil(tokens / (t.batch_size * t.sequence_length))
    found = planned(best.model_copy(update={"training": t.model_copy(update={"steps": steps})}))
    way = f"{t.strategy}, tensor {t.mesh.tensor}, micro-batch {t.micro_batch_size}, recomputation {t.recomputation}"
    return {"way": way, **{key: found[key] for key in KEPT}}


def _fastest(
    architecture: Architecture, planned: Callable[[ModelPlan], dict[str, Any]], platform: PlatformPlan
) -> ModelPlan | None:
    """Return the fastest way that fits, the first of equal ones; None where none fits."""
    found: list[tuple[float, ModelPlan]] = []
    for model in _ways(architecture, platform):
        told = planned(model)
        again = model.training.recomputation == "full"
        if told["memory_fits_with_recomputation" if again else "memory_fits"] is not False:
            found.append((told["step_seconds"] or math.inf, model))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _ways(architecture: Architecture, platform: PlatformPlan) -> Iterator[ModelPlan]:
    """Yield the ways to train a model on all devices; one alone where steps cannot be counted."""
    devices = platform.devices * platform.nodes
    degrees = [t for t in tensor_parallel_degrees(architecture, platform.devices) if platform.devices % t == 0]
    for strategy, tensor, micro, again in product(
        ("hybrid_shard", "shard_grad_op", "full_shard"), degrees, (1, 2, 4), ("none", "full")
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
            recomputation=again,
            compile=True,
        )
        model = ModelPlan(architecture=architecture, training=training, vocabulary_size=VOCABULARY_SIZE)
        yield model
        if obstacles(model, platform, devices):
            return
