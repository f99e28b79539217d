"""A job that is tried again asks for more of what it lacked, and of nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from pipeline.slurm import retry
from pipeline.slurm.retry import Growth
from pipeline.slurm.sacct import Cause


@pytest.mark.parametrize(
    ("causes", "growth"),
    [
        ((), Growth()),
        (("memory",), Growth(memory=2)),
        (("time",), Growth(time=2)),
        (("memory", "time", "memory"), Growth(memory=4, time=2)),
        (("failed", "cancelled", "node", "preempted"), Growth()),
        (("memory", "failed"), Growth(memory=2)),
    ],
)
def test_a_retry_grows_by_its_causes(causes: Sequence[Cause], growth: Growth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_causes", {"rule_corpus_filter_wildcards_main_laws": Counter()})
    for cause in causes:
        retry.failed(retry.what("corpus_filter", ["main", "laws"]), cause)
    assert retry.factor("corpus_filter", ["main", "laws"], len(causes) + 1) == growth
    assert retry.factor("corpus_filter", ["main", "letters"], 2) == Growth(), "another job is another matter"


def test_a_first_attempt_asks_for_what_the_rule_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_causes", {"rule_plan_estimate": Counter({"memory": 3})})
    assert retry.factor("plan_estimate", [], 1) == Growth()
    assert retry.factor("plan_estimate", [], 2) == Growth(memory=8)
