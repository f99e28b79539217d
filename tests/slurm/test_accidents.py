"""Users and file systems act on a run: interrupts, cancellations, late files, clock changes."""

from __future__ import annotations

import getpass
import re
import shutil
import signal
import threading
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.executor.test_slurm_executor import REGISTERED, start

pytestmark = pytest.mark.slurm

# The first attempt of each job is a long one.
LONG = (
    REGISTERED
    + """
rule all:
    input: "1.done", "2.done"

rule long:
    output: "{number}.done"
    resources: runtime=5, mem_mb=100, slurm_partition="cpu"
    shell: "echo >> {wildcards.number}.tries; [ $(wc -l < {wildcards.number}.tries) = 2 ] || sleep 200; touch {output}"
"""
)
# The job succeeds; its file is visible later, as on a login node with cached folder entries.
LATE = (
    REGISTERED
    + """
rule all:
    input: "20.done", "90.done"

rule late:
    output: "{seconds}.done"
    resources: runtime=5, mem_mb=100, slurm_partition="cpu"
    shell: "echo >> {wildcards.seconds}.tries"
"""
)

FAILING = (
    REGISTERED
    + """
rule all:
    input: "1.done", "2.done"

rule fails:
    output: "{number}.done"
    retries: 2
    resources: runtime=5, mem_mb=100, slurm_partition="cpu"
    shell: "echo >> {wildcards.number}.tries; [ $(wc -l < {wildcards.number}.tries) = 3 ] && touch {output}"
"""
)


def tries(folder: Path, name: str) -> int:
    """Return how often a job was started."""
    path = folder / f"{name}.tries"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_interrupted_run_leaves_no_job_in_the_queue(cluster: Cluster, tmp_path: Path) -> None:
    run, log = start(cluster, tmp_path, LONG)
    wait_until(lambda: tries(tmp_path, "1") and tries(tmp_path, "2"), "both jobs run")
    run.send_signal(signal.SIGINT)
    assert run.wait(300) != 0
    wait_until(lambda: not cluster.jobs(), "the jobs are gone")
    assert "Slurm cancels the jobs of this run" in log.read_text()


def test_terminated_run_lets_jobs_finish_and_submits_no_more(cluster: Cluster, tmp_path: Path) -> None:
    one_by_one = LONG.replace('account="polder"', 'account="polder", queue=1').replace("sleep 200", "sleep 8")
    run, log = start(cluster, tmp_path, one_by_one)
    wait_until(lambda: tries(tmp_path, "1") + tries(tmp_path, "2") == 1, "one runs")
    run.send_signal(signal.SIGTERM)
    assert run.wait(300) != 0
    assert "1 jobs are not submitted; those in Slurm continue" in log.read_text()
    assert len([*tmp_path.glob("*.done")]) == 1 and not cluster.jobs()


@pytest.mark.versions
def test_unavailable_accounting_is_one_message_for_all_jobs(cluster: Cluster, tmp_path: Path) -> None:
    cluster.end("slurmdbd")
    try:
        run, log = start(cluster, tmp_path, FAILING)
        assert run.wait(300) == 0, log.read_text()
    finally:
        cluster.start_database()
    assert (tries(tmp_path, "1"), tries(tmp_path, "2")) == (3, 3)
    output = [line for line in log.read_text().splitlines() if "accounting does not answer" in line]
    assert len(output) == 1 and "(Problem talking to the database: Connection refused)" in output[0], output


@pytest.mark.slow
def test_jobs_cancelled_together_are_retried(cluster: Cluster, tmp_path: Path) -> None:
    run, log = start(cluster, tmp_path, LONG)
    wait_until(lambda: tries(tmp_path, "1") and tries(tmp_path, "2"), "both jobs run")
    cluster.ask("scancel", f"--user={getpass.getuser()}")
    assert run.wait(300) == 0, log.read_text()
    assert (tries(tmp_path, "1"), tries(tmp_path, "2")) == (2, 2)
    assert "ended as CANCELLED" in log.read_text()


def test_late_visible_files_are_awaited(cluster: Cluster, tmp_path: Path) -> None:
    run, log = start(cluster, tmp_path, LATE, latency_seconds=120)
    missing = re.compile(r"^Waiting at most 120 seconds for missing files:\n(\w+\.done)", re.MULTILINE)
    wait_until(lambda: missing.findall(log.read_text()), "Snakemake waits for a file")
    (tmp_path / missing.findall(log.read_text())[0]).touch()
    wait_until(lambda: len(missing.findall(log.read_text())) == 2, "Snakemake waits for the other")
    (tmp_path / missing.findall(log.read_text())[1]).touch()
    assert run.wait(300) == 0, log.read_text()
    assert (tries(tmp_path, "20"), tries(tmp_path, "90")) == (1, 1)


@pytest.mark.slow
@pytest.mark.thorough
def test_files_visible_after_20_and_90_seconds_are_awaited(cluster: Cluster, tmp_path: Path) -> None:
    run, log = start(cluster, tmp_path, LATE, latency_seconds=120)
    timers = [threading.Timer(seconds, (tmp_path / f"{seconds}.done").touch) for seconds in (20, 90)]
    wait_until(lambda: tries(tmp_path, "20") and tries(tmp_path, "90"), "both jobs run")
    for timer in timers:
        timer.start()
    assert run.wait(300) == 0, log.read_text()
    assert (tries(tmp_path, "20"), tries(tmp_path, "90")) == (1, 1)


# Nodes with clocks ten minutes before and behind that of the login node.
SKEWED = (
    REGISTERED
    + """
rule all:
    input: "last"

rule first:
    output: "first"
    resources: runtime=5, mem_mb=100, slurm_partition="cpu"
    shell: "echo first >> tries; touch --date='10 minutes' {output}"

rule last:
    input: "first"
    output: "last"
    resources: runtime=5, mem_mb=100, slurm_partition="cpu"
    shell: "echo last >> tries; touch --date='10 minutes ago' {output}"
"""
)


@pytest.mark.slow
def test_clock_differences_do_not_make_outputs_outdated(cluster: Cluster, tmp_path: Path) -> None:
    run, log = start(cluster, tmp_path, SKEWED)
    assert run.wait(300) == 0, log.read_text()
    shutil.rmtree(tmp_path / "slurm")
    again, log = start(cluster, tmp_path, SKEWED)
    assert again.wait(300) == 0 and "Nothing to be done" in log.read_text()
    assert (tmp_path / "tries").read_text().split() == ["first", "last"]
