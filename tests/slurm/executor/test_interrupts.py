"""An interrupt leaves no job in the queue, at any moment."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.executor.test_slurm_executor import SLOW, start


@pytest.mark.versions
@pytest.mark.slurm
@pytest.mark.parametrize("jobs", [1, 2])
def test_interrupt_cancels_the_job_being_submitted(cluster: Cluster, tmp_path: Path, jobs: int) -> None:
    (tmp_path / "bin").mkdir()
    sbatch, calls, answers = tmp_path / "bin/sbatch", tmp_path / "calls", tmp_path / "answers"
    waits = f"[ $(wc -l < {calls}) -lt {jobs} ] || until [ -e {answers} ]; do sleep 0.1; done"
    sbatch.write_text(f'#!/bin/sh\necho >> {calls}\n{waits}\nexec {cluster.folder}/bin/sbatch "$@"\n')
    sbatch.chmod(0o755)
    path = f"{sbatch.parent}:{cluster.environment()['PATH']}"
    run, log = start(cluster, tmp_path, SLOW.replace("JOBS", str(jobs)), PATH=path)
    try:
        wait_until(lambda: calls.exists() and len(calls.read_text().splitlines()) == jobs, "sbatch is called", 120)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        wait_until(lambda: "A submission is under way" in log.read_text(), "it waits for sbatch", 60)
        answers.touch()
        assert run.wait(120) != 0, log.read_text()
    finally:
        answers.touch()
        run.kill()
    assert not cluster.jobs(), log.read_text()


@pytest.mark.slurm
def test_interrupt_cancels_a_job_that_slurm_accepts_late(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    sbatch, later = tmp_path / "bin/sbatch", tmp_path / "script"
    submits = f'(sleep 1; exec {cluster.folder}/bin/sbatch "$@" < {later}) > {later}.said 2>&1 &'
    says = "echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1"
    sbatch.write_text(f"#!/bin/sh\ncat > {later}\n{submits}\n{says}\n")
    sbatch.chmod(0o755)
    path = f"{sbatch.parent}:{cluster.environment()['PATH']}"
    run, log = start(cluster, tmp_path, SLOW.replace("JOBS", "1"), PATH=path)
    try:
        wait_until(lambda: "Slurm did not confirm the submission" in log.read_text(), "sbatch has failed", 120)
        run.send_signal(signal.SIGINT)
        assert run.wait(120) != 0
    finally:
        run.kill()
    wait_until(lambda: later.with_suffix(".said").read_text() != "", "it was taken", 60)
    wait_until(lambda: not cluster.jobs(), "it was cancelled", 20)


@pytest.mark.slurm
def test_second_interrupt_exits_at_once_and_the_first_cancels_submitted_jobs(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    sbatch, calls = tmp_path / "bin/sbatch", tmp_path / "calls"
    waits = f"[ $(wc -l < {calls}) -lt 2 ] || exec sleep 600"
    sbatch.write_text(f'#!/bin/sh\necho >> {calls}\n{waits}\nexec {cluster.folder}/bin/sbatch "$@"\n')
    sbatch.chmod(0o755)
    path = f"{sbatch.parent}:{cluster.environment()['PATH']}"
    run, log = start(cluster, tmp_path, SLOW.replace("JOBS", "2"), PATH=path)
    try:
        wait_until(lambda: calls.exists() and len(calls.read_text().splitlines()) == 2, "sbatch is called", 120)
        run.send_signal(signal.SIGINT)
        wait_until(lambda: "A submission is under way" in log.read_text(), "it waits for sbatch", 60)
        wait_until(lambda: not cluster.jobs(), "the first job is cancelled", 60)
        run.send_signal(signal.SIGINT)
        assert run.wait(60) != 0
    finally:
        run.kill()
    assert "Jobs may still run (a submission is under way): scancel --name=" in log.read_text()
