"""Slow processes are reported, from real probes and from their reports."""

from __future__ import annotations

import pytest
import torch

from pipeline.pretrain.monitors.metrics import SLOW_RATIO, UNKNOWN, format_slow_process, summarize_probes
from pipeline.pretrain.monitors.telemetry import PROBE_STEPS, SpeedProbe
from pipeline.pretrain.training_follower import format_training_progress as followed


def test_probe_is_taken_once_and_only_in_its_turn() -> None:
    probe = SpeedProbe(torch.device("cpu"))
    probe.begin(PROBE_STEPS - 1)
    assert probe.pop_last_probe_seconds() == UNKNOWN
    probe.begin(PROBE_STEPS)
    assert 0 < probe.pop_last_probe_seconds() < 10
    assert probe.pop_last_probe_seconds() == UNKNOWN


def test_disturbed_probe_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = iter([10.0, 10.5, 11.0, 31.0, 31.5, 32.0])
    monkeypatch.setattr(SpeedProbe, "_record_time", lambda _: next(marks))
    probe = SpeedProbe(torch.device("cpu"))
    probe.begin(0)
    assert probe.pop_last_probe_seconds() == 0.5 and not [*marks]


def test_slow_process_is_named_with_its_node() -> None:
    line = summarize_probes([0.010, 0.011, 0.025, 0.010])
    expected = {"probe_seconds": 0.0105, "slowest_process": 2, "slowest_process_ratio": 0.025 / 0.0105}
    assert line == pytest.approx(expected)
    message = format_slow_process(line, ["a", "a", "b", "b"]) or ""
    assert message.startswith(
        "process 2 on b takes 2.38 times as long as the median of all processes for the same work"
    )
    assert format_slow_process(summarize_probes([1.0, 1.0, SLOW_RATIO - 0.01]), ["a"] * 3) is None
    assert format_slow_process(summarize_probes([1.0, 1.0, SLOW_RATIO]), ["a"] * 3)
    assert format_slow_process({}, ["a"]) is None
    assert summarize_probes([0.01, UNKNOWN]) == {}, "one is unknown"


def test_follower_shows_a_slow_process_until_the_next_probe_is_better() -> None:
    lines = [{"step": step, "loss": 2.0, "seconds": 1.0} for step in range(1, 5)]
    lines[1] |= summarize_probes([0.01, 0.01, 0.02])
    assert "process 2 takes 2.00 × the median" in followed("base", lines)
    lines[3] |= summarize_probes([0.01, 0.01, 0.0101])
    assert "the median" not in followed("base", lines)
