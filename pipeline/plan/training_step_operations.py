"""Count the operations, memory traffic and link traffic of one device in a training step, in bf16."""

from __future__ import annotations

import math

from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import replicated_key_value_heads, ulysses_degree
from pipeline.plan.settings import TrainingPlan
from pipeline.plan.sharding_strategy_definitions import STRATEGIES, hybrid_group_size
from pipeline.plan.step_time import DeviceMesh, Kernel, StepWork
from pipeline.plan.training_cost_formulas import layers_per_pipeline_rank, parameters_per_device

FLOAT8_RATE = 1.8
"""Rate of matrix products in 8 bits relative to those in bf16, fitted on torchtitan's six rows in float8 (H100, H200):
`benchmarks/step_time.py --fit`. The units themselves are twice as fast."""
FLOAT8_BYTES = 1.5
"""Memory traffic of a product in 8 bits with one scale per tensor relative to bf16: its operands are read in bf16 for
their largest value and again to be cast, written and read in 8 bits, where bf16 reads them once."""
ASYNC_EXPOSED = 0.79
"""Share of tensor-parallel communication that asynchronous tensor parallelism does not hide: it takes torchtitan's 70B
on 256 H100 from 829 to 876 tokens per second (torchtitan, llama3_h100_202412_torchtitan.md)."""
SCORE_BYTES = 24
"""Memory traffic of one fp32 score without FlashAttention: the product writes it, mask and softmax read and write it,
and the product with the values reads it. All scores are computed; FlashAttention computes half of them."""
MUON_ITERATIONS = 5  # of Muon on a matrix: `pipeline.pretrain.parallel.optimizer`
OPTIMIZER_BYTES = 42
"""Memory traffic of one parameter in a step: the norm reads its gradient, Adam reads four and writes three fp32
numbers, the bf16 copy reads one and writes two bytes, and the gradient is set to zero."""


