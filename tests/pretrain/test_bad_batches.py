"""Skipped batches, and the data steps of a training."""

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
def test_steps_draw_every_data_step_once_in_order_except_skipped_ones(skips: list[int]) -> None:
    drawn = [data_step_after_skips(step, skips) for step in range(100)]
    assert drawn == [number for number in range(200) if number not in skips][:100]


@given(SKIPS, st.integers(0, 60))
def test_later_skip_changes_no_earlier_step(skips: list[int], step: int) -> None:
    number = data_step_after_skips(step, skips)
    more = sorted([*skips, number])
    assert [data_step_after_skips(s, more) for s in range(step)] == [
        data_step_after_skips(s, skips) for s in range(step)
    ]
    assert data_step_after_skips(step, more) > number


@given(st.lists(st.floats(1, 10), min_size=9, max_size=9), st.lists(st.floats(1e3, 1e9), min_size=4, max_size=4))
def test_few_outliers_do_not_raise_the_threshold_to_their_level(usual: list[float], wild: list[float]) -> None:
    assert spike_threshold([*usual, *wild], 20) < 10 + 20 * 9 + 1


def judge(**settings: object) -> BadBatchDetector:
    return BadBatchDetector(Stability.model_validate({"window": 8, **settings}), [], {})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_loss_is_bad_from_the_first_step_without_spike_detection(value: float) -> None:
    off = judge(loss_deviations=0, gradient_norm_deviations=0)
    assert off.find_reason(loss=value, gradient_norm=1.0) == f"loss is {value}"
    assert off.find_reason(loss=1.0, gradient_norm=value) == f"gradient_norm is {value}"
    assert off.find_reason(loss=1e30, gradient_norm=1e30) is None


def test_spike_is_detected_only_with_a_full_window_and_not_added_to_it() -> None:
    result = judge(loss_deviations=10)
    for number in range(8):
        assert result.find_reason(loss=1e6, gradient_norm=1.0) is None
        result.record_good(loss=3.0 + 0.1 * (number % 2), gradient_norm=1.0)
    assert result.find_reason(loss=3.5, gradient_norm=1.0) is None
    assert result.find_reason(loss=4.0, gradient_norm=1.0) == "loss 4 is above 3.55"
    assert result.find_reason(loss=0.1, gradient_norm=1.0) is None
    assert result.find_reason(loss=3.0, gradient_norm=3.0) == "gradient_norm 3 is above 2"


def test_restored_detector_continues_as_an_uninterrupted_one() -> None:
    first = judge(loss_deviations=10)
    for number in range(20):
        first.record_good(loss=3.0 + 0.01 * number, gradient_norm=1.0)
    first.skip(5, 4, {"loss": math.nan}, "loss is nan", 0)
    state = first.state()
    second = BadBatchDetector(first.settings, state["skips"], state["recent"])
    assert second.state() == state
    assert second.find_reason(loss=9.0, gradient_norm=1.0) == first.find_reason(loss=9.0, gradient_norm=1.0) is not None


def test_too_many_consecutive_bad_batches_fail_with_advice() -> None:
    result = judge(skips_in_a_row=2)
    for number in range(6):
        line = result.skip(3, number, {"loss": math.inf}, "loss is inf", 0)
        assert line == {"step": 3, "skipped_data_steps": [number], "reason": "loss is inf", "skipped_loss": None}
        if number % 2:
            result.record_good(loss=1.0, gradient_norm=1.0)
    result.skip(3, 6, {}, "loss is inf", 0)
    result.skip(3, 7, {}, "loss is inf", 0)
    with pytest.raises(FloatingPointError, match="loss is inf in batch 3 of step 3: lower learning_rate"):
        result.skip(3, 8, {}, "loss is inf", 0)
    with pytest.raises(FloatingPointError, match="batch 1 of step 3"):
        judge(bad_step="fail").skip(3, 8, {}, "loss is inf", 0)


def test_rewind_skips_all_steps_since_the_regular_checkpoint_and_drops_newer_ones(tmp_path: Path) -> None:
    assert [last_regular_step(step, 5, 2) for step in (3, 5, 6, 10, 11)] == [2, 2, 5, 5, 10]
    assert last_regular_step(7, 0, 2) == 2
    batch_detector = BadBatchDetector(Stability(bad_step="rewind"), [6], {})
    with pytest.raises(Rewind) as raised:
        batch_detector.skip(8, 8, {}, "loss is nan", 5)
    (rewind,) = raised.value.args
    assert rewind == {"back_to": 5, "data_steps": [5, 7, 8], "step": 8, "reason": "loss is nan"}
    rewinds = Rewinds(tmp_path / "rewinds.json", "this")
    rewinds.record_rewind(rewind, 2)
    for step, skips in ((5, "[6]"), (7, "[6]"), (9, "[5, 6, 7, 8]")):
        (tmp_path / str(step)).mkdir()
        (tmp_path / str(step) / "state.json").write_text(f'{{"skips": {skips}}}')
    again = Rewinds(tmp_path / "rewinds.json", "this")
    again.remove_affected_checkpoints(tmp_path)
    assert [step for step, _ in list_recovery_checkpoints(tmp_path)] == [9, 5]
    assert add_rewinds_to_skips(again.entries, [6]) == ([5, 6, 7, 8], [rewind])
    assert add_rewinds_to_skips(again.entries, [5, 6, 7, 8]) == ([5, 6, 7, 8], [])
    assert Rewinds(tmp_path / "rewinds.json", "another").entries == []
    again.record_rewind(rewind, 2)
    with pytest.raises(RuntimeError, match="after 3 rewinds: lower learning_rate"):
        again.record_rewind(rewind, 2)


def test_rewind_needs_checkpoints() -> None:
    sizes = {"sequence_length": 8, "batch_size": 1, "micro_batch_size": 1, "steps": 1, "learning_rate": 0.1}
    with pytest.raises(ValueError, match="set checkpoint_every above 0"):
        Training.model_validate({**sizes, "checkpoint_every": 0, "stability": {"bad_step": "rewind"}})
