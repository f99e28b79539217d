"""The layers of a pipeline's stages: each once, in order, and the longest stage as short as it can be."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.model.settings import Architecture
from pipeline.model.size import flops_per_token, parameter_count
from pipeline.plan import stages
from pipeline.plan.settings import TrainingPlan

EIGHT = Architecture(preset="llama3-8b")
VOCABULARY = 128_256


def training(length: int = 8192, **mesh: int) -> TrainingPlan:
    numbers: dict[str, Any] = {"sequence_length": length, "batch_size": 64, "micro_batch_size": 1, "steps": 1}
    return TrainingPlan.model_validate({**numbers, "mesh": mesh})


@given(
    layers=st.integers(1, 11),
    number=st.integers(1, 6),
    vocabulary=st.integers(1, 60_000),
    length=st.sampled_from([8, 512, 8192]),
)
def test_no_division_has_a_shorter_longest_stage(layers: int, number: int, vocabulary: int, length: int) -> None:
    number = min(number, layers)
    shape = Architecture(layers=layers, width=64, heads=4)
    output = stages.output_layers(shape, vocabulary, length)
    # The output's operations are what a model has without any layer: of two sizes, what their difference leaves.
    twice, once = (flops_per_token(shape.model_copy(update={"layers": n * layers}), vocabulary, length) for n in (2, 1))
    assert math.isclose(output * (twice - once) / layers, 2 * once - twice)

    def longest(parts: list[int]) -> float:
        return max(*parts[:-1], parts[-1] + output, 0)

    found = stages.division(shape, vocabulary, length, number)
    assert len(found) == number and all(found) and [layer for part in found for layer in part] == list(range(layers))
    every = (
        [stop - start for start, stop in pairwise((0, *cuts, layers))]
        for cuts in combinations(range(1, layers), number - 1)
    )
    assert math.isclose(longest([*map(len, found)]), min(map(longest, every)))


def test_the_last_stage_has_fewer_layers_by_what_the_output_costs() -> None:
    assert round(stages.output_layers(EIGHT, VOCABULARY, 8192), 2) == 1.84
    assert stages.process_layers(EIGHT, VOCABULARY, training(pipeline=4)) == [8, 8, 9, 7]
    # Of eight stages, two on each process: 4 layers, but 5 in the seventh and 3 in the last one.
    assert stages.process_layers(EIGHT, VOCABULARY, training(pipeline=4, interleaving=2)) == [8, 8, 9, 7]
    assert stages.process_work(EIGHT, VOCABULARY, training(pipeline=4))[-1] == 7 + stages.output_layers(
        EIGHT, VOCABULARY, 8192
    )
    assert stages.process_layers(EIGHT, 256, training(pipeline=4)) == [8, 8, 8, 8]


def test_the_first_process_holds_most_micro_batches() -> None:
    assert stages.layers_under_way(EIGHT, VOCABULARY, training()) == 32
    assert stages.layers_under_way(EIGHT, VOCABULARY, training(pipeline=4)) == 4 * 8
    # (v - 1) p + 2 (p - 1) + 1 = 11 times its two parts of four layers.
    assert stages.layers_under_way(EIGHT, VOCABULARY, training(pipeline=4, interleaving=2)) == 11 * 4


def test_parameters_of_a_device_are_those_of_the_fullest_process() -> None:
    number, table = parameter_count(EIGHT, VOCABULARY), VOCABULARY * 4096
    assert stages.device_parameters(EIGHT, VOCABULARY, training()) == number
    assert stages.device_parameters(EIGHT, VOCABULARY, training(tensor=4)) == number / 4
    block = (number - 2 * table - 4096) / 32
    assert stages.device_parameters(EIGHT, VOCABULARY, training(pipeline=4)) == max(8 * block + table, 9 * block)
    thirty = Architecture(preset="gptnl-30b")
    of_heads = 60 * 2 * 6656 * 13 * 128  # the matrices of keys and values, which each of four devices has
    number = parameter_count(thirty, VOCABULARY)
    assert stages.device_parameters(thirty, VOCABULARY, training(tensor=4)) == (number - of_heads) / 4 + of_heads