def count_key_value_heads_read(heads: int, parts: int) -> int:
    """Return how many key-value heads the fullest of `parts` equal parts of the queries reads."""
    each, times = (math.lcm(heads, parts) // number for number in (parts, heads))
    return -(-(each + times - 1) // times)


def make_device_mesh(training: TrainingPlan, devices: int, devices_of_a_node: int) -> DeviceMesh:
    """Return the mesh of so many devices under the training's strategy.

    Where each device holds all gradients, they are summed once in a step, whatever the sharding of the optimizer.
    """
    m, strategy = training.mesh, STRATEGIES[training.strategy]
    data_parallel = max(devices // (m.tensor * m.pipeline), 1)
    if strategy.gradients == "all":
        sharing = 1
    elif strategy.is_hybrid:
        sharing = m.shard or hybrid_group_size(data_parallel, devices_of_a_node, m.tensor)
    else:
        sharing = data_parallel
    return DeviceMesh(m.tensor, m.context, sharing, data_parallel // sharing, m.pipeline, m.interleaving, m.expert)


def _muon_kernels(architecture: Architecture, layers: int, devices: int) -> list[Kernel]:
    """Return the kernels of the busiest device that shares the layers' matrices: the largest matrix of each turn.

    An iteration on a matrix of m x n, m <= n, multiplies it by its transpose, the square by itself and that by the
    matrix: 2 m^2 (2 n + m) operations (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/).
    """
    matrices = sorted(_block_matrices(architecture) * layers, key=math.prod, reverse=True)
    return [Kernel(MUON_ITERATIONS * 2 * m**2 * (2 * n + m), 0) for m, n in matrices[::devices]]


def _block_matrices(architecture: Architecture) -> list[tuple[int, int]]:
    """Return the sides of each matrix of a block without experts, the shorter one first."""
    a = architecture
    sides = (
        [a.heads * a.head_dimension] * 2 + [a.key_value_head_count * a.head_dimension] * 2 + [a.intermediate_width] * 3
    )
    return [(min(a.width, side), max(a.width, side)) for side in sides]


def _count_expert_sorting(architecture: Architecture, divided: bool) -> tuple[float, float]:
    """Return the elements of a token that experts move besides their computation, forward and backward.

    Of C experts: rows put in the experts' order, 2 C D, and back, 2 C D, weighted and added, 3 C D + D. Backward 3 C D
    + D, 4 C D and 3 C D + 2 D. Where experts are divided, rows are put in order and back once more.
    """
    d, c = architecture.width, architecture.experts_per_token
    return ((7 + 4 * divided) * c + 1) * d if c else 0, ((10 + 8 * divided) * c + 3) * d if c else 0


def count_step_work(
    architecture: Architecture,
    vocabulary_size: int,
    training: TrainingPlan,
    mesh: DeviceMesh,
    divided: TrainingPlan | None = None,
) -> StepWork:
    """Return the work of one device in a step of a decoder like Llama's.

    Args:
        divided: the training that a pipeline divides its layers for, where `training` is a ramp stage of it.

    Products of a token: D (H + 2 K), H D, 2 D F, F D; attention's own by FlashAttention, which computes half of the
    scores and backward 2.5 times as much (Dao 2023, section 4.1), and in a layer with a window those in it; a layer has
    the mean of all. Elements read and written without compilation: norm
    2 D and residual 3 D, twice each, rotation 4 (H + K), SwiGLU 5 F; with it each is read and written once. Gradients:
    norm 5 D, residual 3 D, twice each, rotation 4 (H + K), SwiGLU 9 F. The tensor devices split what is between the
    products too, for two all-gathers and two reduce-scatters of D each way (Korthikanti et al. 2022, section 4.2.2);
    those of the context exchange Q, K, V and the output (Jacobs et al. 2023, Ulysses), and where they do not divide the
    heads each gets K and V of all. Key-value heads that they do not divide are repeated; a tensor device computes those
    that its queries read. A token that visits C experts has C rows in the feed-forward block, as many on each device;
    where experts are divided, they travel there and back.
    """
    a, t, c, s, e = architecture, mesh.tensor, mesh.context, training.sequence_length, mesh.expert
    tokens = training.micro_batch_size * s / c
    visited, held = (a.experts_per_token or 1, a.experts / e) if a.experts else (1, 1)
    d, h, f = a.width, a.heads * a.head_dimension, a.intermediate_width
    k, computed = (
        replicated_key_value_heads(a, t, c) * a.head_dimension,
        count_key_value_heads_read(a.key_value_head_count, t) * a.head_dimension,
    )
    parts = ulysses_degree(a, t, c)

    def matrix_product_work(inner: float, outer: float, rows: float = tokens, matrices: float = 1) -> Kernel:
        return Kernel(2 * rows * inner * outer, 2 * (rows * (inner + outer) + matrices * inner * outer))

    def cast_to_float8(kernel: Kernel) -> Kernel:
        return Kernel(kernel.flops, FLOAT8_BYTES * kernel.bytes, FLOAT8_RATE) if training.float8 else kernel

    def memory_traffic_work(elements: float) -> Kernel:
        return Kernel(0, 2 * tokens * elements / t)

    seen = sum(span - span**2 / (2 * s) for span in a.attention_spans(s)) / a.layers  # mean attended positions
    rows = tokens * visited, held
    attended = matrix_product_work(d, h / t + 2 * computed), matrix_product_work(h / t, d)
    fed = matrix_product_work(d, 2 * f / t, *rows), matrix_product_work(f / t, d, *rows)
    linear = (*map(cast_to_float8, (*attended, *fed)), *([matrix_product_work(d, a.experts)] if a.experts else []))
    ordered, ordered_back = _count_expert_sorting(a, e > 1)
    attention = Kernel(4 * tokens * seen * h / t, 2 * tokens * (2 * h + 2 * k) / t, is_attention=True)
    attention_back = Kernel(2.5 * attention.flops, 2 * attention.bytes, is_attention=True)
    if not training.flash_attention:
        scores = tokens * s * a.heads / t
        attention = Kernel(4 * tokens * s * h / t, attention.bytes + SCORE_BYTES * scores)
        attention_back = Kernel(2 * attention.flops, 2 * attention.bytes)
    compiled, f = training.compile, f * visited
    between = memory_traffic_work(ordered + (8 * d + 2 * (h + k) + 3 * f if compiled else 10 * d + 4 * (h + k) + 5 * f))
    between_back = memory_traffic_work(
        ordered_back + (12 * d + 2 * (h + k) + 5 * f if compiled else 16 * d + 4 * (h + k) + 9 * f)
    )
    forward = (*linear, attention, between)
    # Recomputation ends with what the backward pass needs: the last product only where experts' results are weighted.
    again = forward if a.experts else tuple(kernel for kernel in forward if kernel is not linear[-1])
    recomputed = {"none": (), "selective": (between,), "full": again}[training.recomputation]
    passes = 2 if training.recomputation == "none" else 3  # exchanged activations are not kept
    exposed = ASYNC_EXPOSED if training.async_tensor_parallel else 1.0
    head = matrix_product_work(d, vocabulary_size / t)
    own = parameters_per_device(a, vocabulary_size, divided or training)
    stages = layers_per_pipeline_rank(a, vocabulary_size, divided or training)
    strategy = STRATEGIES[training.strategy]
    once = strategy.reduces_gradients_once
    reduced = 4 if training.gradient_reduction == "fp32" else 2
    data = mesh.sharing * mesh.replicas // c
    micro_batches = max(training.batch_size // (training.micro_batch_size * max(data, 1)), 1)
    gathers = 1 / micro_batches if mesh.pipeline > 1 else 2 if strategy.reshards_after_forward else 1
    elsewhere = max(stages) * 3 * d * a.intermediate_width * (a.experts or 0) * (1 - 1 / e)  # experts of other devices
    holders = {"all": 1, "node": mesh.sharing}.get(strategy.optimizer, mesh.sharing * mesh.replicas)
    copied = own / mesh.sharing if mesh.sharing > 1 else own - elsewhere
    muon, sharers = training.optimizer == "muon", mesh.sharing * mesh.replicas * t
    states, copies = (sharers, 1) if once else (mesh.sharing * t, mesh.replicas)  # devices of a copy of Muon's state
    matrices = max(stages) * sum(map(math.prod, _block_matrices(a))) * muon
    return StepWork(
        forward=forward,
        backward=(*linear, *linear, attention_back, between_back),
        recomputed=recomputed,
        tensor_bytes=passes * 2 * tokens * 4 * d * (t - 1) / t * exposed,
        context_bytes=passes * 2 * tokens * (2 * h * (1 - 1 / parts) + 2 * k * (1 - 1 / c)) / t,
        head=(head, head, head, Kernel(0, 28 * tokens * vocabulary_size / t)),  # fp32 logits, read and written 3 times
        layers=a.layers / mesh.pipeline,
        most_layers=max(stages),
        last_layers=stages[-1],
        micro_batches=micro_batches,
        stage_bytes=2 * 2 * tokens * d / t,
        expert_bytes=passes * 2 * 2 * tokens * visited * d * (e - 1) / e,
        data_bytes=(own * (1 - 1 / mesh.sharing) - elsewhere) * (2 * gathers + reduced) if mesh.sharing > 1 else 0,
        data_collectives=max(stages) * (gathers + 1),
        # An all-reduce, which goes round twice, or a reduce-scatter and the gathering of weights in bf16.
        step_bytes=copied * (1 - 1 / mesh.replicas) * (reduced + (2 if once else reduced)),
        step_collectives=2 * max(stages),
        optimizer=(
            Kernel(0, OPTIMIZER_BYTES * own / holders),
            *(_muon_kernels(a, max(stages), sharers) if muon else ()),
        ),
        # A device gets the means of its matrices, in fp32, from those that share the state, and its part of all
        # updates, in bf16: of as many matrices from them as from each other copy.
        gathered_bytes=matrices / sharers * (4 + 2) * (1 - 1 / states),
        copied_bytes=matrices / states * 2 * (1 - 1 / copies),
    )
