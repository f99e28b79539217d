"""Two invocations on one run: the second is refused and changes nothing; a killed one blocks nobody."""

from __future__ import annotations

import os
import signal
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from pipeline import layout
from pipeline.workflow.snakemake_internals import read_invocation
from tests.conftest import Project, new_project
from tests.slurm.cluster import wait_until
from tests.stored import read_attempts


def begun(project: Project, *options: str) -> subprocess.Popen[bytes]:
    """Start a run and return immediately."""
    return subprocess.Popen(
        project.command(*options),
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait_for_a_step(project: Project) -> None:
    """Wait until a step works."""
    before = project.attempts()
    wait_until(lambda: project.attempts() - before, "a step works")


def test_second_invocation_from_another_checkout_is_refused_without_changes(tmp_path: Path) -> None:
    project, colleague = new_project(tmp_path / "polder"), new_project(tmp_path / "colleague")
    for checkout in (project, colleague):
        checkout.keep_sources("nl_gids")
    project.run("plan")
    (colleague.folder / "results").symlink_to(project.folder / "results")
    stale = project.results / "provenance/records/plan.estimate.json"
    before = stale.read_bytes()
    # With other settings than the records: an invocation that has the run deletes them.
    colleague.edit("config/micro.yaml", "width: 32", "width: 64")
    with begun(project, "sources") as first:
        wait_for_a_step(project)
        first.send_signal(signal.SIGSTOP)  # it is slow
        for checkout in (colleague, project):
            output = checkout.run("plan", check=False)
            assert checkout.returncode == 2 and "is being worked on by" in output and f"process {first.pid}" in output
            assert "Traceback" not in output
        assert "keeps its lock" in colleague.run("--unlock", check=False) and colleague.returncode == 2
        for options in (("--dry-run", "plan"), ("--summary",)):
            colleague.run(*options)
            assert stale.read_bytes() == before
        first.send_signal(signal.SIGCONT)
        assert first.wait(300) == 0
    assert stale.read_bytes() == before
    colleague.run("plan")
    assert stale.read_bytes() != before, "now the colleague has the run"
    assert not (project.results / layout.RUN_LOCK).exists()


@pytest.mark.parametrize("moment", ["its own lock", "Snakemake's lock", "a step"])
def test_run_killed_at_any_moment_resumes_without_unlock(tmp_path: Path, moment: str) -> None:
    project = new_project(tmp_path / "polder")
    project.keep_sources("nl_gids")
    with begun(project, "sources") as first:
        if moment == "its own lock":
            wait_until((project.results / layout.RUN_LOCK).exists, "it has the run")
        elif moment == "Snakemake's lock":
            wait_until(lambda: [*project.path(".snakemake/locks").glob("*.output.lock")], "Snakemake has its lock")
        else:
            wait_for_a_step(project)
        os.kill(first.pid, signal.SIGKILL)
    output = project.run("sources")
    assert "is cleared: that process is dead" in output
    attempts = [*read_attempts(project.results).values()]
    attempts.sort(key=lambda attempt: str(attempt["started"]))
    assert all(earlier["ended"] <= later["started"] for earlier, later in pairwise(attempts)), "never two in parallel"


def test_hangup_releases_the_run(tmp_path: Path) -> None:
    project = new_project(tmp_path / "polder")
    project.keep_sources("nl_gids")
    with begun(project, "sources") as first:
        wait_for_a_step(project)
        first.send_signal(signal.SIGHUP)
    assert not (project.results / layout.RUN_LOCK).exists() and not [*project.path(".snakemake/locks").glob("*")]
    project.run("plan")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--profile local", "execution"),
        ("corpus --profile slurm --configfile config/micro.yaml --config run.seed=1", "execution"),
        ("--forceall --cores 2", "execution"),
        ("--report a.html --report-after-run --cores 2", "execution"),
        ("--report a.html", "other"),
        ("--touch --cores 1", "other"),
        ("--delete-all-output", "other"),
        ("-n", "other"),
        ("--lint", "other"),
        ("--list-rules", "other"),
        ("--summary", "other"),
        ("--unl", "unlock"),
    ],
)
def test_only_invocations_that_write_files_are_executions(words: str, expected: str) -> None:
    assert read_invocation(words.split()).action == expected
