"""Snakemake's own process is metered with all that runs below it."""

from __future__ import annotations

from pathlib import Path

from pipeline import layout
from pipeline.core.archived_run_files import FileStore
from pipeline.energy.readings import read_intervals
from tests.conftest import new_project
from tests.stored import read_attempts


def test_invocation_is_metered_with_its_jobs_and_a_dry_run_is_not(tmp_path: Path) -> None:
    project = new_project(tmp_path / "polder")
    project.warm = False
    project.keep_sources("nl_gids")
    folder = project.results / "provenance/readings"
    project.run("sources", "--dry-run")
    assert not folder.exists()
    project.run("sources")
    files = FileStore(project.results).find_all(layout.READINGS.child("*.jsonl"))
    used = {file.stem: sum(one.job_cpu_seconds for one in read_intervals(file)) for file in files}
    (own,) = [name for name in used if name.startswith("snakemake.")]
    jobs = {name.partition("@")[0] for name in used.keys() - {own}}
    assert jobs == {Path(name).stem for name in project.attempts()}
    snakemake_ids = {attempt["snakemake"] for attempt in read_attempts(project.results).values()}
    assert snakemake_ids == {own.partition("@")[0]} and own.partition("@")[0].endswith(f".{project.results.name}")
    assert used[own] > sum(seconds for name, seconds in used.items() if name != own), "it includes its jobs"
    for file in (file for file in files if file.stem != own):
        first, second, *_ = read_intervals(file)
        assert first.job_cpu_seconds < second.job_cpu_seconds, "counters are sampled before the job imports anything"
