"""How the processes share a model and its batches, and what must divide: known before anything starts, without torch.

The innermost dimension is tensor, the one that talks most: its processes are neighbours on one node. A process's place
is that of its rank in this order, so that it does not depend on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.ground.errors import InputError
from pipeline.model.settings import Architecture
from pipeline.plan.strategies import STRATEGIES, node_group
from pipeline.pretrain.settings import Training


@dataclass(frozen=True)
class Layout:
    """The sizes of the mesh. `replicate` x `shard` = data x context: the context's processes share the state too."""

    pipeline: int
    replicate: int
    shard: int
    context: int
    tensor: int
    expert: int = 1
    """Of the processes in `shard`, neighbours."""

    @property
    def data(self) -> int:
        """Return the number of parts that a global batch is cut into."""
        return self.replicate * self.shard // self.context

    def data_rank(self, rank: int) -> int:
        """Return which part of the global batch a process computes."""
        return rank // self.tensor % (self.replicate * self.shard) // self.context


def layout(training: Training, processes: int, per_node: int) -> Layout:
    """Return the mesh of that many processes, `per_node` of them on one node.

    Raises:
        InputError: they cannot be laid out as the settings ask.
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
    if strategy.whole:
        shard = 1
    elif strategy.hybrid:
        shard = mesh.shard or node_group(sharing, per_node, mesh.tensor)
    else:
        shard = sharing
    if sharing % shard:
        raise InputError(
            f"training.mesh.shard {shard} does not divide the {sharing} processes that share a model's state: "
            f"set it to a divisor of {sharing}"
        )
    if shard % mesh.expert:
        raise InputError(
            f"training.mesh.expert {mesh.expert} does not divide the {shard} processes that share one copy of the "
            f"state with strategy {training.strategy}: set it to a divisor of {shard}"
        )
    return Layout(mesh.pipeline, sharing // shard, shard, mesh.context, mesh.tensor, mesh.expert)


def check(training: Training, architecture: Architecture, vocabulary_size: int, processes: int, per_node: int) -> None:
    """Check that the model and the batch divide by the mesh, before anything starts.

    Raises:
        InputError: a number does not divide; the sentence names both.
    """
    sizes, a, mesh = layout(training, processes, per_node), architecture, training.mesh
    per_step = sizes.data * training.micro_batch_size
    if training.batch_size % per_step:
        what = "processes" if sizes.data == processes else "data-parallel processes"
        raise InputError(
            f"training.batch_size {training.batch_size} is not divisible by {sizes.data} {what} times "
            f"micro_batch_size {training.micro_batch_size}: change one of them"
        )
    heads = mesh.tensor * mesh.context
    split = "training.mesh.tensor x context" if mesh.context > 1 else "training.mesh.tensor"
    divisions = [
        ("architecture.layers", a.layers, "training.mesh.pipeline", mesh.pipeline),
        ("architecture.key_value_heads", a.groups, split, heads),
        ("the feed-forward width", a.hidden, "training.mesh.tensor", mesh.tensor),
        ("the vocabulary size", vocabulary_size, "training.mesh.tensor", mesh.tensor),
        ("training.sequence_length", training.sequence_length, split, heads),
    ]
    if mesh.expert > 1:
        rest = "the processes that share the state, divided by training.mesh.expert,"
        divisions += [
            ("architecture.experts", a.experts or 1, "training.mesh.expert", mesh.expert),
            ("architecture.width", a.width, rest, sizes.shard // mesh.expert),
            ("the feed-forward width", a.hidden, rest, sizes.shard // mesh.expert),
        ]
    for what, number, by, divisor in divisions:
        if number % divisor:
            raise InputError(f"{what} {number} is not divisible by {by} {divisor}: change one of them")
    if training.batch_size // per_step < mesh.pipeline:
        raise InputError(
            f"training.mesh.pipeline {mesh.pipeline} needs as many micro-batches in a step, there are "
            f"{training.batch_size // per_step}: lower micro_batch_size or raise batch_size"
        )
    if a.experts and mesh.tensor > 1:
        raise InputError(
            f"training.mesh.tensor {mesh.tensor} does not split experts: set it to 1, and training.mesh.expert instead"
        )
    if a.tie_embeddings and mesh.pipeline > 1:
        raise InputError(
            "architecture.tie_embeddings needs the first and the last layer in one process: "
            "set training.mesh.pipeline to 1 or tie_embeddings to false"
        )
