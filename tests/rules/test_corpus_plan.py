"""The plan before a run, compared with the finished run."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.configuration import parse_configuration
from pipeline.core.job_records import load_records
from pipeline.slurm.corpus_estimate import CorpusPlan
from tests.conftest import Project


def plan_corpus() -> dict[str, Any]:
    """Return the plan of the micro run in the working directory, as before its first job."""
    raw: dict[str, Any] = yaml.safe_load(Path("config/micro.yaml").read_text())
    return CorpusPlan(parse_configuration({**raw, "run": {**raw["run"], "name": "not-yet"}})).plan()


def check_memory(run: Path) -> None:
    """Assert that no job of a micro run used more memory than the plan of the one in the working directory says."""
    plan = plan_corpus()
    for record in load_records(run):
        asked = {**plan["sources"]["steps"], **plan["corpora"]["main"]["steps"]}.get(record.step)
        assert asked is None or record.peak_memory_bytes < asked["memory_bytes"], record.title


def test_finished_run_equals_its_plan(finished: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished.folder)
    plan = plan_corpus()
    corpus, run = plan["corpora"]["main"], Path("results/micro")
    records = load_records(run)
    # The unit is a job if `units_per_job` is 1 or a source has one.
    jobs = Counter(record.step for record in records)
    planned = {step: one["jobs"] for step, one in {**plan["sources"]["steps"], **corpus["steps"]}.items()}
    assert planned == {step: jobs[step] for step in planned}
    assert {step for step in jobs if step.split(".")[0] in ("sources", "corpus")} == planned.keys()
    (counts,) = (record.counts for record in records if record.step == "corpus.statistics")
    assert corpus["documents"] <= counts["documents_in"] <= 1.1 * corpus["documents"]  # broken lines are not documents
    assert corpus["text_bytes"] == pytest.approx(counts["bytes_in"], rel=0.05)
    files = [path.relative_to(run) for path in run.rglob("*") if path.is_file() and path.name != ".snakemake_timestamp"]
    of_corpus = [path for path in files if path.parts[0] == "corpus" or re.search(r"(^|\d\.)corpus\.", path.name)]
    assert len(of_corpus) == corpus["result_files"]
    for name, size in corpus["disk_bytes"].items():
        result = sum(path.stat().st_size for path in (run / "corpus/main" / name).glob("*.parquet"))
        assert size / 1.5 < result < 1.5 * size, name  # files of a few kB consist mostly of fixed parts
