"""A preempted ordinary job is requeued by Slurm and continues; it has not failed."""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.job import versions
from pipeline.slurm.executor import allocation_runner
from pipeline.slurm.executor.allocation_runner import AllocationTask
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.submitted import STEP, submit

pytestmark = pytest.mark.slurm

MODULE = "pipeline.sources.fingerprint"


class Fingerprint:
    """A job that hashes one raw file: a pipe at first, which it waits for as for a large file."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.run, self.raw = cluster, folder / "results/test", folder / "raw/0.txt"
        listing = self.run / "sources/laws/listing/0.json"
        listing.parent.mkdir(parents=True)
        listing.write_text(json.dumps({"unit": 0, "files": [{"name": "0.txt", "part": None}]}))
        self.raw.parent.mkdir()
        os.mkfifo(self.raw)
        options = ["--settings", '{"source": "laws"}', "--code", versions.code_version(MODULE)]
        options += ["--environment", versions.environment_version(MODULE, "cpu"), "--instance", "source=laws", "unit=0"]
        options += ["--raw", str(self.raw.parent), "--record", str(self.run / "provenance/records/r.json")]
        options += ["--input", "listing", str(listing), "--input", "files", str(self.raw)]
        options += ["--output", "fingerprint", str(self.run / "sources/laws/fingerprints/0.json")]
        command = shlex.join([sys.executable, "-m", "pipeline", "sources", "fingerprint", *options])
        self.log = folder / "log"
        task = AllocationTask("fingerprint", f"trap : TERM; {command}", STEP)
        self.job = submit(cluster, folder, [task], "--partition=cpu", "--exclusive", f"--output={self.log}")

    def attempts(self) -> list[str]:
        """Return the status of each attempt in order."""
        files = sorted((self.run / "provenance/attempts").glob("[!.]*.json"))
        return [json.loads(file.read_text())["status"] for file in files]


@pytest.mark.versions
def test_preempted_step_is_requeued(cluster: Cluster, tmp_path: Path) -> None:
    fingerprint = Fingerprint(cluster, tmp_path)
    wait_until(lambda: fingerprint.attempts() == ["running"], "the step runs")
    high = ("sbatch", "--parsable", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null")
    cluster.ask(*high, f"--wrap=until [ -f {fingerprint.raw} ]; do sleep 0.1; done")  # the step waits until then
    wait_until(
        # Slurm may start it again before the other job has both nodes, and then requests its requeue again.
        lambda: "stopped" in fingerprint.attempts(),
        "it stops when it is asked to",
        seen=lambda: (fingerprint.attempts(), fingerprint.log.read_text(), cluster.ask("squeue", "--all")),
    )
    with suppress(OSError):  # if no thread waits for the pipe any more, none must be released
        os.close(os.open(fingerprint.raw, os.O_WRONLY | os.O_NONBLOCK))
    fingerprint.raw.unlink()
    fingerprint.raw.write_text("Artikel 1")
    wait_until(lambda: cluster.state(fingerprint.job) == "COMPLETED", "Slurm starts it again")
    *stopped, last = fingerprint.attempts()
    assert {*stopped} == {"stopped"} and last == "finished", fingerprint.log.read_text()
    allocations = (
        "sacct",
        "--duplicates",
        "--allocations",
        "--noheader",
        "--format=State",
        f"--jobs={fingerprint.job}",
    )
    wait_until(lambda: "COMPLETED" in cluster.ask(*allocations), "the database knows")
    assert "FAILED" not in cluster.ask(*allocations)


RUNS = "echo JobId=1 JobState=RUNNING Restarts=0"


@pytest.mark.parametrize(
    ("show", "requeue_it", "asked"),
    [
        (f"mkdir late && exit 1; {RUNS}", "true", True),
        (f"mkdir late && {RUNS} || echo JobId=1 JobState=PENDING Restarts=1", "exit 1", True),  # not answered, but done
        ("echo JobId=1 JobState=CANCELLED Restarts=0", "true", False),
        ("echo JobId=1 JobState=RUNNING Restarts=1", "true", False),  # it already runs elsewhere
        ("exit 1", "true", False),
    ],
)
def test_unresponsive_controller_is_queried_again(
    show: str, requeue_it: str, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\nif [ "$1" = requeue ]; then echo "$*" >> asked; {requeue_it}; else {show}; fi\n')
    scontrol.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    monkeypatch.setattr(allocation_runner, "REQUEUE_SECONDS", 0.0)
    assert allocation_runner.requeue_job() == asked
    requests = tmp_path / "asked"
    assert (requests.read_text() if requests.exists() else "") == ("requeue 1\n" if asked else "")
