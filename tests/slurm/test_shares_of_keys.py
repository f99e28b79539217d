"""The keys of a corpus, shared by Slurm jobs: the copies of a single job, and no model is retrained."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Project
from tests.slurm.cluster import Cluster
from tests.slurm.test_whole_run import OnSlurm, differing

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ONE_JOB = "suites: [dutch, english]}"
SHARES = {f"corpus/main/equal_keys/{share}.parquet" for share in range(3)}


def test_three_slurm_jobs_find_the_duplicates_of_one(finished: Project, cluster: Cluster, tmp_path: Path) -> None:
    finished.clone(tmp_path / "polder")
    project = OnSlurm(tmp_path / "polder", cluster)
    project.edit("config/micro.yaml", ONE_JOB, f"{ONE_JOB}, deduplication: {{jobs: 3}}")
    ran = project.ran("pretrain")
    assert (ran["corpus_equal_keys"], ran["corpus_find_duplicates"]) == (3, 1)
    assert not {"corpus_signatures", "corpus_deduplicate", "corpus_decontaminate", "pretrain_segment"} & ran.keys()
    assert differing(project.results, finished.results) == SHARES
    fields = ("--allocations", "--noheader", "--parsable2", "--format=Comment,Partition,State")
    rows = cluster.ask("sacct", "--starttime=now-12hours", *fields).splitlines()
    for share in range(3):
        assert f"rule_corpus_equal_keys_wildcards_main_{share}|cpu|COMPLETED" in rows
