"""A dry run says what it cannot plan."""

from __future__ import annotations

from pipeline.workflow import deferred_jobs
from pipeline.workflow.steps import STAGES


def test_what_stands_behind_a_checkpoint_that_runs_may_follow() -> None:
    others = ["corpus_filter", "corpus_filter", "pretrain_segment", "sources_listing", "plan_estimate"]
    assert (deferred_jobs.sentence(["sources_manifest", "sources_complete"], others) or "").endswith(
        "may also run: corpus_filter (2), pretrain_segment (1)"
    )
    assert (deferred_jobs.sentence(["tokens_index"], others) or "").endswith("may also run: pretrain_segment (1)")


def test_without_a_checkpoint_the_plan_is_the_whole() -> None:
    assert deferred_jobs.sentence(["evaluate_suites"], ["corpus_filter"]) is None
    assert deferred_jobs.sentence(["sources_complete"], ["sources_listing"]) is None


def test_the_stages_behind_a_checkpoint_are_stages() -> None:
    assert all(set(stages) < set(STAGES) for stages in deferred_jobs.BEHIND.values())
