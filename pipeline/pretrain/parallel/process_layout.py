"""Lay out the processes over the mesh and check divisibility, before anything starts and without torch.

The innermost dimension is tensor, which communicates most: its processes are neighbors on one node. The layout depends
on ranks only, not on the machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.core.errors import InputError
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import ulysses_degree
from pipeline.plan.sharding_strategy_definitions import STRATEGIES, hybrid_group_size
from pipeline.pretrain.settings import Training

NO_NODE_DISK = (
    "keeps the optimizer's state on a disk of the node: write node_disk into the platform's file in "
    "workflow/platforms, or name a folder by --set-resources pretrain_segment:staging=FOLDER"
)


@dataclass(frozen=True)
class ProcessLayout:
    """The sizes of the mesh: `replicate` x `shard` = data x context, because context-parallel processes share state."""

    pipeline: int
    replicate: int
    shard: int
    context: int
    tensor: int
    expert: int = 1
    """Neighbors within `shard`."""

    @property
    def data(self) -> int:
        """Return the number of data-parallel parts of a global batch."""
        return self.replicate * self.shard // self.context

    def data_rank(self, rank: int) -> int:
        """Return the data-parallel part of the global batch that a process computes."""
        return rank // self.tensor % (self.replicate * self.shard) // self.context


def make_layout(training: Training, processes: int, per_node: int) -> ProcessLayout:
    """Return the layout of so many processes, `per_node` of them on one node.

    Raises:
        InputError: the mesh does not divide the processes.
    """
    mesh = training.mesh
    model = mesh.tensor * mesh.pipeline * mesh.context
    if processes % model:
        raise InputError(
            f"{processes} processes are not divisible by training.mesh tensor {mesh.tensor} x pipeline {mesh.pipeline} "
            f"x context {mesh.context} = {model}: start a multiple of {model} processes or lower one of the three"
        )
    sharing = processes // model * mesh.context
    strategy = STRATEGIES[training.strategy]
    if strategy.is_replicated:
        shard = 1
    elif strategy.is_hybrid:
        shard = mesh.shard or hybrid_group_size(sharing, per_node, mesh.tensor)
    else:
        shard = sharing
    if sharing % shard:
        raise InputError(
            f"training.mesh.shard {shard} does not divide the {sharing} processes that share a model's state: "
            f"{_format_divisors(sharing, sharing)} would do"
        )
    if shard % mesh.expert:
        raise InputError(
            f"training.mesh.expert {mesh.expert} does not divide the {shard} processes that share one copy of the "
            f"state with strategy {training.strategy}: set it to a divisor of {shard}"
        )
    return ProcessLayout(mesh.pipeline, sharing // shard, shard, mesh.context, mesh.tensor, mesh.expert)


def check_mesh_divides_model(
    training: Training, architecture: Architecture, vocabulary_size: int, processes: int, per_node: int
) -> None:
    """Check that the mesh divides model and batch.

    Raises:
        InputError: something is not divisible; the message names both numbers, and values that work.
    """
    sizes, a, mesh = make_layout(training, processes, per_node), architecture, training.mesh
    per_step = sizes.data * training.micro_batch_size
    for size in training.batch_schedule.batch_sizes:
        _check_batch(size, training, sizes, processes)
    sequence = math.gcd(*training.batch_schedule.sequence_lengths)
    # More context-parallel processes than divide the heads need two chunks of positions per group.
    groups = mesh.context // ulysses_degree(a, mesh.tensor, mesh.context)
    chunks = mesh.tensor * mesh.context * (2 if groups > 1 else 1)
    by = "training.mesh.tensor x context" if mesh.context > 1 else "training.mesh.tensor"
    by += " x 2 =" if groups > 1 else ""
    of_tensor = {
        "architecture.heads": a.heads,
        "the feed-forward width": a.intermediate_width,
        "the vocabulary size": vocabulary_size,
    }
    fitting = math.gcd(sequence, *of_tensor.values())
    for what, number in of_tensor.items():
        _check_divides(what, number, "training.mesh.tensor", mesh.tensor, fitting, processes)
    if sequence % chunks:
        raise InputError(
            f"training.sequence_length {sequence} is not divisible by {by} {chunks}: a multiple of {chunks} would "
            "do, or a smaller mesh"
        )
    if mesh.expert > 1:
        _check_experts(a, mesh.expert, sizes.shard // mesh.expert)
    if a.experts and mesh.tensor > 1:
        raise InputError(
            f"training.mesh.tensor {mesh.tensor} does not split experts: set it to 1, and training.mesh.expert instead"
        )
    if mesh.pipeline > 1:
        for size in training.batch_schedule.batch_sizes:
            _check_pipeline(training, a, size, size // per_step)


def _check_experts(architecture: Architecture, expert: int, others: int) -> None:
    a, rest = architecture, "the processes that share the state, divided by training.mesh.expert,"
    experts = a.experts or 1
    _check_divides("architecture.experts", experts, "training.mesh.expert", expert, experts, expert)
    _check_divides("architecture.width", a.width, rest, others, a.width, others)
    _check_divides("the feed-forward width", a.intermediate_width, rest, others, a.intermediate_width, others)


def _check_divides(what: str, number: int, by: str, divisor: int, fitting: int, most: int) -> None:
    """Check that a number is divisible, or suggest the divisors of `fitting` up to `most`."""
    if number % divisor:
        would = _format_divisors(fitting, most)
        raise InputError(f"{what} {number} is not divisible by {by} {divisor}: {would} would do")


def _check_pipeline(training: Training, architecture: Architecture, batch: int, micro_batches: int) -> None:
    layers, mesh = architecture.layers, training.mesh
    if layers < mesh.pipeline * mesh.interleaving:
        what, largest = "training.mesh.pipeline", layers // mesh.interleaving
        parts = f" x interleaving {mesh.interleaving}" if mesh.interleaving > 1 else ""
        raise InputError(
            f"architecture.layers {layers} are fewer than the stages of {what} {mesh.pipeline}{parts}: "
            f"a pipeline of at most {largest} would do"
        )
    number = f"{micro_batches} micro-batch{'es' if micro_batches > 1 else ''}"
    has = f"a batch_size of {batch} gives each data-parallel process {number}"
    if micro_batches < mesh.pipeline:
        raise InputError(
            f"{has}, fewer than training.mesh.pipeline {mesh.pipeline}: a pipeline of at most {micro_batches} would "
            "do, a lower micro_batch_size or a larger batch_size"
        )
    if mesh.interleaving > 1 and micro_batches % mesh.pipeline:
        raise InputError(
            f"{has}, which training.mesh.pipeline {mesh.pipeline} does not divide, as interleaving needs: a pipeline "
            f"of {_format_divisors(micro_batches, micro_batches, 'or')} would do, or interleaving 1"
        )
    if architecture.tie_embeddings:
        raise InputError(
            "architecture.tie_embeddings needs the first and the last layer in one process: "
            "set training.mesh.pipeline to 1 or tie_embeddings to false"
        )


def _check_batch(batch: int, training: Training, sizes: ProcessLayout, processes: int) -> None:
    per_step = sizes.data * training.micro_batch_size
    if batch % per_step == 0:
        return
    what = "processes" if sizes.data == processes else "data-parallel processes"
    below = batch - batch % per_step
    batches = " or ".join(str(number) for number in (below, below + per_step) if number)
    smaller = ""
    if batch % sizes.data == 0:
        smaller = f", or a micro_batch_size of {_format_divisors(batch // sizes.data, training.micro_batch_size, 'or')}"
    raise InputError(
        f"training.batch_size {batch} is not divisible by {sizes.data} {what} times micro_batch_size "
        f"{training.micro_batch_size}: a batch_size of {batches}{smaller} would do"
    )


def _format_divisors(number: int, most: int, last: str = "and") -> str:
    """Format the divisors of a number up to `most`."""
    *others, largest = (str(one) for one in range(1, min(number, most) + 1) if number % one == 0)
    return f"{', '.join(others)} {last} {largest}" if others else largest
