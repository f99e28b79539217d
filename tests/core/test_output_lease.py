"""A folder belongs to the process started last; earlier processes detect it, whatever the clocks show."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from pipeline.core import output_lease
from pipeline.core.errors import Superseded
from pipeline.core.output_lease import Lease


def started(
    monkeypatch: pytest.MonkeyPatch, folder: Path, job: str | None, restart: int = 0, cluster: str = "a"
) -> Lease:
    """Return the owner for a process of a Slurm job, or of none."""
    variables = {"SLURM_JOB_ID": job, "SLURM_RESTART_COUNT": str(restart), "SLURM_CLUSTER_NAME": cluster}
    for name, value in variables.items():
        monkeypatch.delenv(name, raising=False)
        if job and value is not None:
            monkeypatch.setenv(name, value)
    made = Lease(folder)
    made.claim()
    return made


def test_later_process_owns_the_folder_and_the_earlier_one_is_superseded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = started(monkeypatch, tmp_path, "7")
    first.check()
    second = started(monkeypatch, tmp_path, "7", restart=1)
    second.check()
    for act in (first.check, first.claim):
        with pytest.raises(
            Superseded, match=r"a later start of this step owns .* \(process .*, job 7 of Slurm, restart 1\)"
        ):
            act()
    second.claim()  # its supervisor restarts the processes
    second.check()


@pytest.mark.parametrize(
    ("early", "late"),
    [
        (("7", 0, "a"), ("7", 1, "a")),
        (("7", 3, "a"), ("12", 0, "a")),
    ],
)
def test_delayed_earlier_process_does_not_take_the_folder(
    early: tuple[str, int, str], late: tuple[str, int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = started(monkeypatch, tmp_path, *late)
    with pytest.raises(Superseded):
        started(monkeypatch, tmp_path, *early)
    owned.check()


@pytest.mark.parametrize("before", [("7", 2, "a"), ("12", 0, "b"), (None, 0, "")])
def test_processes_without_a_slurm_order_own_the_folder_by_claim_order(
    before: tuple[str | None, int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manual after Slurm; another cluster with a smaller job number; Slurm after manual."""
    first = started(monkeypatch, tmp_path, *before)
    second = started(monkeypatch, tmp_path, None if before[0] == "7" else "9")
    second.check()
    with pytest.raises(Superseded):
        first.check()


def _claim(folder: Path, numbers: multiprocessing.Queue[int]) -> None:
    made = Lease(folder)
    for _ in range(20):
        made.number = 0
        made.claim()
        numbers.put(made.number)


def test_concurrent_processes_get_different_numbers(tmp_path: Path) -> None:
    numbers: multiprocessing.Queue[int] = multiprocessing.Queue()
    processes = [multiprocessing.Process(target=_claim, args=(tmp_path, numbers)) for _ in range(4)]
    for process in processes:
        process.start()
    results = [numbers.get(timeout=60) for _ in range(80)]
    for process in processes:
        process.join()
    assert sorted(results) == list(range(1, 81))
    for number in results:
        assert json.loads((tmp_path / f"starts/{number}/owner.json").read_text())["process"] != os.getpid()
    assert not list((tmp_path / "starts").glob(".*"))


def test_lease_file_removed_by_a_purge_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = started(monkeypatch, tmp_path, "7")
    second = started(monkeypatch, tmp_path, "7", restart=1)
    shutil.rmtree(tmp_path / "starts")
    second.check()
    with pytest.raises(Superseded):
        first.check()
    with pytest.raises(Superseded):
        started(monkeypatch, tmp_path, "7")


def test_each_process_writes_under_its_own_partial_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    for job, restart in ((None, 0), ("7", 0), ("7", 1)):
        started(monkeypatch, tmp_path, job, restart)
        names.add(output_lease.temporary_output_path(tmp_path / "a-b.json"))
    assert len(names) == 3
    assert all(name.parent == tmp_path and name.name.startswith(".partial-") for name in names)
    assert all(name.name.removeprefix(".partial-").partition("-")[2] == "a-b.json" for name in names)
