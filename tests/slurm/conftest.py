"""The cluster, started once for the tests that need it, and stopped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Cluster, running

# Slow test files, in the order in which two workers begin them: the longest first, those that need the
# finished run when the rule tests have it, and all others after them.
LONG = (
    *(
        "test_training",
        "executor/test_slurm_executor",
        "test_waiting_for_leftover_jobs",
        "test_fencing",
        "test_accidents",
    ),
    *("test_edits", "test_whole_run", "test_shares_of_keys", "test_one_device"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the Slurm tests in the order of LONG."""
    places = {f"tests/slurm/{name}.py": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.nodeid.split("::")[0], len(LONG)))


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """Return the cluster shared by all tests of a process."""
    with running() as cluster:
        yield cluster


@pytest.fixture
def cluster(slurm: Cluster) -> Iterator[Cluster]:
    """Return the cluster without jobs and with all its nodes, for one test."""
    try:
        yield slurm
    finally:
        slurm.clear()
