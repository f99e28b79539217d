"""A signed invocation of Snakemake ends with signed evidence, or with a nonzero exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from pipeline import layout
from pipeline.core import attestation_log
from pipeline.core.job_records import Attempt, Record
from pipeline.provenance.run_signing_and_log_checkpoint import read_published_checkpoints
from tests.conftest import Project
from tests.rules.test_two_starts import begun, wait_for_a_step
from tests.stored import unpack_archives


def give_key(project: Project, algorithm: str) -> None:
    """Make a key with which the next invocation signs."""
    assert project.call("provenance", "keygen", "key.pem", "--algorithm", algorithm).returncode == 0
    settings = "provenance: {key: key.pem, owner: Stichting Proef, log: heads.jsonl}\n"
    project.edit("config/micro.yaml", "sources:\n", f"{settings}sources:\n")


def sign(project: Project, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the log of a finished run as its jobs would have with a key, and let its next invocation use that key."""
    give_key(project, algorithm)
    unpack_archives(project.results)
    (project.results / layout.ATTESTATION_LOG).unlink()
    (project.results / layout.CRATE).unlink()  # it names a line of that log
    monkeypatch.setenv(attestation_log.SIGNING_KEY_VARIABLE, str(project.path("key.pem")))
    records = {path: json.loads(path.read_text()) for path in project.results.glob("provenance/records/*.json")}
    for path, record in sorted(records.items(), key=lambda item: str(item[1]["started"])):
        attempt = project.results / "provenance/attempts" / record["attempt"]
        readings = [*project.results.glob(f"provenance/readings/{attempt.stem}@*")]
        attestation_log.attest_attempt_begin(project.results, attempt, Attempt.load(attempt))
        attestation_log.attest_finished_job(project.results, attempt, readings, path, Record.load(path))
    monkeypatch.delenv(attestation_log.SIGNING_KEY_VARIABLE)


def pinned(project: Project, message: str) -> subprocess.CompletedProcess[str]:
    """Verify a run with all anchors printed and published by its last invocation."""
    words = {
        line.partition(": ")[0]: line.partition(": ")[2].split()[0] for line in message.splitlines() if ": " in line
    }
    given = ["--key", "key.pem.pub", "--log", "heads.jsonl", "--log-checkpoint", words["log checkpoint"]]
    return project.call("verify", "results/micro", *given, "--crate-sha256", words["crate sha256"])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["p256", "ed25519"])
def test_invocation_with_a_key_is_signed(project: Project, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sign(project, algorithm, monkeypatch)
    output = project.run("--forcerun", "report_page")
    done = pinned(project, output)
    assert done.returncode == 0, done.stdout
    signature = project.results / "provenance/signatures/base.sig"
    assert signature.is_file() == (algorithm == "p256")
    if algorithm == "ed25519":
        return
    words = ["verify", "key", "--public_key", project.path("key.pem.pub"), "--signature", signature]
    model = project.results / "models/base/final"
    subprocess.run([sys.executable, "-m", "model_signing", *words, model], check=True, capture_output=True)
    # An invocation without jobs is signed as well, and one that cannot be signed reports it and fails.
    assert "Nothing to be done" in project.run() and len(read_published_checkpoints(project.path("heads.jsonl"))) == 2
    signature.unlink()
    (model / "more").symlink_to("config.json")  # model_signing signs no links
    output = project.run(check=False)
    assert project.returncode == 1 and "models/base/final is not signed: " in output and "start again" in output
    assert (
        not (project.results / layout.RUN_LOCK).exists()
        and len(read_published_checkpoints(project.path("heads.jsonl"))) == 3
    ), "the rest is signed"
    (model / "more").unlink()
    project.path("heads.jsonl").rename(project.path("elsewhere"))
    project.path("heads.jsonl").mkdir()
    assert "heads.jsonl" in project.run(check=False) and project.returncode == 1
    assert not (project.results / layout.RUN_LOCK).exists()


@pytest.mark.slow
def test_interrupted_invocation_is_signed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    sign(project, "p256", monkeypatch)
    with begun(project, "--forcerun", "report_page") as start:
        wait_for_a_step(project)
        start.send_signal(signal.SIGINT)
    assert start.returncode != 0
    *_, last = attestation_log.read_log(project.results)
    assert last.statement.kind == attestation_log.INVOCATION_ENDED
    assert read_published_checkpoints(project.path("heads.jsonl"))[-1].sha256 == last.sha256
    problems = project.call("verify", "results/micro", "--key", "key.pem.pub", "--log", "heads.jsonl").stdout
    assert "attestation" not in problems, problems
    assert os.access(project.results / "provenance/signatures/base.sig", os.R_OK)
    done = pinned(project, project.run())
    assert done.returncode == 0, done.stdout
