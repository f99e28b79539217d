"""Compute compute, memory, time and energy of a training by published formulas, and divide layers over a pipeline."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import NamedTuple

from pipeline.model.architectures import DeviceWork
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import activation_bytes, flops_per_token, parameter_count
from pipeline.plan.settings import Precision, TrainingPlan
from pipeline.plan.sharding_strategy_definitions import STRATEGIES, Placement

GENERAL_PURPOSE_FLOPS = 1e23  # indicative criterion for a general-purpose model: Commission guidelines, EU AI Act, 2025

# Bytes per parameter of weights, gradients and optimizer state with Adam. bf16: weights and gradients of 2 bytes, and
# fp32 master weights, first and second moment: Rajbhandari et al. 2020 (ZeRO), section 3.1. fp32 needs no master copy.
STATE_BYTES: dict[Precision, tuple[int, int, int]] = {"bf16": (2, 2, 12), "fp32": (4, 4, 8)}


def training_flops(parameters: float, tokens: float, *, recomputation: bool = False) -> float:
    """Return the floating-point operations of training: 6 N D, or 8 N D where activations are computed again.

    2 N per token forward and 4 N backward, a second forward with recomputation: Kaplan et al. 2020, section 2.1;
    Narayanan et al. 2021, appendix. Attention's own products are excluded
    (`pipeline.model.size_and_cost.flops_per_token`).
    """
    return (8 if recomputation else 6) * parameters * tokens


def model_state_bytes(
    parameters: float, *, strategy: str, precision: Precision, devices: int, node: int | None = None
) -> float:
    """Return the bytes on one device of weights, gradients and Adam's state.

    `node` devices share one copy in a hybrid strategy, by default all. Gradients that a device sums over micro-batches
    whole are float32. The result excludes buffers, fragmentation and the weights that a sharded strategy gathers
    (`gathered_bytes`).
    """
    share: dict[Placement, float] = {"all": 1.0, "share": 1 / devices, "node": 1 / (node or devices)}
    weights, gradients, optimizer = STATE_BYTES[precision]
    if STRATEGIES[strategy].reduces_gradients_once:
        gradients = 4
    pairs = zip((weights, gradients, optimizer), STRATEGIES[strategy].state_placements, strict=True)
    return sum(parameters * size * share.get(placed, 0.0) for size, placed in pairs)


def gathered_bytes(architecture: Architecture, vocabulary_size: int, training: TrainingPlan) -> float:
    """Return the bytes of sharded weights that one device gathers to compute with.

    It gathers embedding and output for the whole step, and two blocks: the one that computes, and the next one (Zhao et
    al. 2023, sections 3.3 and 4.2). A process of a pipeline keeps all of its layers gathered, so that no micro-batch
    gathers them again; a device has its share of a block's experts.
    """
    if not STRATEGIES[training.strategy].reshards_after_forward:
        return 0.0
    a, mesh, size = architecture, training.mesh, STATE_BYTES[training.precision][0]
    at_once = a if mesh.pipeline > 1 else a.model_copy(update={"layers": min(a.layers, 2)})
    layers = max(layers_per_pipeline_rank(at_once, vocabulary_size, training))
    elsewhere = layers * 3 * a.width * a.intermediate_width * (a.experts or 0) * (1 - 1 / mesh.expert)
    norm = a.width / mesh.tensor if mesh.pipeline == 1 else 0.0
    return size * (parameters_per_device(at_once, vocabulary_size, training) - norm - elsewhere)


def attention_score_bytes(
    architecture: Architecture, training: TrainingPlan, tokens: int, *, recomputation: bool
) -> float:
    """Return the bytes of attention scores on one device, in fp32; zero with FlashAttention, which keeps none.

    A token has one score per position and head, in each block or, with recomputation, in one block. The block in its
    backward pass adds the gradients of the softmax and of its argument.

    Args:
        tokens: the device's tokens of a micro-batch, divided over the tensor and context devices.
    """
    if training.flash_attention:
        return 0.0
    blocks = (1 if recomputation else architecture.layers) + 2
    return 4.0 * tokens * training.sequence_length * architecture.heads * blocks


class DeviceBytes(NamedTuple):
    state: float
    gathered: float
    activations: float


def device_bytes(
    architecture: Architecture,
    vocabulary_size: int,
    training: TrainingPlan,
    *,
    devices: int,
    node: int,
    recomputation: bool,
) -> DeviceBytes:
    """Return the memory of the fullest device; selective recomputation counts as none.

    Args:
        devices: devices that share or copy the state.
        node: devices that share one copy in a hybrid strategy.
        recomputation: whether only the input of each block is kept.
    """
    mesh = training.mesh
    tokens = training.micro_batch_size * training.sequence_length // (mesh.tensor * mesh.context)
    at_once = architecture.model_copy(update={"layers": layers_in_flight(architecture, vocabulary_size, training)})
    work = DeviceWork(tokens, training.precision, recomputation, mesh.tensor, mesh.context)
    return DeviceBytes(
        model_state_bytes(
            parameters_per_device(architecture, vocabulary_size, training),
            strategy=training.strategy,
            precision=training.precision,
            devices=devices,
            node=node,
        ),
        gathered_bytes(architecture, vocabulary_size, training),
        activation_bytes(at_once, vocabulary_size, work)
        + attention_score_bytes(at_once, training, tokens, recomputation=recomputation),
    )


def duration_seconds(flops: float, *, devices: int, peak_flops_per_second: float, utilization: float) -> float:
    """Return the time of an amount of operations at a share of the devices' peak (1 = all of it)."""
    return flops / (devices * peak_flops_per_second * utilization)


