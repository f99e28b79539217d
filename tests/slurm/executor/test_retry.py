"""A retried job requests more of the resource that it lacked, and of nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from pipeline.slurm.executor import job_requests
from pipeline.slurm.executor.host_interface import Cause
from pipeline.slurm.executor.job_requests import RequestGrowth


@pytest.mark.parametrize(
    ("causes", "growth"),
    [
        ((), RequestGrowth()),
        (("memory",), RequestGrowth(memory=2)),
        (("time",), RequestGrowth(time=2)),
        (("memory", "time", "memory"), RequestGrowth(memory=4, time=2)),
        (("failed", "cancelled", "node", "preempted"), RequestGrowth()),
        (("memory", "failed"), RequestGrowth(memory=2)),
    ],
)
def test_retry_requests_grow_by_cause(
    causes: Sequence[Cause], growth: RequestGrowth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_requests, "_causes", {"rule_corpus_filter_wildcards_main_laws": Counter()})
    for cause in causes:
        job_requests.record_failure(job_requests.job_comment("corpus_filter", ["main", "laws"]), cause)
    assert job_requests.compute_request_growth("corpus_filter", ["main", "laws"], len(causes) + 1) == growth
    assert job_requests.compute_request_growth("corpus_filter", ["main", "letters"], 2) == RequestGrowth(), (
        "another job is independent"
    )


def test_first_attempt_requests_the_resources_of_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_requests, "_causes", {"rule_plan_estimate": Counter({"memory": 3})})
    assert job_requests.compute_request_growth("plan_estimate", [], 1) == RequestGrowth()
    assert job_requests.compute_request_growth("plan_estimate", [], 2) == RequestGrowth(memory=8)
