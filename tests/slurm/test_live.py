"""A snakemake killed with -9 and started again: its lock is cleared, its jobs run once and none is lost."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from pipeline.slurm import live
from pipeline.slurm.starts import Lock, Start, now, starts
from tests.conftest import Project, new_project
from tests.slurm.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm

QUICK = ("--slurm-init-seconds-before-status-checks=1", "--seconds-between-status-checks=1")


def command(*targets: str) -> list[str]:
    """Return the command line of a run through Slurm."""
    run = [sys.executable, "-m", "snakemake", "--profile", "slurm", "--configfile", "config/micro.yaml"]
    return [*run, *QUICK, "--", *targets]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project without results."""
    return new_project(tmp_path / "polder")


def gone_process() -> int:
    """Return the number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        return process.pid


def start_of(process: int, began_seconds: float, host: str, lock: Path) -> Start:
    """Return a start that holds a lock."""
    lock.write_text("results/micro/plan/plan.json\n")
    return Start(
        name=f"of-{process}-{host}",
        host=host,
        process=process,
        process_began_seconds=began_seconds,
        started=now(),
        locks=[Lock.of(str(lock))],
    )


def test_killed_and_started_again_every_job_runs_once(cluster: Cluster, project: Project) -> None:
    environment = {**project.environment(), **cluster.environment()}
    cluster.ask("scontrol", "update", "partition=cpu", "state=down")  # no job starts yet
    first = subprocess.Popen(
        command("sources"),
        cwd=project.folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: len(cluster.jobs()) == 4, "the jobs of the four units are submitted")
    running, *_, held = cluster.jobs()
    cluster.ask("scontrol", "hold", held)
    cluster.ask("scontrol", "update", "partition=cpu", "state=up")
    wait_until(lambda: cluster.state(running) == "RUNNING", "a job runs")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert [*project.path(".snakemake/locks").iterdir()]

    log = project.folder / "second.log"
    with log.open("w") as stream:
        second = subprocess.Popen(
            command("sources"), cwd=project.folder, env=environment, stdout=stream, stderr=subprocess.STDOUT
        )
    wait_until(lambda: f"job {held} (" in log.read_text(), "the second waits for the job that waits")
    wait_until(lambda: cluster.jobs() == [held], "the other jobs have ended")
    time.sleep(2)
    assert cluster.jobs() == [held], "nothing is submitted while a job of the first waits"
    cluster.ask("scontrol", "release", held)
    assert second.wait(300) == 0, log.read_text()[-4000:]

    attempts = [json.loads(path.read_text()) for path in project.results.glob("provenance/attempts/*.json")]
    tries = Counter(f"{attempt['stage']} {attempt['instance']}" for attempt in attempts)
    assert len(tries) == 10 and set(tries.values()) == {1}
    assert {attempt["status"] for attempt in attempts} == {"finished"}
    names = ",".join(start.name for start in starts(project.results))
    fields = ("--noheader", "--parsable2", "--allocations", "--format=Comment,State", f"--name={names}")
    ran = Counter(cluster.ask("sacct", "--starttime=now-1hour", *fields).splitlines())
    assert set(ran.values()) == {1} and all(row.endswith("|COMPLETED") for row in ran)
    assert sum("sources_fingerprint" in row for row in ran) == 4
    assert all(start.ended for start in starts(project.results))
    assert len([*project.results.glob("provenance/accounting/*.json")]) == len(ran), "the books have all jobs"


def test_only_the_lock_of_a_dead_process_of_this_host_is_cleared(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", cluster.environment()["PATH"])
    here, gone, me = platform.node(), gone_process(), psutil.Process()
    locks = {name: tmp_path / f"{name}.lock" for name in ("dead", "alive", "elsewhere", "replaced")}
    kept = [
        start_of(me.pid, me.create_time() + 2, here, locks["alive"]),  # the clock was set
        start_of(gone, 0.0, "another-host", locks["elsewhere"]),
    ]
    dead = [start_of(me.pid, 0.0, here, locks["dead"]), start_of(gone, 0.0, here, locks["replaced"])]
    for start in [*kept, *dead]:
        start.write(tmp_path)
    other = tmp_path / "other"
    other.write_text("of a snakemake that lives\n")
    other.replace(locks["replaced"])
    said: list[str] = []
    live.take_over(tmp_path, said.append, seconds_between=0.1)
    assert [name for name, lock in locks.items() if not lock.exists()] == ["dead"]
    assert {start.name for start in starts(tmp_path) if start.ended} == {start.name for start in dead}
    assert len(said) == 1 and "dead.lock" in said[0]


def test_jobs_of_another_run_or_of_no_run_are_not_waited_for(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", cluster.environment()["PATH"])
    words = ("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 300", "--hold")
    cluster.ask(*words, "--job-name=of-another-run")
    start_of(gone_process(), 0.0, platform.node(), tmp_path / "lock").write(tmp_path)
    live.take_over(tmp_path, print, seconds_between=0.1)
    assert len(cluster.jobs()) == 1


def test_a_step_that_a_killed_snakemake_left_is_waited_for_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.py").write_text("import sys, time; time.sleep(1); open(sys.argv[-1], 'w'); open('made', 'w')")
    run, record = Path("results/micro"), "results/micro/record.json"
    run.mkdir(parents=True)
    marks = [live.file_of(live.INCOMPLETE, name) for name in ("made", record)]
    for mark in marks:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    words = ["plan", "estimate", "--output", "plan", "made", "--record", record]
    with subprocess.Popen([sys.executable, "-m", "pipeline", *words]):
        said: list[str] = []
        wait_until(lambda: live.local_jobs(run), "the step runs")
        live.wait_for_local_jobs(run, said.append)
    assert "plan estimate" in said[0] and Path(record).exists()
    assert not any(mark.exists() for mark in marks)
