"""Estimate the time of a training step on one device of a mesh, by operations, bytes and the rates of the machine.

This module knows no architecture: `pipeline.plan.training_step_operations` counts the work of a model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

MATRIX_SHARE = 0.885
"""Rate of a training's matrix products relative to the best single product. Fitted once, with `MEMORY_SHARE`, on the
eight iterations that Korthikanti et al. 2022 (arXiv 2205.05198), table 5, measured: `benchmarks/step_time.py --fit`."""
MEMORY_SHARE = 0.525
"""Share of the memory bandwidth that memory-bound kernels reach: fitted with `MATRIX_SHARE`."""
LINK_SHARE = 0.78
"""Share of a link that collectives reach: 235 of 300 GB/s in an all-reduce of eight A100, measured by others
(https://github.com/stas00/ml-engineering, network/README.md, 2024). Also used for links between nodes."""
NODE_HOP_SECONDS, NETWORK_HOP_SECONDS = 3.4e-6, 14e-6
"""Latency of each hop of a ring inside a node and between nodes: what NCCL counts for NVLink and for a network
(https://github.com/NVIDIA/nccl, src/graph/tuning.cc, hwLatencies, ring, Simple)."""
OVERLAP_COST = 0.55
"""Share of the time of overlapped communication by which it delays the computation that overlaps it: both use the same
multiprocessors and memory. Fitted on 26 trainings by FSDP on H100: `benchmarks/step_time.py --fit`."""
ATTENTION_SHARE = 0.6
"""Rate of attention relative to the best single product, where a machine's own is unknown: FlashAttention-2 reaches 50
to 73 % of an A100's peak (Dao 2023, abstract), other products 76 %."""


class Kernel(NamedTuple):
    """Matrix operations and memory traffic of a kernel; the slower of the two sets its time."""

    flops: float
    bytes: float
    rate: float = 1.0
    """Relative to the rate of other matrix products."""
    is_attention: bool = False
    """Whether the operations are FlashAttention's, which have a rate of their own."""


@dataclass(frozen=True)
class Machine:
    """The peak rates of a device and its links, links in one direction."""

    matrix_flops_per_second: float
    memory_bytes_per_second: float
    node_bytes_per_second: float
    network_bytes_per_second: float
    devices: int
    """Devices of one node."""
    attention_flops_per_second: float | None = None
    """Operations of FlashAttention in a training; without it `ATTENTION_SHARE` of the matrix products' rate."""

    def seconds(self, kernels: Iterable[Kernel]) -> float:
        """Return the time of kernels one after another, each limited by its operations or its bytes."""
        products, moved = self.matrix_flops_per_second * MATRIX_SHARE, self.memory_bytes_per_second * MEMORY_SHARE
        attention = self.attention_flops_per_second or self.matrix_flops_per_second * ATTENTION_SHARE
        return sum(
            max(k.flops / ((attention if k.is_attention else products) * k.rate), k.bytes / moved) for k in kernels
        )

    def ring_seconds(self, transferred_bytes: float, collectives: float, size: int, stride: int = 1) -> float:
        """Return the time of so many collectives on a ring, each with a hop for every device but one."""
        between = min(-(-size * stride // self.devices), size) - 1
        hops = (size - 1 - between) * NODE_HOP_SECONDS + between * NETWORK_HOP_SECONDS
        return transferred_bytes / self.ring_bytes_per_second(size, stride) + collectives * hops

    def ring_bytes_per_second(self, size: int, stride: int = 1) -> float:
        """Return the bandwidth of a ring of `size` devices, every `stride`-th in the order of ranks.

        A ring over nodes uses all adapters of a node that has several of its devices.
        """
        if size * stride <= self.devices:
            return self.node_bytes_per_second * LINK_SHARE
        together = max(min(size, self.devices // stride), 1)
        return min(self.node_bytes_per_second, together * self.network_bytes_per_second) * LINK_SHARE

    def all_to_all_bytes_per_second(self, size: int, stride: int = 1) -> float:
        """Return the send bandwidth of each device in an all-to-all of such devices.

        A device sends to other nodes through its own adapter.
        """
        inside = max(min(size, self.devices // stride), 1)
        if size == inside:
            return self.node_bytes_per_second * LINK_SHARE
        through = self.network_bytes_per_second * (size - 1) / (size - inside)
        return min(self.node_bytes_per_second, through) * LINK_SHARE


@dataclass(frozen=True)
class StepWork:
    """The work of one device of a stage in a step, for one micro-batch where the field does not say otherwise."""

    forward: tuple[Kernel, ...]
    """Of one block, like the fields up to `context_bytes`."""
    backward: tuple[Kernel, ...]
    recomputed: tuple[Kernel, ...]
    """Kernels that recomputation repeats before the backward pass."""
    tensor_bytes: float
    """Exposed communication of the tensor-parallel devices."""
    context_bytes: float
    """Exposed communication of the context-parallel devices."""
    head: tuple[Kernel, ...]
    """Output and loss, forward and backward; on the last stage."""
    layers: float
    """Mean layers of a device of the pipeline."""
    micro_batches: int
    most_layers: float = 0
    """Layers of the device with most, where they differ."""
    last_layers: float = 0
    """Layers of the last device, which has the output, where they differ."""
    stage_bytes: float = 0
    """To the next stage, forward and backward."""
    expert_bytes: float = 0
    """Exposed all-to-all of one block between the expert-parallel devices."""
    data_bytes: float = 0
    """Gathered weights and reduced gradients of the data-parallel devices, which computation overlaps."""
    data_collectives: float = 0
    exposed_share: float = 0
    """Share of these that no computation overlaps."""
    step_bytes: float = 0
    """The same once in a step, overlapped by its last backward pass."""
    step_collectives: float = 0
    optimizer: tuple[Kernel, ...] = ()
    """Once in a step."""
    gathered_bytes: float = 0
    """Optimizer updates exchanged by the devices that share the state, once in a step."""
    copied_bytes: float = 0
    """Optimizer updates from the other copies of the state."""


@dataclass(frozen=True)
class DeviceMesh:
    """The devices, innermost first."""

    tensor: int = 1
    context: int = 1
    """Context-parallel devices, of those that share the state."""
    sharing: int = 1
    """Devices that share one copy of the model's state, each with a part of the batch or of a sequence."""
    replicas: int = 1
    """Copies of the state."""
    pipeline: int = 1
    interleaving: int = 1
    """Parts of the model on each stage: Narayanan et al. 2021, section 2.2.2."""
    expert: int = 1
    """Expert-parallel devices, of those that share the state."""


@dataclass(frozen=True)
class StepTime:
    compute_seconds: float
    recomputation_seconds: float
    exchange_seconds: float
    """Exposed communication of tensor, context and expert parallelism."""
    data_seconds: float
    """Data parallelism: the exposed communication of weights and gradients, and the delay by the overlapped one."""
    pipeline_seconds: float
    """Pipeline bubble, wait for the longest stage, and messages between stages."""
    optimizer_seconds: float

    @property
    def seconds(self) -> float:
        return float(sum(dataclasses.astuple(self)))


def _delay(communication: float, computation: float) -> float:
    """Return the seconds that communication adds to the computation that overlaps it."""
    return OVERLAP_COST * min(communication, computation) + max(communication - computation, 0.0)


def estimate_step_time(work: StepWork, mesh: DeviceMesh, machine: Machine) -> StepTime:
    """Return the time of one step.

    1F1B with m micro-batches on p stages of v parts each has a bubble of (p - 1) / v micro-batches (Narayanan et al.
    2021, section 2.2). Data-parallel communication overlaps with computation (Zhao et al. 2023, section 3.3): the
    excess counts whole, the rest by `OVERLAP_COST`.
    """
    forward, backward, recomputed = (machine.seconds(k) for k in (work.forward, work.backward, work.recomputed))
    exchange = (
        work.tensor_bytes / machine.ring_bytes_per_second(mesh.tensor)
        + work.context_bytes / machine.all_to_all_bytes_per_second(mesh.context, mesh.tensor)
        + work.expert_bytes / machine.all_to_all_bytes_per_second(mesh.expert, mesh.tensor)
    )
    head = machine.seconds(work.head)
    m, p = work.micro_batches, mesh.pipeline
    computed = work.layers * (forward + backward) + head / p
    stage = computed + work.layers * (recomputed + exchange)
    block = forward + backward + recomputed + exchange
    longest = max((work.most_layers or work.layers) * block, (work.last_layers or work.layers) * block + head)
    data = machine.ring_seconds(work.data_bytes, work.data_collectives, mesh.sharing, mesh.tensor)
    once = machine.ring_seconds(work.step_bytes, work.step_collectives, mesh.replicas, mesh.tensor * mesh.sharing)
    alone = work.exposed_share * data
    waited = m * (alone + _delay(data - alone, stage)) + _delay(once, work.layers * backward)
    stride = mesh.tensor * mesh.sharing * mesh.replicas
    between = machine.ring_bytes_per_second(
        2, machine.devices if p * stride > machine.devices else stride
    )  # of two stages: one adapter
    sent = mesh.interleaving * work.stage_bytes / between if p > 1 else 0.0
    pipeline = m * (longest - stage + sent) + (p - 1) / mesh.interleaving * (stage + sent)
    gathered = work.gathered_bytes / machine.all_to_all_bytes_per_second(mesh.sharing, mesh.tensor)
    # A matrix goes from a device of one node to a device of another, through their adapters.
    gathered += (
        work.copied_bytes / machine.all_to_all_bytes_per_second(2, mesh.tensor * mesh.sharing)
        if mesh.replicas > 1
        else 0
    )
    return StepTime(
        compute_seconds=m * computed,
        recomputation_seconds=m * work.layers * recomputed,
        exchange_seconds=m * work.layers * exchange,
        data_seconds=waited,
        pipeline_seconds=pipeline,
        optimizer_seconds=machine.seconds(work.optimizer) + gathered,
    )
