"""Published figures are reproduced."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.energy.settings import JOULES_PER_KWH
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import flops_per_token, parameter_count
from pipeline.plan import training_cost_formulas
from pipeline.plan.settings import TrainingPlan

LLAMA3_VOCABULARY = 128_256
EIGHT = Architecture(layers=32, width=4096, feed_forward_width=14336, heads=32, key_value_heads=8)
THIRTY = Architecture(layers=60, width=6656, feed_forward_width=17920, heads=52, key_value_heads=13)
DAY = 86_400


def days(parameters: float, *, recomputation: bool) -> float:
    """Days for 450 billion tokens on 88 H100 (989.5 TFLOP/s in bf16) at 40 % of the peak."""
    flops = training_cost_formulas.training_flops(parameters, 450e9, recomputation=recomputation)
    seconds = training_cost_formulas.duration_seconds(
        flops, devices=88, peak_flops_per_second=989.5e12, utilization=0.4
    )
    return seconds / DAY


def test_parameter_counts_of_the_8b_and_30b_shapes():
    assert parameter_count(EIGHT, LLAMA3_VOCABULARY) == 8_030_261_248  # the published count of Llama 3 8B
    assert round(parameter_count(THIRTY, LLAMA3_VOCABULARY) / 1e9, 2) == 29.82


def test_training_time_of_the_30b_run_equals_the_published_one():
    assert round(days(30.0e9, recomputation=False), 1) == 26.9
    assert round(days(30.0e9, recomputation=True), 1) == 35.9
    assert round(days(29.82e9, recomputation=False), 1) == 26.8
    assert round(days(29.82e9, recomputation=True), 1) == 35.7


def test_general_purpose_criterion_depends_on_the_flops_convention():
    share = training_cost_formulas.training_flops(30e9, 450e9) / training_cost_formulas.GENERAL_PURPOSE_FLOPS
    again = (
        training_cost_formulas.training_flops(30e9, 450e9, recomputation=True)
        / training_cost_formulas.GENERAL_PURPOSE_FLOPS
    )
    assert (round(share, 2), round(again, 2)) == (0.81, 1.08)


def test_zero1_state_of_a_13_6b_model_on_80_devices():
    state = training_cost_formulas.model_state_bytes(13.6e9, strategy="zero1", precision="bf16", devices=80)
    assert round(state / 1e9, 1) == 56.4


def test_accumulated_unsharded_gradients_are_float32():
    for precision, weights, optimizer in (("bf16", 2, 12), ("fp32", 4, 8)):
        state = training_cost_formulas.model_state_bytes(
            1000, strategy="shard_optimizer", precision=precision, devices=4
        )
        assert state == 1000 * (weights + 4 + optimizer / 4)


def test_energy_of_two_nodes_over_an_hour():
    joules = training_cost_formulas.energy_joules(3660, devices=2, device_power_watts=381.51)
    assert round(joules / 1e6, 2) == 2.79
    assert round(joules / JOULES_PER_KWH, 3) == 0.776


def test_attention_heads_are_divided_by_their_divisors():
    assert training_cost_formulas.tensor_parallel_degrees(THIRTY) == [1, 2, 4]
    assert training_cost_formulas.tensor_parallel_degrees(EIGHT) == [1, 2, 4, 8]


@given(parameters=st.integers(1, 10**12), devices=st.integers(1, 4096))
def test_more_sharding_never_needs_more_memory(parameters: int, devices: int):
    for precision in training_cost_formulas.STATE_BYTES:
        for order in (
            ("no_shard", "shard_grad_op", "full_shard"),
            ("no_shard", "hybrid_shard_zero2", "hybrid_shard"),
            ("zero0", "zero1", "zero2", "zero3"),
        ):
            sizes = [
                training_cost_formulas.model_state_bytes(
                    parameters, strategy=strategy, precision=precision, devices=devices
                )
                for strategy in order
            ]
            assert sizes == sorted(sizes, reverse=True)
            assert sizes[0] == 16 * parameters
            assert math.isclose(sizes[-1], 16 * parameters / devices)


def test_hybrid_sharding_shards_within_a_node_and_offloading_frees_the_device():
    def state(strategy):
        return training_cost_formulas.model_state_bytes(8e9, strategy=strategy, precision="bf16", devices=64, node=4)

    assert state("hybrid_shard") == 16 * 8e9 / 4
    assert state("hybrid_shard_zero2") == 2 * 8e9 + 14 * 8e9 / 4
    assert state("zero2_offload_optimizer") == 2 * 8e9 + 2 * 8e9 / 64
    assert state("zero3_offload_optimizer") == 4 * 8e9 / 64
    assert state("zero3_offload_all") == 2 * 8e9 / 64
    assert state("zero3_optimizer_on_disk") == state("zero3_offload_optimizer") == 4 * 8e9 / 64


def test_gathered_bytes_are_embeddings_and_two_blocks():
    def gathered(shape: Architecture = EIGHT, strategy: str = "full_shard", **changes: Any) -> float:
        numbers = {"sequence_length": 4096, "batch_size": 8, "micro_batch_size": 1, "steps": 1, "precision": "bf16"}
        training = TrainingPlan.model_validate({**numbers, "strategy": strategy, **changes})
        return training_cost_formulas.gathered_bytes(shape, LLAMA3_VOCABULARY, training)

    tables, block = 2 * 128_256 * 4096, 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336 + 2 * 4096
    assert gathered() == 2 * (tables + 2 * block)
    assert gathered(mesh={"tensor": 4}) == gathered() / 4 and gathered(precision="fp32") == 2 * gathered()
    # The output takes 2.09 layers' operations, so that the first of two stages has 17 layers of 32.
    assert gathered(mesh={"pipeline": 2}) == 2 * (tables / 2 + 17 * block)
    assert gathered(EIGHT.model_copy(update={"tie_embeddings": True})) == 2 * (tables / 2 + 2 * block)
    assert gathered(strategy="shard_grad_op") == gathered(strategy="zero2") == 0 < gathered(strategy="zero3")


def test_scores_take_four_bytes_per_position_pair_head_and_block():
    plain = TrainingPlan(sequence_length=4096, batch_size=8, micro_batch_size=2, steps=1, flash_attention=False)
    assert training_cost_formulas.attention_score_bytes(
        EIGHT, plain, 2 * 4096, recomputation=False
    ) == 4 * 2 * 4096**2 * 32 * (32 + 2)
    assert training_cost_formulas.attention_score_bytes(
        EIGHT, plain, 2 * 4096, recomputation=True
    ) == 4 * 2 * 4096**2 * 32 * (1 + 2)
    flash = plain.model_copy(update={"flash_attention": True})
    assert training_cost_formulas.attention_score_bytes(EIGHT, flash, 2 * 4096, recomputation=False) == 0


EIGHT_B = Architecture(preset="llama3-8b")
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
def test_pipeline_division_minimizes_the_longest_stage(layers: int, number: int, vocabulary: int, length: int) -> None:
    number = min(number, layers)
    shape = Architecture(layers=layers, width=64, heads=4)
    output = training_cost_formulas.output_cost_in_layers(shape, vocabulary, length)
    # The output's operations equal those of a model without layers: the difference of two sizes gives them.
    twice, once = (flops_per_token(shape.model_copy(update={"layers": n * layers}), vocabulary, length) for n in (2, 1))
    assert math.isclose(output * (twice - once) / layers, 2 * once - twice)

    def longest(parts: list[int]) -> float:
        return max(*parts[:-1], parts[-1] + output, 0)

    result = training_cost_formulas.divide_layers(shape, vocabulary, length, number)
    assert len(result) == number and all(result) and [layer for part in result for layer in part] == list(range(layers))
    every = (
        [stop - start for start, stop in pairwise((0, *cuts, layers))]
        for cuts in combinations(range(1, layers), number - 1)
    )
    assert math.isclose(longest([*map(len, result)]), min(map(longest, every)))


def test_last_stage_has_fewer_layers_by_the_output_cost() -> None:
    assert round(training_cost_formulas.output_cost_in_layers(EIGHT_B, VOCABULARY, 8192), 2) == 1.84
    assert training_cost_formulas.layers_per_pipeline_rank(EIGHT_B, VOCABULARY, training(pipeline=4)) == [8, 8, 9, 7]
    # Of eight stages, two on each process: 4 layers, but 5 in the seventh and 3 in the last one.
    assert training_cost_formulas.layers_per_pipeline_rank(
        EIGHT_B, VOCABULARY, training(pipeline=4, interleaving=2)
    ) == [8, 8, 9, 7]
    assert training_cost_formulas.work_per_pipeline_rank(EIGHT_B, VOCABULARY, training(pipeline=4))[
        -1
    ] == 7 + training_cost_formulas.output_cost_in_layers(EIGHT_B, VOCABULARY, 8192)
    assert training_cost_formulas.layers_per_pipeline_rank(EIGHT_B, 256, training(pipeline=4)) == [8, 8, 8, 8]


def test_first_pipeline_rank_holds_the_most_micro_batches() -> None:
    assert training_cost_formulas.layers_in_flight(EIGHT_B, VOCABULARY, training()) == 32
    assert training_cost_formulas.layers_in_flight(EIGHT_B, VOCABULARY, training(pipeline=4)) == 4 * 8
    # (v - 1) p + 2 (p - 1) + 1 = 11 times its two parts of four layers.
    assert training_cost_formulas.layers_in_flight(EIGHT_B, VOCABULARY, training(pipeline=4, interleaving=2)) == 11 * 4


def test_device_parameters_are_those_of_the_largest_rank() -> None:
    number, table = parameter_count(EIGHT_B, VOCABULARY), VOCABULARY * 4096
    assert training_cost_formulas.parameters_per_device(EIGHT_B, VOCABULARY, training()) == number
    assert training_cost_formulas.parameters_per_device(EIGHT_B, VOCABULARY, training(tensor=4)) == number / 4
    block = (number - 2 * table - 4096) / 32
    assert training_cost_formulas.parameters_per_device(EIGHT_B, VOCABULARY, training(pipeline=4)) == max(
        8 * block + table, 9 * block
    )
    thirty = Architecture(preset="gptnl-30b")
    of_heads = 60 * 2 * 6656 * 13 * 128  # the matrices of keys and values, replicated on each of four devices
    number = parameter_count(thirty, VOCABULARY)
    assert (
        training_cost_formulas.parameters_per_device(thirty, VOCABULARY, training(tensor=4))
        == (number - of_heads) / 4 + of_heads
    )
