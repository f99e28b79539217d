"""Snakemake's own process is metered with all that runs below it."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.energy.readings import read_intervals
from tests.conftest import new_project


def test_a_start_is_metered_with_its_jobs_and_a_dry_run_is_not(tmp_path: Path) -> None:
    project = new_project(tmp_path / "polder")
    project.warm = False
    project.keep_sources("nl_gids")
    folder = project.results / "provenance/readings"
    project.run("sources", "--dry-run")
    assert not folder.exists()
    project.run("sources")
    used = {path.stem: sum(one.job_cpu_seconds for one in read_intervals(path)) for path in folder.iterdir()}
    (own,) = [name for name in used if name.startswith("snakemake.")]
    jobs = {name.partition("@")[0] for name in used.keys() - {own}}
    assert jobs == {Path(name).stem for name in project.attempts()}
    whose = {json.loads(path.read_text())["snakemake"] for path in (project.results / "provenance/attempts").iterdir()}
    assert whose == {own.partition("@")[0]} and own.partition("@")[0].endswith(f".{project.results.name}")
    assert used[own] > sum(seconds for name, seconds in used.items() if name != own), "it holds its jobs"
    for path in (path for path in folder.iterdir() if path.stem != own):
        first, second, *_ = read_intervals(path)
        assert first.job_cpu_seconds < second.job_cpu_seconds, "counters are sampled before the job imports anything"
