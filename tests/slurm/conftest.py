"""The cluster, brought up once for the tests that need it, and down again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import is_lacking
from tests.slurm.cluster import Cluster, missing


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """Return the cluster, which all tests of a process share."""
    if lacking := missing():
        reason = f"Slurm is not installed here: there is no {', '.join(lacking)} (.ci/run installs them)"
        is_lacking(reason)
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: the path of a socket may have 107 characters
    folder.chmod(0o755)
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(slurm: Cluster) -> Iterator[Cluster]:
    """Return the cluster without jobs and with all its nodes, for one test."""
    try:
        yield slurm
    finally:
        slurm.clear()
