"""A dry run reports jobs that it cannot plan."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pipeline.config.configuration_file import load_configuration
from pipeline.workflow.dry_run_summary import describe_deferred_jobs
from pipeline.workflow.job_time_estimates import JobTimes
from pipeline.workflow.steps import STAGES, STAGES_BEHIND

CONFIG = load_configuration(Path("config/micro.yaml"))


def test_jobs_after_a_pending_checkpoint_are_deferred() -> None:
    others = Counter(["pretrain_segment", "corpus_filter", "corpus_filter", "sources_listing", "plan_estimate"])
    times = JobTimes(CONFIG)
    assert (describe_deferred_jobs(["sources_manifest", "sources_complete"], others, times) or "").endswith(
        "These jobs may run after it: corpus.filter (2), pretrain.segment (1)"
    )
    times.add("pretrain.segment", 90)
    sentence = describe_deferred_jobs(["tokens_index"], others, times) or ""
    assert sentence.endswith("These jobs may run after it (about 1 min 30 s, summed over jobs): pretrain.segment (1)")
    assert "(about" not in (describe_deferred_jobs(["sources_complete"], others, times) or ""), "filter is unknown"


def test_plan_without_a_checkpoint_is_complete() -> None:
    assert describe_deferred_jobs(["evaluate_suites"], Counter(["corpus_filter"]), JobTimes(CONFIG)) is None
    assert describe_deferred_jobs(["sources_complete"], Counter(["sources_listing"]), JobTimes(CONFIG)) is None


def test_deferred_stages_are_known_stages() -> None:
    assert all(set(stages) < set(STAGES) for stages in STAGES_BEHIND.values())
