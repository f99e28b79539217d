"""A controller that answers late or forgets soon: a job runs once, and its end is seen."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
# The local rule lets the controller stand still or die, so that sbatch gives up on the job after it.
WORKFLOW = """
from pathlib import Path
from snakemake.logging import logger
from pipeline.slurm import executor
from pipeline.slurm.settings import Slurm

localrules: freeze

onstart:
    executor.prepare(workflow, Path("results"), Slurm(account="polder"), logger.warning)

rule job:
    input: "frozen"
    output: "done"
    resources: runtime=5, mem_mb=600, slurm_partition="cpu"
    shell: "echo >> tries; sleep 8; touch {output}"

rule freeze:
    output: "frozen"
    shell: "kill -$SIGNAL $CONTROLLER; touch {output}"
"""
FORGETS = """#!/bin/sh
case "$*" in *--format=%i*) exec {squeue} "--format=%i|%T" --noheader;; *) exec {squeue} "$@";; esac
"""


@pytest.mark.parametrize(("number", "submissions"), [("STOP", 0), pytest.param("KILL", 1, marks=pytest.mark.slow)])
def test_a_job_that_sbatch_got_no_answer_for_and_squeue_soon_forgot_runs_once(
    number: str, submissions: int, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "Snakefile").write_text(WORKFLOW)
    shutil.copytree(ROOT / "workflow/profiles/slurm", tmp_path / "slurm")
    (tmp_path / "bin").mkdir()
    squeue = tmp_path / "bin/squeue"
    squeue.write_text(FORGETS.format(squeue=cluster.folder / "bin/squeue"))
    squeue.chmod(0o755)
    controller = cluster.process("slurmctld")
    environment = {**cluster.environment(), "PYTHONPATH": str(ROOT), "CONTROLLER": str(controller), "SIGNAL": number}
    environment["PATH"] = f"{squeue.parent}:{environment['PATH']}"
    quick = ["--slurm-init-seconds-before-status-checks=2", "--seconds-between-status-checks=1", "--latency-wait=5"]
    command = [sys.executable, "-m", "snakemake", "--profile", "slurm", *quick]
    log = tmp_path / "log"
    with log.open("w") as stream:
        run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=stream, stderr=stream)
    try:
        wait_until(
            lambda: "Slurm did not say whether it has taken a job of job" in log.read_text(), "sbatch fails", 120
        )
    finally:
        if number == "STOP":  # the request waits at its door
            os.kill(controller, signal.SIGCONT)
        else:
            cluster.start_controller()
    try:
        assert run.wait(120) == 0, log.read_text()
    finally:
        run.kill()
    assert (tmp_path / "done").exists() and len((tmp_path / "tries").read_text().splitlines()) == 1
    assert log.read_text().count("has been submitted") == submissions
