"""Which layers each stage of a pipeline has, and what that comes to on the process that has most: without torch."""

from __future__ import annotations

from itertools import accumulate, pairwise

from pipeline.model.settings import Architecture
from pipeline.model.size import flops_per_token, parameter_count
from pipeline.plan.settings import TrainingPlan


def output_layers(architecture: Architecture, vocabulary_size: int, sequence_length: int) -> float:
    """Return how many layers take as many operations as the output with its loss: 6 V D of a token."""
    output = 6 * vocabulary_size * architecture.width
    all_layers = flops_per_token(architecture, vocabulary_size, sequence_length) - output
    return output * architecture.layers / all_layers


def division(architecture: Architecture, vocabulary_size: int, sequence_length: int, stages: int) -> tuple[range, ...]:
    """Return the layers of each stage, in order and at least one, so that the longest stage is as short as can be.

    The output counts as `output_layers` of the last stage; the embedding takes no matrix product. Of divisions as good,
    the last stage has most layers, and of the other stages the later ones, which hold fewer micro-batches at once.
    """
    layers = architecture.layers
    if stages == 1:
        return (range(layers),)
    output, others = output_layers(architecture, vocabulary_size, sequence_length), stages - 1

    def longest(last: int) -> float:
        return max(-((last - layers) // others), last + output)

    last = min(range(layers - others, 0, -1), key=longest)
    each, more = divmod(layers - last, others)
    numbers = [each] * (others - more) + [each + 1] * more + [last]
    return tuple(range(*pair) for pair in pairwise(accumulate(numbers, initial=0)))


def process_layers(architecture: Architecture, vocabulary_size: int, training: TrainingPlan) -> list[int]:
    """Return the number of layers of each process of a pipeline; the first has the embedding, the last the output."""
    m = training.mesh
    parts = division(architecture, vocabulary_size, training.sequence_length, m.pipeline * m.interleaving)
    return [sum(map(len, parts[process :: m.pipeline])) for process in range(m.pipeline)]


def process_work(architecture: Architecture, vocabulary_size: int, training: TrainingPlan) -> list[float]:
    """Return what each process of a pipeline computes, in layers: see `output_layers`."""
    *others, last = process_layers(architecture, vocabulary_size, training)
    return [*others, last + output_layers(architecture, vocabulary_size, training.sequence_length)]


def layers_under_way(architecture: Architecture, vocabulary_size: int, training: TrainingPlan) -> int:
    """Return of how many layers a process holds what the backward pass needs: of its layers, a micro-batch each.

    1F1B has a micro-batch under way for each stage from this one on; interleaved, each of the v parts of process r of p
    runs (v - 1) p + 2 (p - 1 - r) times before the first backward pass, and once more (Narayanan et al. 2021, section
    2.2).
    """
    p, v = training.mesh.pipeline, training.mesh.interleaving
    numbers = process_layers(architecture, vocabulary_size, training)
    if v == 1:
        return max(number * (p - process) for process, number in enumerate(numbers))
    return max(-(-number * ((v - 1) * p + 2 * (p - 1 - r) + 1) // v) for r, number in enumerate(numbers))


def device_parameters(architecture: Architecture, vocabulary_size: int, training: TrainingPlan) -> float:
    """Return the parameters of the process of a pipeline that has most, those of all that share its state.

    The tensor devices split all of them but the matrices of key-value heads that they do not divide, which each has.
    """
    a, t = architecture, training.mesh.tensor
    shared = 2 * a.width * a.groups * a.head_dimension if a.groups % t else 0
    table = vocabulary_size * a.width
    tables = 1 if a.tie_embeddings else 2
    block = (parameter_count(a, vocabulary_size) - tables * table - a.width) / a.layers
    numbers = process_layers(a, vocabulary_size, training)
    outside = [0.0] * len(numbers)
    outside[0] += table
    outside[-1] += a.width + (tables - 1) * table
    return max(
        number * ((block - shared) / t + shared) + other / t for number, other in zip(numbers, outside, strict=True)
    )
