"""A dry run says what it cannot plan."""

from __future__ import annotations

from collections import Counter

from pipeline.workflow.dry_run import STAGES_BEHIND, describe_deferred_jobs
from pipeline.workflow.steps import STAGES


def test_jobs_behind_a_checkpoint_that_runs_are_deferred() -> None:
    others = Counter(["corpus_filter", "corpus_filter", "pretrain_segment", "sources_listing", "plan_estimate"])
    assert (describe_deferred_jobs(["sources_manifest", "sources_complete"], others) or "").endswith(
        "may also run: corpus_filter (2), pretrain_segment (1)"
    )
    assert (describe_deferred_jobs(["tokens_index"], others) or "").endswith("may also run: pretrain_segment (1)")


def test_without_a_checkpoint_the_plan_is_the_whole() -> None:
    assert describe_deferred_jobs(["evaluate_suites"], Counter(["corpus_filter"])) is None
    assert describe_deferred_jobs(["sources_complete"], Counter(["sources_listing"])) is None


def test_the_stages_behind_a_checkpoint_are_stages() -> None:
    assert all(set(stages) < set(STAGES) for stages in STAGES_BEHIND.values())
