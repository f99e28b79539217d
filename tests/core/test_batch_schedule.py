"""Steps of a batch ramp: every step in one stage, the tokens of all steps, and invalid ramps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.batch_schedule import BatchSchedule, RampStage, StepRange


def batches(*ramp: dict[str, Any], batch_size: int = 8, sequence_length: int = 32) -> BatchSchedule:
    return BatchSchedule(sequence_length, batch_size, [RampStage.model_validate(stage) for stage in ramp])


TWO = batches({"to_step": 3, "batch_size": 2, "sequence_length": 8}, {"to_step": 5, "sequence_length": 16})


def test_each_step_has_the_batch_size_of_its_stage() -> None:
    sizes = [TWO.at(step)[1:] for step in range(8)]
    assert sizes == [(2, 8)] * 3 + [(8, 16)] * 2 + [(8, 32)] * 3
    assert TWO.step_ranges(0, 8) == [StepRange(3, 2, 8), StepRange(2, 8, 16), StepRange(3, 8, 32)]
    assert TWO.step_ranges(2, 4) == [StepRange(1, 2, 8), StepRange(1, 8, 16)]
    assert TWO.ramp_steps == 5 and batches().ramp_steps == 0


def test_stages_of_equal_size_form_one_step_range() -> None:
    result = batches({"to_step": 3, "batch_size": 8}, {"to_step": 5}).step_ranges(0, 9)
    assert result == [StepRange(9, 8, 32)] == batches().step_ranges(0, 9)


@given(
    ends=st.lists(st.integers(1, 60), unique=True, max_size=4).map(sorted),
    sizes=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    first=st.integers(0, 70),
    steps=st.integers(0, 70),
)
def test_step_ranges_sum_to_the_individual_steps(ends: list[int], sizes: list[int], first: int, steps: int) -> None:
    ramp = [{"to_step": end, "batch_size": size} for end, size in zip(ends, sizes, strict=False)]
    result, last = batches(*ramp), first + steps
    one_by_one = sum(result.at(step).batch_size for step in range(first, last))
    assert result.count_sequences(last) - result.count_sequences(first) == one_by_one
    assert result.count_tokens(first, last) == 32 * one_by_one
    assert sum(stretch.steps for stretch in result.step_ranges(first, last)) == steps


@pytest.mark.parametrize(
    ("ramp", "sentence"),
    [
        ([{"to_step": 5}, {"to_step": 5}], "a stage to step 5 follows one to 5: order them"),
        ([{"to_step": 10}], "its last step 10 is not below the 10 steps: end it earlier"),
        ([{"to_step": 5, "sequence_length": 12}], "12 does not divide that after it, 32: write a divisor"),
    ],
)
def test_invalid_batch_ramp_is_refused(ramp: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        batches(*ramp).check(10)
