"""Compute the time of a training step on one device of a mesh, by operations, bytes and the rates of the machine.

It knows no architecture: `pipeline.plan.step_operations` counts what a model asks for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

MATRIX_SHARE = 0.885
"""What the matrix products of a training reach of the best single one. Fitted once, with `MEMORY_SHARE`, on the eight
iterations that Korthikanti et al. 2022 (arXiv 2205.05198), table 5, measured: `benchmarks/step_time.py --fit`."""
MEMORY_SHARE = 0.525
"""What kernels that only move bytes reach of the memory's bandwidth: fitted with `MATRIX_SHARE`."""
LINK_SHARE = 0.78
"""What collectives reach of a link: 235 of 300 GB/s in an all-reduce of eight A100, measured by others
(https://github.com/stas00/ml-engineering, network/README.md, 2024). Taken for links between nodes too."""


class Kernel(NamedTuple):
    """Floating-point operations on matrices and bytes that go through memory; the slower of the two counts."""

    flops: float
    bytes: float
    rate: float = 1.0
    """Of the rate of other matrix products."""


@dataclass(frozen=True)
class Machine:
    """What a device and its links do at best, links in one direction."""

    matrix_flops_per_second: float
    memory_bytes_per_second: float
    node_bytes_per_second: float
    network_bytes_per_second: float
    devices: int
    """Of one node."""

    def seconds(self, kernels: Iterable[Kernel]) -> float:
        """Return the time that kernels need one after another, each by the slower of its operations and its bytes."""
        operations, moved = self.matrix_flops_per_second * MATRIX_SHARE, self.memory_bytes_per_second * MEMORY_SHARE
        return sum(max(k.flops / (operations * k.rate), k.bytes / moved) for k in kernels)

    def ring_bytes_per_second(self, size: int, stride: int = 1) -> float:
        """Return the bytes that a ring of `size` devices passes on a second, every `stride`th one in order of rank.

        A ring over nodes goes through all adapters of a node that has several of its devices.
        """
        if size * stride <= self.devices:
            return self.node_bytes_per_second * LINK_SHARE
        together = max(min(size, self.devices // stride), 1)
        return min(self.node_bytes_per_second, together * self.network_bytes_per_second) * LINK_SHARE

    def all_to_all_bytes_per_second(self, size: int, stride: int = 1) -> float:
        """Return the bytes that each of such devices sends a second where each has something for each other.

        To those of other nodes it sends through its own adapter.
        """
        inside = max(min(size, self.devices // stride), 1)
        if size == inside:
            return self.node_bytes_per_second * LINK_SHARE
        through = self.network_bytes_per_second * (size - 1) / (size - inside)
        return min(self.node_bytes_per_second, through) * LINK_SHARE


@dataclass(frozen=True)
class StepWork:
    """What one device of a stage does in a step: for one micro-batch, where nothing else is said."""

    forward: tuple[Kernel, ...]
    """Of one block, as what follows up to `context_bytes`."""
    backward: tuple[Kernel, ...]
    again: tuple[Kernel, ...]
    """What recomputation repeats before the backward pass."""
    tensor_bytes: float
    """What the tensor devices exchange while they wait."""
    context_bytes: float
    """The same of those that split the sequence."""
    head: tuple[Kernel, ...]
    """The output and the loss, forward and backward; of the last stage."""
    layers: float
    """Of a device of the pipeline, on average."""
    micro_batches: int
    most_layers: float = 0
    """Of the device that has most, where they are not equal."""
    last_layers: float = 0
    """Of the last one, which has the output, likewise."""
    stage_bytes: float = 0
    """To the next stage, forward and backward."""
    expert_bytes: float = 0
    """Of one block: what the devices that divide its experts exchange while they wait, each with each."""
    data_bytes: float = 0
    """Weights gathered and gradients reduced by the devices that share the model, behind computation."""
    step_bytes: float = 0
    """The same, once in a step, behind its last backward pass."""
    optimizer: tuple[Kernel, ...] = ()
    """Once in a step."""
    gathered_bytes: float = 0
    """What devices that share the state tell each other about the optimizer's updates, once in a step."""
    copied_bytes: float = 0
    """What they tell the other copies of it."""


@dataclass(frozen=True)
class DeviceMesh:
    """The devices, innermost first."""

    tensor: int = 1
    context: int = 1
    """Of those that share the state."""
    sharing: int = 1
    """That share one copy of the model's state, each with a part of the batch or of a sequence."""
    replicas: int = 1
    """Copies of it."""
    pipeline: int = 1
    interleaving: int = 1
    """Parts of the model on each stage: Narayanan et al. 2021, section 2.2.2."""
    expert: int = 1
    """Of those that share the state, each with a part of the experts."""


@dataclass(frozen=True)
class StepTime:
    """The parts of a step in which the device does one thing; communication that computation hides is not in them."""

    compute_seconds: float
    recomputation_seconds: float
    exchange_seconds: float
    """Waiting for the devices that split the matrices, the sequence or the experts."""
    data_seconds: float
    """Waiting for weights and gradients of the devices that share the data."""
    pipeline_seconds: float
    """Waiting for other stages: the bubble, the longest stage, what is sent between stages."""
    optimizer_seconds: float

    @property
    def seconds(self) -> float:
        """Return the whole step."""
        return float(sum(dataclasses.astuple(self)))


def estimate_step_time(work: StepWork, mesh: DeviceMesh, machine: Machine) -> StepTime:
    """Return the time of one step.

    1F1B: of m micro-batches on p stages each with v parts, (p - 1) / v more are waited for (Narayanan et al. 2021,
    section 2.2). Communication of the data-parallel devices runs beside computation (Zhao et al. 2023, section 3.3), so
    that only what is longer than that counts.
    """
    forward, backward, again = (machine.seconds(k) for k in (work.forward, work.backward, work.again))
    exchange = (
        work.tensor_bytes / machine.ring_bytes_per_second(mesh.tensor)
        + work.context_bytes / machine.all_to_all_bytes_per_second(mesh.context, mesh.tensor)
        + work.expert_bytes / machine.all_to_all_bytes_per_second(mesh.expert, mesh.tensor)
    )
    head = machine.seconds(work.head)
    m, p = work.micro_batches, mesh.pipeline
    computed = work.layers * (forward + backward) + head / p
    stage = computed + work.layers * (again + exchange)
    block = forward + backward + again + exchange
    longest = max((work.most_layers or work.layers) * block, (work.last_layers or work.layers) * block + head)
    data = work.data_bytes / machine.ring_bytes_per_second(mesh.sharing, mesh.tensor)
    once = work.step_bytes / machine.ring_bytes_per_second(mesh.replicas, mesh.tensor * mesh.sharing)
    waited = m * max(data - stage, 0.0) + max(once - work.layers * backward, 0.0)
    stride = mesh.tensor * mesh.sharing * mesh.replicas
    between = machine.ring_bytes_per_second(
        2, machine.devices if p * stride > machine.devices else stride
    )  # of two stages: one adapter
    sent = mesh.interleaving * work.stage_bytes / between if p > 1 else 0.0
    pipeline = m * (longest - stage + sent) + (p - 1) / mesh.interleaving * (stage + sent)
    gathered = work.gathered_bytes / machine.ring_bytes_per_second(mesh.sharing, mesh.tensor)
    # A matrix goes from one device of a node to one of another, through their adapters.
    gathered += (
        work.copied_bytes / machine.all_to_all_bytes_per_second(2, mesh.tensor * mesh.sharing)
        if mesh.replicas > 1
        else 0
    )
    return StepTime(
        compute_seconds=m * computed,
        recomputation_seconds=m * work.layers * again,
        exchange_seconds=m * work.layers * exchange,
        data_seconds=waited,
        pipeline_seconds=pipeline,
        optimizer_seconds=machine.seconds(work.optimizer) + gathered,
    )
