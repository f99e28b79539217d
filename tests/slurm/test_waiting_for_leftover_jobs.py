"""A snakemake killed with -9 and restarted: its lock is cleared, its jobs run once and none is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest

from pipeline.cli.entry_point import main
from pipeline.core.errors import InputError
from pipeline.job.attempt import RunningAttempt
from pipeline.slurm import waiting_for_leftover_jobs
from pipeline.slurm.waiting_for_leftover_jobs import SlurmInvocation, load_invocations, utc_timestamp
from tests.conftest import Project, new_project
from tests.slurm.cluster import Cluster, wait_until
from tests.stored import read_attempts

pytestmark = pytest.mark.slurm

QUICK = ("--seconds-between-status-checks=1",)


def command(*targets: str) -> list[str]:
    """Return the command line of a run through Slurm."""
    run = [sys.executable, "-m", "snakemake", "--profile", "slurm", "--configfile", "config/micro.yaml"]
    return [*run, *QUICK, "--", *targets]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project without results."""
    return new_project(tmp_path / "polder")


def start_of(run: Path, name: str = "of-a-killed-one", cluster: str | None = "loopback") -> SlurmInvocation:
    """Write the file of an unfinished invocation."""
    start = SlurmInvocation(name=name, host="login2", process=4711, started=utc_timestamp(), cluster=cluster)
    start.write(run)
    return start


def test_every_job_runs_once_after_a_killed_invocation(cluster: Cluster, project: Project) -> None:
    environment = {**project.environment(), **cluster.environment()}
    cluster.ask("scontrol", "update", "partition=cpu", "state=down")  # no job starts yet
    log = project.folder / "first.log"
    with log.open("w") as stream:
        first = subprocess.Popen(
            command("sources"), cwd=project.folder, env=environment, stdout=stream, stderr=subprocess.STDOUT
        )
    wait_until(lambda: len(cluster.jobs()) == 4, "the jobs of the four units are submitted")
    running, *_, held = cluster.jobs()
    cluster.ask("scontrol", "hold", held)
    cluster.ask("scontrol", "update", "partition=cpu", "state=up")
    wait_until(lambda: cluster.state(running) not in ("", "PENDING", "CONFIGURING"), "a job runs, or did")
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
    cluster.ask("scontrol", "release", held)
    assert second.wait(300) == 0, log.read_text()[-4000:]

    attempts = [*read_attempts(project.results).values()]
    tries = Counter(f"{attempt['step']} {attempt['instance']}" for attempt in attempts)
    assert len(tries) == 10 and set(tries.values()) == {1}
    assert {attempt["status"] for attempt in attempts} == {"finished"}
    names = ",".join(start.name for start in load_invocations(project.results))
    fields = ("--noheader", "--parsable2", "--allocations", "--format=Comment,State", f"--name={names}")
    since = ("--starttime=now-1hour",)
    ran = Counter(cluster.ask("sacct", *since, *fields).splitlines())
    before, after = (start.name for start in sorted(load_invocations(project.results), key=lambda start: start.started))
    times = ("--noheader", "--parsable2", "--allocations", "--format=Submit,End")
    ended = max(row.split("|")[1] for row in cluster.ask("sacct", *since, *times, f"--name={before}").splitlines())
    submitted = min(row.split("|")[0] for row in cluster.ask("sacct", *since, *times, f"--name={after}").splitlines())
    assert ended <= submitted, "nothing is submitted while a job of the first waits"
    assert set(ran.values()) == {1} and all(row.endswith("|COMPLETED") for row in ran)
    assert sum("sources_fingerprint" in row for row in ran) == 4
    assert all(start.ended for start in load_invocations(project.results))
    assert len([*project.results.glob("provenance/accounting/*.json")]) == len(ran), "all jobs are accounted"


def held_job(cluster: Cluster, name: str) -> str:
    """Submit a job that waits until it is released."""
    return cluster.ask("sbatch", "--parsable", "--output=/dev/null", "--wrap=true", "--hold", f"--job-name={name}")


