"""Accounting files of real jobs that succeeded, failed, were requeued or killed."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.cli.entry_point import main
from pipeline.slurm import waiting_for_leftover_jobs
from pipeline.slurm.accounting import collect_accounting
from tests.slurm.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm

CLUSTER = "loopback"
EATS = "python3 -c 'import time; eaten = bytearray(300_000_000); time.sleep(20)'"


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the results of a run started by this process, under a name that no other test's jobs have."""
    monkeypatch.setenv("PATH", cluster.environment()["PATH"])
    monkeypatch.setattr(waiting_for_leftover_jobs, "current_invocation", None)
    waiting_for_leftover_jobs.record_invocation(tmp_path, uuid.uuid4().hex)
    yield tmp_path


def submit(cluster: Cluster, comment: str, command: str, *options: str, name: str = "") -> str:
    """Submit a job as the plugin does, of the run unless it has another name."""
    assert waiting_for_leftover_jobs.current_invocation
    name = name or waiting_for_leftover_jobs.current_invocation.name
    words = ("sbatch", "--parsable", "--output=/dev/null", "--requeue", f"--job-name={name}", f"--comment={comment}")
    return cluster.ask(*words, "--mem=100", *options, f"--wrap={command}")


def wait_for_end(cluster: Cluster) -> None:
    """Wait until no job is pending or running, and the database, which is updated a little later, knows it."""
    wait_until(lambda: not cluster.jobs(), "all jobs have ended")
    words = ("--starttime=now-1hour", "--noheader", "--allocations", "--state=PENDING,RUNNING", "--format=JobID")
    wait_until(lambda: not cluster.ask("sacct", *words), "the database knows")
    time.sleep(1)


def written(run: Path) -> dict[str, dict[str, Any]]:
    """Return the files of the accounting."""
    accounting = {path.name: json.loads(path.read_text()) for path in (run / layout.ACCOUNTING).glob("*.json")}
    assert set(accounting) == {f"{CLUSTER}.{entry['job']}.json" for entry in accounting.values()}
    return {entry["job"]: entry for entry in accounting.values()}


@pytest.mark.versions
def test_every_job_of_the_run_is_accounted_with_all_allocations(cluster: Cluster, run: Path) -> None:
    good = submit(cluster, "rule_good", "srun python3 -c 'sum(range(30_000_000))'")
    bad = submit(cluster, "rule_bad", "exit 3")
    again = submit(cluster, "rule_again", '[ -n "$SLURM_RESTART_COUNT" ] || sleep 300')
    hungry = submit(cluster, "rule_hungry", EATS)
    cancelled = submit(cluster, "rule_cancelled", "sleep 300")
    waiting = submit(cluster, "rule_waiting", "true", "--hold")
    other = submit(cluster, "rule_other", "true", name="of-another-run")
    wait_until(lambda: cluster.state(again) == "RUNNING" == cluster.state(cancelled), "they run")
    time.sleep(2)
    cluster.ask("scontrol", "requeue", again)
    cluster.ask("scancel", cancelled)
    wait_until(lambda: cluster.jobs() == [waiting], "all but one have ended")

    assert collect_accounting(run) == 5
    accounting = written(run)
    assert other not in accounting and waiting not in accounting
    causes = {job: accounting[job]["cause"] for job in (good, bad, again, hungry, cancelled)}
    assert [*causes.values()] == ["finished", "failed", "finished", "memory", "cancelled"]
    assert accounting[bad]["allocations"][0]["exit_code"] == 3
    assert [allocation["cause"] for allocation in accounting[again]["allocations"]] == ["requeued", "finished"]
    total = accounting[again]["total"]
    assert total["elapsed_seconds"] == sum(part["elapsed_seconds"] for part in accounting[again]["allocations"]) >= 1
    assert accounting[good]["total"]["cpu_seconds"] > 0.2 and accounting[good]["whole_nodes"] is False
    assert {entry["total"]["slurm_energy_joules"] for entry in accounting.values()} == {None}, "no meter, no joules"

    before = (run / layout.ACCOUNTING / f"{CLUSTER}.{good}.json").stat().st_mtime_ns
    cluster.ask("scontrol", "release", waiting)
    wait_for_end(cluster)
    assert collect_accounting(run) == 1
    assert (run / layout.ACCOUNTING / f"{CLUSTER}.{good}.json").stat().st_mtime_ns == before, "the file is unchanged"


def test_accounting_files_of_two_clusters_and_older_versions_coexist(cluster: Cluster, run: Path) -> None:
    waiting_for_leftover_jobs.record_invocation(run, "of-two-clusters")
    job = submit(cluster, "rule_here", "true", name="of-two-clusters")
    old = submit(cluster, "rule_old", "true", name="of-before")
    elsewhere = submit(cluster, "rule_elsewhere", "true", name="of-another-cluster")
    waiting_for_leftover_jobs.SlurmInvocation(
        name="of-before", host="a", process=1, started=waiting_for_leftover_jobs.utc_timestamp()
    ).write(run)
    waiting_for_leftover_jobs.SlurmInvocation(
        name="of-another-cluster",
        host="a",
        process=1,
        started=waiting_for_leftover_jobs.utc_timestamp(),
        cluster="another",
    ).write(run)
    (run / layout.ACCOUNTING / f"another.{job}.json").write_text("the same number on another cluster")
    words = ("sacct", "--noheader", "--allocations", f"--jobs={job},{old},{elsewhere}", "--format=State")
    wait_until(lambda: cluster.ask(*words).split() == ["COMPLETED"] * 3, "the database knows")
    assert collect_accounting(run) == 2
    assert {path.name for path in (run / layout.ACCOUNTING).glob("*.json")} == {
        f"{CLUSTER}.{job}.json",
        f"another.{job}.json",
        f"{old}.json",
    }, f"job {elsewhere} belongs to another cluster"
    assert (run / layout.ACCOUNTING / f"another.{job}.json").read_text() == "the same number on another cluster"
    assert collect_accounting(run) == 0


@pytest.mark.versions
def test_billed_units_are_in_the_accounting_files(cluster: Cluster, run: Path) -> None:
    narrow = submit(cluster, "rule_narrow", "sleep 2")
    wide = submit(cluster, "rule_wide", "sleep 2", "--cpus-per-task=3", "--mem=4G")  # half a unit for a GB
    board = submit(cluster, "rule_board", "sleep 2", "--partition=gpu", "--gres=gpu:1")
    wait_for_end(cluster)
    billed = {narrow: 1, wide: 3 + 2, board: 1 + 16}
    wait_until(
        lambda: collect_accounting(run) >= 0 and billed.keys() <= written(run).keys(), "the database knows all of them"
    )
    accounting = written(run)
    for job, units in billed.items():
        (part,) = accounting[job]["allocations"]
        assert accounting[job]["total"]["gpu_seconds"] == part["elapsed_seconds"] * (job == board), part["tres"]
        assert part["tres"]["billing"] == str(units) and part["elapsed_seconds"] >= 1
        assert accounting[job]["total"]["billed_unit_seconds"] == units * part["elapsed_seconds"]


def test_run_without_slurm_has_no_accounting_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accounting", str(tmp_path)]) == 0
    assert [*tmp_path.iterdir()] == [] and capsys.readouterr().out == ""
