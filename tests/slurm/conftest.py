"""The cluster, brought up once for the tests that need it, and down again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Cluster, running


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """Return the cluster, which all tests of a process share."""
    with running() as cluster:
        yield cluster


@pytest.fixture
def cluster(slurm: Cluster) -> Iterator[Cluster]:
    """Return the cluster without jobs and with all its nodes, for one test."""
    try:
        yield slurm
    finally:
        slurm.clear()
