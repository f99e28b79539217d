"""Output of Slurm's commands, and commands that cannot be started."""

from __future__ import annotations

import errno
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.slurm import sacct
from pipeline.slurm.accounting import query_node_cpu_counts
from pipeline.slurm.executor import slurm_commands


def put_first_on_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Replace these commands by shell scripts."""
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        ("sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates", "full"),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job viol", "full"),
        ("sbatch: error: QOSMaxWallDurationPerJobLimit\nsbatch: error: Job violates (job submit limit, …)", "refused"),
        ("sbatch: error: QOSMinCpuNotSatisfied\nsbatch: error: Job violates (job submit limit, …)", "refused"),
        ("sbatch: error: AssocGrpCPUMinutesLimit\nsbatch: error: Job violates (job submit limit, …)", "refused"),
        ("sbatch: error: Batch job submission failed: Job violates (job submit limit, …)", "full"),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", "full"),
        ("sbatch: error: Batch job submission failed: Unexpected message received", "silent"),
        ("sbatch: error: Batch job submission failed: Transport endpoint is not connected", "silent"),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", "silent"),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", "silent"),
        ("sbatch: error: Batch job submission failed: Slurm backup controller in standby mode", "silent"),
        ("sbatch: error: Batch job submission failed: Insane message length", "silent"),
        ("sbatch: fatal: Could not establish a configuration source", "silent"),
        ("sbatch: error: Batch job submission failed: Message receive failure", "silent"),
        ("sbatch: error: invalid partition specified: gpux", "refused"),
        ("", "refused"),
    ],
)
def test_sbatch_message_is_a_limit_a_timeout_or_a_refusal(message: str, outcome: str) -> None:
    assert slurm_commands.parse_sbatch_answer(1, "", message).outcome == outcome


def test_exit_codes_that_slurm_requeues_are_parsed() -> None:
    usual = "RequeueExit             = (null)\nRequeueExitHold         = (null)\n"
    assert slurm_commands.parse_requeued_codes(usual) == []
    odd = usual.replace("(null)", "1,130-132", 1).replace("(null)", "3")
    assert slurm_commands.parse_requeued_codes(odd) == [1, 3, 130, 131, 132]


def test_slurm_output_may_contain_invalid_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_first_on_the_path(tmp_path, monkeypatch, sbatch="printf 'projet \\351puis\\351\\n' >&2; echo 4711")
    assert slurm_commands.submit_batch([], "true", tmp_path) == slurm_commands.SubmissionAnswer("taken", "4711")


def test_slurm_is_queried_again_if_no_process_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "run", refuse)
    assert slurm_commands.query_jobs(["this-start"]) is None and query_node_cpu_counts() == {}
    assert slurm_commands.submit_batch([], "true", tmp_path).outcome == "silent"
    with pytest.raises(InputError, match=r"sacct cannot be started \(Resource temporarily unavailable\)"):
        sacct.query_sacct(["this-start"], datetime.now(UTC))


def test_job_number_is_parsed_from_sbatch_output() -> None:
    assert slurm_commands.parse_sbatch_answer(
        0, "Welcome to Snellius\n4711;loopback\n", ""
    ) == slurm_commands.SubmissionAnswer("taken", "4711")
    assert (
        slurm_commands.parse_sbatch_answer(0, "Welcome\n2 jobs may still run\n4711\nHave 1 nice day\n", "").number
        == "4711"
    )
    assert slurm_commands.parse_sbatch_answer(0, "Welcome\n", "").outcome == "refused"


def test_edited_comment_does_not_change_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = "1|COMPLETED|None|rule_a|b\n2|RUNNING|None|rule_a\nb\u2028c\n3|PENDING|Priority|\n"
    put_first_on_the_path(tmp_path, monkeypatch, squeue=f"printf '%s' '{printed}'")
    known = slurm_commands.query_jobs(["this-start"]) or {}
    assert {number: (job.state, job.comment) for number, job in known.items()} == {
        "1": ("COMPLETED", "rule_a|b"),
        "2": ("RUNNING", "rule_a"),
        "3": ("PENDING", ""),
    }
