"""Killed in any stage, a run continues to the same bytes, and the killed attempts stay visible."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import Project, new_project
from tests.rules.test_determinism import hashes

STAGES = {
    "sources.listing",
    "sources.fingerprint",
    "sources.manifest",
    "corpus.filter",
    "corpus.signatures",
    "corpus.find_duplicates",
    "corpus.deduplicate",
    "corpus.ngrams",
    "corpus.matches",
    "corpus.find_items",
    "corpus.decontaminate",
    "corpus.statistics",
    "corpus.publish",
    "tokenizer.train",
    "tokenizer.fertility",
    "tokens.shard",
    "tokens.suffixes",
    "tokens.index",
    "plan.estimate",
    "pretrain.segment",
    "pretrain.export",
    "evaluate.differences",
    "evaluate.samples",
    "evaluate.suites",
    "report.page",
    "provenance.crate",
}


SOME = {"corpus.filter", "pretrain.segment", "evaluate.suites"}


def _status(project: Project, attempt: str) -> str:
    content = json.loads((project.results / "provenance" / "attempts" / attempt).read_text())
    return str(content["status"])


def _kill_new_stages(project: Project, stages: set[str], killed: dict[str, str], late: set[str]) -> int:
    """Run the DAG, kill the first attempt of each of some stages that was not killed before; return the exit code.

    Snakemake tries a job that died once more, as a cluster's profile does. A stage whose attempt had written its end
    when the signal came, as on a busy machine, is among those that were `late`: its next attempt is killed as well.
    """
    attempts = project.results / "provenance" / "attempts"
    seen = set(os.listdir(attempts)) if attempts.exists() else set()
    with subprocess.Popen(
        project.command("--keep-going", "--retries", "1"),
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as run:
        while run.poll() is None:
            time.sleep(0.001)
            for name in set(os.listdir(attempts)) - seen if attempts.exists() else ():
                if name.startswith("."):
                    continue
                seen.add(name)
                chapter, step, *_, pid, _ = name.split(".")
                if f"{chapter}.{step}" in stages - killed.keys():
                    try:
                        os.kill(int(pid), signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                    if f"{chapter}.{step}" in late or _status(project, name) == "running":
                        killed[f"{chapter}.{step}"] = name
                    late.add(f"{chapter}.{step}")
        return run.returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    "stages", [SOME, pytest.param(STAGES, marks=pytest.mark.thorough)], ids=["three stages", "all stages"]
)
def test_killed_in_a_stage_a_run_comes_to_the_same_bytes(stages: set[str], finished: Project, tmp_path: Path) -> None:
    project = new_project(tmp_path / "polder")
    killed: dict[str, str] = {}
    late: set[str] = set()
    for _ in range(3 * len(stages)):
        if _kill_new_stages(project, stages, killed, late) != 0:
            continue
        missed = stages - set(killed)
        if not missed:
            break
        for stage in missed:  # it had finished before the signal came: make it run again
            next((project.results / "provenance" / "records").glob(f"{stage}.*json")).unlink()
    assert set(killed) == stages
    assert hashes(project.results) == hashes(finished.results)
    statuses = {stage: _status(project, name) for stage, name in killed.items()}
    page = (project.results / "report" / "index.html").read_text()
    unfinished = [stage for stage, status in statuses.items() if status == "running"]
    assert len(unfinished) >= len(stages) - 3  # the others had written their end when the signal came
    # What writes the report, and what comes after it, cannot stand in it.
    shown = [stage for stage in unfinished if stage not in ("report.page", "provenance.crate")]
    assert all(killed[stage].removesuffix(".json") in page for stage in shown)
