"""What Slurm's commands print, and where they cannot be started."""

from __future__ import annotations

import errno
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.slurm import sacct
from pipeline.slurm.accounting import query_cpu_counts
from pipeline.slurm.executor import slurm_commands


def put_first_on_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Let shell scripts stand for these commands."""
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("said", "outcome"),
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
def test_what_sbatch_says_is_a_limit_or_a_silence_or_a_refusal(said: str, outcome: str) -> None:
    assert slurm_commands.parse_sbatch_answer(1, "", said).outcome == outcome


def test_the_exit_codes_with_which_slurm_starts_a_job_again_are_known() -> None:
    usual = "RequeueExit             = (null)\nRequeueExitHold         = (null)\n"
    assert slurm_commands.parse_requeued_codes(usual) == []
    odd = usual.replace("(null)", "1,130-132", 1).replace("(null)", "3")
    assert slurm_commands.parse_requeued_codes(odd) == [1, 3, 130, 131, 132]


def test_a_site_may_print_what_is_no_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_first_on_the_path(tmp_path, monkeypatch, sbatch="printf 'projet \\351puis\\351\\n' >&2; echo 4711")
    assert slurm_commands.submit_batch([], "true", tmp_path) == slurm_commands.SubmissionAnswer("taken", "4711")


def test_where_no_process_can_be_started_now_slurm_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "run", refuse)
    assert slurm_commands.query_jobs(["this-start"]) is None and query_cpu_counts() == {}
    assert slurm_commands.submit_batch([], "true", tmp_path).outcome == "silent"
    with pytest.raises(InputError, match=r"sacct cannot be started \(Resource temporarily unavailable\)"):
        sacct.query_sacct(["this-start"], datetime.now(UTC))


def test_the_number_of_a_job_is_found_in_what_sbatch_prints() -> None:
    assert slurm_commands.parse_sbatch_answer(
        0, "Welcome to Snellius\n4711;loopback\n", ""
    ) == slurm_commands.SubmissionAnswer("taken", "4711")
    assert (
        slurm_commands.parse_sbatch_answer(0, "Welcome\n2 jobs may still run\n4711\nHave 1 nice day\n", "").number
        == "4711"
    )
    assert slurm_commands.parse_sbatch_answer(0, "Welcome\n", "").outcome == "refused"


def test_a_comment_that_somebody_changed_makes_no_other_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = "1|COMPLETED|None|rule_a|b\n2|RUNNING|None|rule_a\nb\u2028c\n3|PENDING|Priority|\n"
    put_first_on_the_path(tmp_path, monkeypatch, squeue=f"printf '%s' '{printed}'")
    known = slurm_commands.query_jobs(["this-start"]) or {}
    assert {number: (job.state, job.comment) for number, job in known.items()} == {
        "1": ("COMPLETED", "rule_a|b"),
        "2": ("RUNNING", "rule_a"),
        "3": ("PENDING", ""),
    }
