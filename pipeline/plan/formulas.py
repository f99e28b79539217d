"""Compute, memory, time and energy of a training, by published formulas, and the layers of each pipeline stage."""

from __future__ import annotations

from itertools import accumulate, pairwise

from pipeline.model.settings import Architecture
from pipeline.model.size import flops_per_token, parameter_count
from pipeline.plan.settings import Precision, TrainingPlan
from pipeline.plan.strategies import STRATEGIES, Placement

GENERAL_PURPOSE_FLOPS = 1e23  # indicative criterion for a general-purpose model: Commission guidelines, EU AI Act, 2025

# Bytes per parameter of weights, gradients and optimizer state with Adam. bf16: weights and gradients of 2 bytes, and
# fp32 master weights, first and second moment: Rajbhandari et al. 2020 (ZeRO), section 3.1. fp32 needs no master copy.
STATE_BYTES: dict[Precision, tuple[int, int, int]] = {"bf16": (2, 2, 12), "fp32": (4, 4, 8)}


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
    sharded strategy gathers (`gathered_bytes`) come on top.
    """
    share: dict[Placement, float] = {"all": 1.0, "share": 1 / devices, "node": 1 / (node or devices)}
    pairs = zip(STATE_BYTES[precision], STRATEGIES[strategy].placements, strict=True)
    return sum(parameters * size * share.get(placed, 0.0) for size, placed in pairs)


def gathered_bytes(architecture: Architecture, vocabulary_size: int, training: TrainingPlan) -> float:
    """Return the bytes on one device of weights that it holds a share of, and gathers to compute with.

    Embedding and output, gathered for the whole step, and two blocks: one that computes, and the next one, which is
    gathered meanwhile (Zhao et al. 2023, sections 3.3 and 4.2). A process of a pipeline holds all of its layers
    gathered, so that no micro-batch gathers them again; a device has its share of a block's experts.
    """
    if not STRATEGIES[training.strategy].reshards_after_forward:
        return 0.0
    a, mesh, size = architecture, training.mesh, STATE_BYTES[training.precision][0]
    at_once = a if mesh.pipeline > 1 else a.model_copy(update={"layers": min(a.layers, 2)})
    layers = max(layers_per_pipeline_rank(at_once, vocabulary_size, training))
    elsewhere = layers * 3 * a.width * a.hidden * (a.experts or 0) * (1 - 1 / mesh.expert)
    norm = a.width / mesh.tensor if mesh.pipeline == 1 else 0.0
    return size * (parameters_per_device(at_once, vocabulary_size, training) - norm - elsewhere)


def score_bytes(architecture: Architecture, training: TrainingPlan, tokens: int, *, recomputation: bool) -> float:
    """Return the bytes of attention's scores on one device, in fp32; none with FlashAttention, which keeps none.

    Each token has one with each position, in each head, of each block or, with recomputation, of one; the gradients of
    the softmax and of its argument come on top in the block whose gradient is made.

    Args:
        tokens: a device's share of those of a micro-batch, over the tensor and context devices.
    """
    if training.flash_attention:
        return 0.0
    blocks = (1 if recomputation else architecture.layers) + 2
    return 4.0 * tokens * training.sequence_length * architecture.heads * blocks


def duration_seconds(flops: float, *, devices: int, peak_flops_per_second: float, utilization: float) -> float:
    """Return the time that devices of a given peak need at a given utilization of it (1 = all of the peak)."""
    return flops / (devices * peak_flops_per_second * utilization)


def energy_joules(seconds: float, *, devices: int, device_power_watts: float) -> float:
    """Return the energy of the devices, each at a constant power; without the building's overhead."""
    return seconds * devices * device_power_watts


def tensor_parallel_degrees(architecture: Architecture, largest: int = 8) -> list[int]:
    """Return the degrees up to `largest` by which the attention splits: divisors of the heads."""
    return [degree for degree in range(1, largest + 1) if architecture.heads % degree == 0]


