"""The cluster, brought up once for the tests that need it, and down again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Cluster, running

# Files of tests that take long, in the order in which two workers begin them: the longest first, those that need the
# finished run when the tests of the rules have it, and all others after them.
LONG = ("training", "submission", "live", "fencing", "accidents", "edits", "whole_run", "shares_of_keys", "one_device")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of Slurm in the order of LONG."""
    places = {f"tests/slurm/test_{name}.py": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.nodeid.split("::")[0], len(LONG)))


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
