"""Remaining jobs are estimated by finished jobs of the same step, or by the plan's forecast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.config.configuration import Config
from pipeline.workflow.job_time_estimates import JobTimes
from tests.record_content import record_content
from tests.workflow.test_progress_display import run_config


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "provenance/records").mkdir(parents=True)
    (tmp_path / "plan").mkdir()
    return run_config(tmp_path)


def write_record(run: Path, corpus: str, seconds: float) -> None:
    """Write the record of a finished job."""
    content = record_content("corpus.ngrams", instance={"corpus": corpus}, wall_seconds=seconds)
    (run / f"provenance/records/corpus.ngrams.{corpus}.json").write_text(json.dumps(content))


def test_job_times_prefer_this_invocation_then_records_then_the_plan(config: Config) -> None:
    run = config.run_directory
    assert JobTimes(config).mean_seconds("plan.estimate") is None
    (run / "plan/plan.json").write_text(json.dumps({"forecast": {"steps": {"plan.estimate": {"seconds": 12.0}}}}))
    assert JobTimes(config).mean_seconds("plan.estimate") == 12
    write_record(run, "main", 4.0)
    write_record(run, "other", 6.0)
    (run / "provenance/records/corpus.ngrams.half.json").write_text("{")
    times = JobTimes(config)
    assert times.sum_job_seconds({"corpus.ngrams": 3, "report.page": 1, "plan.estimate": 0}) == (15, ["report.page"])
    times.add("corpus.ngrams", 10.0)
    assert times.mean_seconds("corpus.ngrams") == 10
