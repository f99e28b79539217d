from __future__ import annotations

from pipeline.core.batch_schedule import median_step_seconds


def test_step_time_is_the_median_between_step_ends() -> None:
    ends = [(1, 10.0), (2, 11.0), (3, 12.5), (4, 13.5), (5, 99.0), (6, 100.0)]  # a validation after the fourth
    lines = [{"step": step, "seconds": 0.1, "ended_unix_seconds": end} for step, end in ends]
    assert median_step_seconds([*lines, {"step": 6, "validation_loss": 2.0}]) == 1.0
    assert median_step_seconds(lines[:1]) is None and median_step_seconds([]) is None
    assert median_step_seconds([lines[0], lines[2]]) is None, "a step is missing between"


def test_validations_are_excluded_from_step_time():
    lines = []
    for step in range(1, 9):
        lines.append({"step": step, "ended_unix_seconds": 10.0 * (step // 2) + step})
        lines += [{"step": step, "validation_loss": 2.0}] * (step % 2)  # after each odd step, for ten seconds
    assert median_step_seconds(lines) == 1.0
    assert median_step_seconds([*lines[:2], lines[2]]) is None, "a step needs a predecessor"