def energy_joules(seconds: float, *, devices: int, device_power_watts: float) -> float:
    """Return the energy of devices at constant power, without the building's overhead."""
    return seconds * devices * device_power_watts


def tensor_parallel_degrees(architecture: Architecture, largest: int = 8) -> list[int]:
    """Return the possible degrees of tensor parallelism up to `largest`: the divisors of the heads."""
    return [degree for degree in range(1, largest + 1) if architecture.heads % degree == 0]


# Layers of each pipeline stage, and the load of the fullest process.


def output_cost_in_layers(architecture: Architecture, vocabulary_size: int, sequence_length: int) -> float:
    """Return the cost of output and loss, 6 V D per token, in units of one layer's operations."""
    output = 6 * vocabulary_size * architecture.width
    all_layers = flops_per_token(architecture, vocabulary_size, sequence_length) - output
    return output * architecture.layers / all_layers


def divide_layers(
    architecture: Architecture, vocabulary_size: int, sequence_length: int, stages: int
) -> tuple[range, ...]:
    """Divide the layers over the stages, at least one each, so that the longest stage is as short as possible.

    The output counts as `output_cost_in_layers` layers of the last stage; the embedding takes no matrix product. Among
    equally good divisions, the last stage gets most layers, then the later stages, which hold fewer micro-batches.
    """
    layers = architecture.layers
    if stages == 1:
        return (range(layers),)
    output, others = output_cost_in_layers(architecture, vocabulary_size, sequence_length), stages - 1

    def longest_stage_layers(last: int) -> float:
        return max(-((last - layers) // others), last + output)

    last = min(range(layers - others, 0, -1), key=longest_stage_layers)
    each, more = divmod(layers - last, others)
    numbers = [each] * (others - more) + [each + 1] * more + [last]
    return tuple(range(*pair) for pair in pairwise(accumulate(numbers, initial=0)))


def layers_per_pipeline_rank(architecture: Architecture, vocabulary_size: int, training: TrainingPlan) -> list[int]:
    """Return the number of layers of each pipeline rank; the first has the embedding, the last the output."""
    m = training.mesh
    parts = divide_layers(architecture, vocabulary_size, training.sequence_length, m.pipeline * m.interleaving)
    return [sum(map(len, parts[process :: m.pipeline])) for process in range(m.pipeline)]


def work_per_pipeline_rank(architecture: Architecture, vocabulary_size: int, training: TrainingPlan) -> list[float]:
    """Return the work of each pipeline rank in layers, the output as `output_cost_in_layers`."""
    *others, last = layers_per_pipeline_rank(architecture, vocabulary_size, training)
    return [*others, last + output_cost_in_layers(architecture, vocabulary_size, training.sequence_length)]


def layers_in_flight(architecture: Architecture, vocabulary_size: int, training: TrainingPlan) -> int:
    """Return the largest number of layers whose activations a pipeline rank holds, times micro-batches in flight.

    1F1B has a micro-batch in flight for each stage from this one on; interleaved, each of the v parts of rank r of p
    runs (v - 1) p + 2 (p - 1 - r) times before the first backward pass, and once more (Narayanan et al. 2021, section
    2.2).
    """
    p, v = training.mesh.pipeline, training.mesh.interleaving
    numbers = layers_per_pipeline_rank(architecture, vocabulary_size, training)
    if v == 1:
        return max(number * (p - process) for process, number in enumerate(numbers))
    return max(-(-number * ((v - 1) * p + 2 * (p - 1 - r) + 1) // v) for r, number in enumerate(numbers))


def parameters_per_device(architecture: Architecture, vocabulary_size: int, training: TrainingPlan) -> float:
    """Return the parameters of the fullest pipeline rank, before data parallelism shards them.

    Tensor parallelism splits all of them, except key and value matrices whose heads it does not divide.
    """
    a, t = architecture, training.mesh.tensor
    shared = 2 * a.width * a.key_value_head_count * a.head_dimension if a.key_value_head_count % t else 0
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
