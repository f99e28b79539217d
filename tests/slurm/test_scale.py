"""Many jobs through Slurm: no more in the queue than may be, few questions, little memory on the login node."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.slurm.accounting import TRIES
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import measure

pytestmark = pytest.mark.slurm


@pytest.mark.slow
def test_eighteen_jobs_with_half_of_them_in_the_queue(cluster: Cluster, tmp_path: Path) -> None:
    figures = measure(cluster, tmp_path / "run", units=40, jobs=20, queue=10, seconds_between=2)
    assert figures["exit_code"] == 0, (tmp_path / "run" / "log").read_text()[-4000:]
    assert figures["jobs"] == 18, "files fall into units by their names, and the units of two jobs have none"
    assert figures["sbatch"] == 20, "the manifest is one more, and so is what sbatch would say of a job"
    assert 2 <= figures["longest_queue"] <= 10
    assert figures["login_peak_memory_bytes"] < 4e8
    assert figures["sacct"] <= 1 + TRIES, "for the account at the start and for the books at the end"
    assert figures["squeue"] <= figures["seconds"] / 2 + 10, "one question for all jobs at each look"