# Layers of each pipeline stage, and the load of the process that has most.


def output_cost_in_layers(architecture: Architecture, vocabulary_size: int, sequence_length: int) -> float:
    """Return how many layers take as many operations as the output with its loss: 6 V D of a token."""
    output = 6 * vocabulary_size * architecture.width
    all_layers = flops_per_token(architecture, vocabulary_size, sequence_length) - output
    return output * architecture.layers / all_layers


def divide_layers(
    architecture: Architecture, vocabulary_size: int, sequence_length: int, stages: int
) -> tuple[range, ...]:
    """Return the layers of each stage, in order and at least one, so that the longest stage is as short as can be.

    The output counts as `output_cost_in_layers` layers of the last stage; the embedding takes no matrix product. Among
    equally good divisions, the last stage gets most layers, then the later stages, which hold fewer micro-batches.
    """
    layers = architecture.layers
    if stages == 1:
        return (range(layers),)
    output, others = output_cost_in_layers(architecture, vocabulary_size, sequence_length), stages - 1

    def longest(last: int) -> float:
        return max(-((last - layers) // others), last + output)

    last = min(range(layers - others, 0, -1), key=longest)
    each, more = divmod(layers - last, others)
    numbers = [each] * (others - more) + [each + 1] * more + [last]
    return tuple(range(*pair) for pair in pairwise(accumulate(numbers, initial=0)))


def layers_per_pipeline_rank(architecture: Architecture, vocabulary_size: int, training: TrainingPlan) -> list[int]:
    """Return the number of layers of each process of a pipeline; the first has the embedding, the last the output."""
    m = training.mesh
    parts = divide_layers(architecture, vocabulary_size, training.sequence_length, m.pipeline * m.interleaving)
    return [sum(map(len, parts[process :: m.pipeline])) for process in range(m.pipeline)]


def work_per_pipeline_rank(architecture: Architecture, vocabulary_size: int, training: TrainingPlan) -> list[float]:
    """Return what each process of a pipeline computes, in layers: see `output_cost_in_layers`."""
    *others, last = layers_per_pipeline_rank(architecture, vocabulary_size, training)
    return [*others, last + output_cost_in_layers(architecture, vocabulary_size, training.sequence_length)]


def layers_in_flight(architecture: Architecture, vocabulary_size: int, training: TrainingPlan) -> int:
    """Return of how many layers a process holds what the backward pass needs: of its layers, a micro-batch each.

    1F1B has a micro-batch under way for each stage from this one on; interleaved, each of the v parts of process r of p
    runs (v - 1) p + 2 (p - 1 - r) times before the first backward pass, and once more (Narayanan et al. 2021, section
    2.2).
    """
    p, v = training.mesh.pipeline, training.mesh.interleaving
    numbers = layers_per_pipeline_rank(architecture, vocabulary_size, training)
    if v == 1:
        return max(number * (p - process) for process, number in enumerate(numbers))
    return max(-(-number * ((v - 1) * p + 2 * (p - 1 - r) + 1) // v) for r, number in enumerate(numbers))


def parameters_per_device(architecture: Architecture, vocabulary_size: int, training: TrainingPlan) -> float:
    """Return the parameters of the process of a pipeline that has most, those of all that share its state.

    The tensor devices split all of them but the matrices of key-value heads that they do not divide, which each has.
    """
    a, t = architecture, training.mesh.tensor
    shared = 2 * a.width * a.groups * a.head_dimension if a.groups % t else 0
    table = vocabulary_size * a.width
    tables = 1 if a.tie_embeddings else 2
    block = (parameter_count(a, vocabulary_size) - tables * table - a.width) / a.layers
    numbers = layers_per_pipeline_rank(a, vocabulary_size, training)
    outside = [0.0] * len(numbers)
    outside[0] += table
    outside[-1] += a.width + (tables - 1) * table
    return max(
        number * ((block - shared) / t + shared) + other / t for number, other in zip(numbers, outside, strict=True)
    )
