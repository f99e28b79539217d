"""Many jobs through Slurm: no more in the queue than may be, few questions, little memory on the login node."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.slurm_jobs import measure
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slurm


@pytest.mark.slow
def test_fifty_jobs_with_half_of_them_in_the_queue(cluster: Cluster, tmp_path: Path) -> None:
    figures = measure(cluster, tmp_path / "run", jobs=50, queue=25, inside="touch", seconds_between=2)
    assert figures["jobs"] == figures["sbatch"] == 50, (tmp_path / "run" / "log").read_text()[-4000:]
    assert 5 <= figures["longest_queue"] <= 25
    assert figures["peak_memory_bytes"] < 1e9
    assert figures["sacct"] <= 3, "for the account at the start and for the report at the end"
    assert figures["squeue"] < 50, "one question for all jobs"
