"""A dry run reports jobs that it cannot plan."""

from __future__ import annotations

from collections import Counter

from pipeline.workflow.dry_run_summary import describe_deferred_jobs
from pipeline.workflow.steps import STAGES, STAGES_BEHIND


def test_jobs_after_a_pending_checkpoint_are_deferred() -> None:
    others = Counter(["corpus_filter", "corpus_filter", "pretrain_segment", "sources_listing", "plan_estimate"])
    assert (describe_deferred_jobs(["sources_manifest", "sources_complete"], others) or "").endswith(
        "may also run: corpus_filter (2), pretrain_segment (1)"
    )
    assert (describe_deferred_jobs(["tokens_index"], others) or "").endswith("may also run: pretrain_segment (1)")


def test_plan_without_a_checkpoint_is_complete() -> None:
    assert describe_deferred_jobs(["evaluate_suites"], Counter(["corpus_filter"])) is None
    assert describe_deferred_jobs(["sources_complete"], Counter(["sources_listing"])) is None


def test_deferred_stages_are_known_stages() -> None:
    assert all(set(stages) < set(STAGES) for stages in STAGES_BEHIND.values())
