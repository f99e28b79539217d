"""Which batches are left out, and what a training step draws then."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.pretrain.bad_batches import BadBatchDetector, Rewind, spike_threshold
from pipeline.pretrain.checkpoints.recovery import (
    Rewinds,
    add_rewinds_to_skips,
    last_regular_step,
    list_recovery_checkpoints,
)
from pipeline.pretrain.settings import Stability, Training
from pipeline.tokens.sampler import data_step_after_skips

SKIPS = st.sets(st.integers(0, 60)).map(sorted)


@given(SKIPS)
def test_the_steps_draw_every_data_step_once_in_order_but_the_skipped(skips: list[int]) -> None:
    drawn = [data_step_after_skips(step, skips) for step in range(100)]
    assert drawn == [number for number in range(200) if number not in skips][:100]


@given(SKIPS, st.integers(0, 60))
def test_a_later_skip_changes_no_step_before_it(skips: list[int], step: int) -> None:
    number = data_step_after_skips(step, skips)
    more = sorted([*skips, number])
    assert [data_step_after_skips(s, more) for s in range(step)] == [
        data_step_after_skips(s, skips) for s in range(step)
    ]
    assert data_step_after_skips(step, more) > number


@given(st.lists(st.floats(1, 10), min_size=9, max_size=9), st.lists(st.floats(1e3, 1e9), min_size=4, max_size=4))
def test_few_outliers_do_not_move_the_threshold_to_them(usual: list[float], wild: list[float]) -> None:
    assert spike_threshold([*usual, *wild], 20) < 10 + 20 * 9 + 1


def judge(**settings: object) -> BadBatchDetector:
    return BadBatchDetector(Stability.model_validate({"window": 8, **settings}), [], {})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_bad_from_the_first_step_and_with_spikes_off(value: float) -> None:
    off = judge(loss_deviations=0, gradient_norm_deviations=0)
    assert off.find_reason(loss=value, gradient_norm=1.0) == f"loss is {value}"
    assert off.find_reason(loss=1.0, gradient_norm=value) == f"gradient_norm is {value}"
    assert off.find_reason(loss=1e30, gradient_norm=1e30) is None


def test_a_spike_is_told_from_a_full_window_only_and_is_no_part_of_it() -> None:
    found = judge(loss_deviations=10)
    for number in range(8):
        assert found.find_reason(loss=1e6, gradient_norm=1.0) is None
        found.record_good(loss=3.0 + 0.1 * (number % 2), gradient_norm=1.0)
    assert found.find_reason(loss=3.5, gradient_norm=1.0) is None
    assert found.find_reason(loss=4.0, gradient_norm=1.0) == "loss 4 is above 3.55"
    assert found.find_reason(loss=0.1, gradient_norm=1.0) is None
    assert found.find_reason(loss=3.0, gradient_norm=3.0) == "gradient_norm 3 is above 2"


def test_a_judge_continues_as_one_that_was_not_stopped() -> None:
    first = judge(loss_deviations=10)
    for number in range(20):
        first.record_good(loss=3.0 + 0.01 * number, gradient_norm=1.0)
    first.skip(5, 4, {"loss": math.nan}, "loss is nan", 0)
    state = first.state()
    second = BadBatchDetector(first.settings, state["skips"], state["recent"])
    assert second.state() == state
    assert second.find_reason(loss=9.0, gradient_norm=1.0) == first.find_reason(loss=9.0, gradient_norm=1.0) is not None


def test_too_many_in_a_row_fail_with_advice_and_a_good_one_in_between_does_not() -> None:
    found = judge(skips_in_a_row=2)
    for number in range(6):
        line = found.skip(3, number, {"loss": math.inf}, "loss is inf", 0)
        assert line == {"step": 3, "skipped_data_steps": [number], "reason": "loss is inf", "skipped_loss": None}
        if number % 2:
            found.record_good(loss=1.0, gradient_norm=1.0)
    found.skip(3, 6, {}, "loss is inf", 0)
    found.skip(3, 7, {}, "loss is inf", 0)
    with pytest.raises(FloatingPointError, match="loss is inf in batch 3 of step 3: lower learning_rate"):
        found.skip(3, 8, {}, "loss is inf", 0)
    with pytest.raises(FloatingPointError, match="batch 1 of step 3"):
        judge(bad_step="fail").skip(3, 8, {}, "loss is inf", 0)


def test_a_rewind_leaves_out_all_from_the_regular_checkpoint_and_drops_newer_ones(tmp_path: Path) -> None:
    assert [last_regular_step(step, 5, 2) for step in (3, 5, 6, 10, 11)] == [2, 2, 5, 5, 10]
    assert last_regular_step(7, 0, 2) == 2
    found = BadBatchDetector(Stability(bad_step="rewind"), [6], {})
    with pytest.raises(Rewind) as raised:
        found.skip(8, 8, {}, "loss is nan", 5)
    (rewind,) = raised.value.args
    assert rewind == {"back_to": 5, "data_steps": [5, 7, 8], "step": 8, "reason": "loss is nan"}
    rewinds = Rewinds(tmp_path / "rewinds.json", "this")
    rewinds.add(rewind, 2)
    for step, skips in ((5, "[6]"), (7, "[6]"), (9, "[5, 6, 7, 8]")):
        (tmp_path / str(step)).mkdir()
        (tmp_path / str(step) / "state.json").write_text(f'{{"skips": {skips}}}')
    again = Rewinds(tmp_path / "rewinds.json", "this")
    again.remove_affected_checkpoints(tmp_path)
    assert [step for step, _ in list_recovery_checkpoints(tmp_path)] == [9, 5]
    assert add_rewinds_to_skips(again.entries, [6]) == ([5, 6, 7, 8], [rewind])
    assert add_rewinds_to_skips(again.entries, [5, 6, 7, 8]) == ([5, 6, 7, 8], [])
    assert Rewinds(tmp_path / "rewinds.json", "another").entries == []
    again.add(rewind, 2)
    with pytest.raises(RuntimeError, match="after 3 rewinds: lower learning_rate"):
        again.add(rewind, 2)


def test_a_rewind_needs_checkpoints() -> None:
    sizes = {"sequence_length": 8, "batch_size": 1, "micro_batch_size": 1, "steps": 1, "learning_rate": 0.1}
    with pytest.raises(ValueError, match="set checkpoint_every above 0"):
        Training.model_validate({**sizes, "checkpoint_every": 0, "stability": {"bad_step": "rewind"}})