def test_new_invocation_waits_for_jobs_of_one_killed_on_another_host(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", cluster.environment()["PATH"])
    job, start = held_job(cluster, "of-a-killed-one"), start_of(tmp_path)
    messages: list[str] = []
    taker = threading.Thread(
        target=waiting_for_leftover_jobs.wait_for_killed_invocations, args=(tmp_path, messages.append, 0.1)
    )
    taker.start()
    wait_until(lambda: any(f"job {job} (" in sentence for sentence in messages), "it waits for the job")
    assert load_invocations(tmp_path) == [start]
    cluster.ask("scontrol", "release", job)
    taker.join(120)
    assert [start.ended is not None for start in load_invocations(tmp_path)] == [True] and not cluster.jobs()


def test_jobs_of_another_run_are_not_awaited(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", cluster.environment()["PATH"])
    held_job(cluster, "of-another-run")
    start_of(tmp_path)
    waiting_for_leftover_jobs.wait_for_killed_invocations(tmp_path, print, seconds_between=0.1)
    assert len(cluster.jobs()) == 1


def test_follow_command_shows_pending_jobs(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", cluster.environment()["PATH"])
    held_job(cluster, "of-another-run")
    job, start = held_job(cluster, "of-a-killed-one"), start_of(tmp_path)
    assert main(["follow", str(tmp_path), "--once"]) == 0
    why = f"held: scontrol release {job} (JobHeldUser)"
    assert capsys.readouterr().out.splitlines() == [f"job {job} ((null)) waits in the queue: {why}"]
    start.end(tmp_path)
    assert main(["follow", str(tmp_path), "--once"]) == 0 and not capsys.readouterr().out


@pytest.mark.parametrize("has_slurm", [True, False])
def test_jobs_that_cannot_be_queried_block_the_invocation(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_slurm: bool
) -> None:
    monkeypatch.setenv("PATH", cluster.environment()["PATH"] if has_slurm else "/nowhere")
    start = start_of(tmp_path, cluster="snellius")
    with pytest.raises(InputError) as refused:
        waiting_for_leftover_jobs.wait_for_killed_invocations(tmp_path, print, seconds_between=0.1)
    here = "the Slurm here is that of loopback" if has_slurm else "there is no Slurm here"
    for part in ("login2", "the cluster snellius", here, f"squeue --name={start.name}", str(start.path(tmp_path))):
        assert part in str(refused.value)
    assert load_invocations(tmp_path) == [start]
    start.path(tmp_path).unlink()  # the remedy in its message
    waiting_for_leftover_jobs.wait_for_killed_invocations(tmp_path, print, seconds_between=0.1)


def test_killed_slurm_run_continues_locally_after_its_jobs_end(cluster: Cluster, project: Project) -> None:
    job, start = held_job(cluster, "of-a-killed-one"), start_of(project.results)
    words = [*project.command(), "--", "plan"]
    refused = subprocess.run(
        words, cwd=project.folder, env=project.environment(), capture_output=True, text=True
    )  # Slurm's commands are installed here, but find no cluster without its configuration
    assert refused.returncode == 2 and "there is no Slurm here: run snakemake there" in refused.stderr
    log = project.folder / "second.log"
    environment = {**project.environment(), **cluster.environment()}
    with log.open("w") as stream:
        second = subprocess.Popen(words, cwd=project.folder, env=environment, stdout=stream, stderr=stream)
    wait_until(lambda: f"job {job} (" in log.read_text(), "the local start waits for the job")
    assert not (project.results / "provenance/attempts").exists()
    cluster.ask("scontrol", "release", job)
    assert second.wait(300) == 0, log.read_text()[-4000:]
    assert load_invocations(project.results)[0].ended and load_invocations(project.results)[0].name == start.name


def marked(*names: str) -> list[Path]:
    """Create and return Snakemake's marks of incomplete files."""
    marks = [waiting_for_leftover_jobs.metadata_file(waiting_for_leftover_jobs.INCOMPLETE, name) for name in names]
    for mark in marks:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return marks


def test_step_left_by_a_killed_snakemake_is_awaited_and_not_rerun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.py").write_text(
        "import os, sys, time\nwhile not os.path.exists('reported'): time.sleep(0.05)\n"
        "open(sys.argv[-1], 'w'); open('made', 'w')\n"
    )
    run, record = Path("results/micro"), "results/micro/record.json"
    run.mkdir(parents=True)
    marks = marked("made", record)
    words = ["plan", "estimate", "--output", "plan", "made", "--record", record]
    messages: list[str] = []

    def say(sentence: str) -> None:
        messages.append(sentence)
        Path("reported").touch()

    with subprocess.Popen([sys.executable, "-m", "pipeline", *words]):
        wait_until(lambda: waiting_for_leftover_jobs.find_leftover_processes(run), "the step runs")
        waiting_for_leftover_jobs.wait_for_leftover_processes(run, say)
    assert "plan estimate" in messages[0] and Path(record).exists()
    assert not any(mark.exists() for mark in marks)


def test_step_that_ends_during_the_search_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, record = Path("results/micro"), "results/micro/record.json"
    run.mkdir(parents=True)
    (mark,) = marked(record)
    (tmp_path / "pipeline.py").write_text("import sys; open(sys.argv[-1], 'w'); input()")
    words = [sys.executable, "-m", "pipeline", "plan", "estimate", "--record", record]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as step:
        wait_until(Path(record).exists, "it has its record")
        process = psutil.Process(step.pid)
        monkeypatch.setattr(waiting_for_leftover_jobs.psutil, "process_iter", lambda: [process])
        monkeypatch.setattr(process, "environ", lambda: step.communicate(b"\n") and {})  # requested last
        waiting_for_leftover_jobs.wait_for_leftover_processes(run, print)
    assert not mark.exists()


def test_invisible_steps_are_detected_by_their_output(tmp_path: Path) -> None:
    killed = RunningAttempt("plan.estimate", {}, tmp_path)
    lives = RunningAttempt("sources.listing", {"source": "laws"}, tmp_path)
    for attempt in (killed, lives):
        attempt._write()
    messages: list[str] = []
    waiter = threading.Thread(
        target=waiting_for_leftover_jobs.wait_for_orphaned_steps, args=(tmp_path, messages.append, 0.5)
    )
    waiter.start()
    wait_until(lambda: lives._write() or messages, "it is seen")
    assert lives.path.name in messages[0] and killed.path.name not in messages[0]
    lives._end("finished", None)
    waiter.join(30)
    assert not waiter.is_alive()
