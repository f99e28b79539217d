"""Many jobs through Slurm: a limited queue, few queries, little memory on the login node."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.slurm.accounting import TRIES
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import measure

pytestmark = pytest.mark.slurm


@pytest.mark.slow
def test_many_jobs_respect_the_queue_limit_with_few_slurm_queries(cluster: Cluster, tmp_path: Path) -> None:
    figures = measure(cluster, tmp_path / "run", units=40, jobs=20, queue=10, seconds_between=2)
    assert figures["exit_code"] == 0, (tmp_path / "run" / "log").read_text()[-4000:]
    assert figures["jobs"] == 18, "files are assigned to units by name, and the units of two jobs have none"
    assert figures["sbatch"] == 20, "the manifest is one more, and so is the sbatch test of a job"
    assert 2 <= figures["longest_queue"] <= 10
    assert figures["login_peak_memory_bytes"] < 4e8
    assert figures["sacct"] <= 1 + TRIES, "for the account at the start and for the accounting at the end"
    assert figures["squeue"] <= figures["seconds"] / 2 + 10, "one query for all jobs at each poll"
