"""A run keeps its initial state: edits while its jobs wait are not in their records."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Project, rewrite
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.test_whole_run import OnSlurm
from tests.stored import read_attempts

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
CONFIGURATION = "config/micro.yaml"


class Held:
    """An invocation whose jobs wait for their nodes until released."""

    def __init__(self, project: OnSlurm, target: str) -> None:
        self.project, self.cluster = project, project.cluster
        self.log = project.folder / "log"
        self.cluster.ask("scontrol", "update", "partition=cpu", "state=down")
        words = project.command("--seconds-between-status-checks", "1")
        words.insert(words.index("snakemake") + 1, target)
        with self.log.open("w") as stream:
            self.process = subprocess.Popen(
                words, cwd=project.folder, env=project.environment(), stdout=stream, stderr=stream
            )

    def wait_for_jobs(self, number: int) -> None:
        """Wait until the given number of jobs is submitted."""
        wait_until(lambda: len(self.cluster.jobs()) == number, f"{number} jobs wait: {self.log.read_text()}", 120)

    def go(self) -> int:
        """Let the jobs run and return the exit code of the invocation."""
        self.cluster.ask("scontrol", "update", "partition=cpu", "state=up")
        return self.process.wait(300)


def record(project: Project, name: str) -> dict[str, Any]:
    """Return a record of the run."""
    loaded: dict[str, Any] = json.loads((project.results / f"provenance/records/{name}.json").read_text())
    return loaded


def test_license_edited_while_jobs_wait_is_used_by_the_next_invocation(cluster: Cluster, tmp_path: Path) -> None:
    project = OnSlurm(tmp_path / "polder", cluster)
    held = Held(project, "sources")
    held.wait_for_jobs(4)
    project.edit(CONFIGURATION, "language: en, license: CC0-1.0", "language: en, license: CC-BY-4.0")
    assert held.go() == 0, held.log.read_text()[-3000:]
    written = record(project, "sources.manifest.en_guide")
    assert written["settings"]["license"] == "CC0-1.0"
    frozen = json.loads((project.results / written["frozen"]["path"]).read_text())
    licenses = {source["name"]: source["license"] for source in frozen["configuration"]["sources"]}
    assert licenses["en_guide"] == "CC0-1.0"

    output = project.run("sources", "--dry-run")
    assert "since the last invocation: configuration.sources" in output and "CC-BY-4.0" in output
    assert "sources.manifest" in output
    project.edit(CONFIGURATION, "CC-BY-4.0", "CC0-1.0")
    output = project.run("sources", "--dry-run")
    assert "since the last invocation" not in output and "Nothing to be done" in output


def test_code_edited_while_jobs_wait_is_refused_and_used_by_the_next_invocation(
    cluster: Cluster, tmp_path: Path
) -> None:
    project = OnSlurm(tmp_path / "polder", cluster)
    held = Held(project, "sources")
    held.wait_for_jobs(4)
    old = project.path("pipeline/sources/fingerprint.py").read_text()
    rewrite(project.path("pipeline/sources/fingerprint.py"))
    assert held.go() != 0
    output = held.log.read_text()
    assert output.count("The step refused its inputs, and is not retried") == 4 and "Trying to restart" not in output
    assert "the code of sources.fingerprint changed while the job waited" in output
    attempts = [*read_attempts(project.results).values()]
    assert [a["status"] for a in attempts if a["step"] == "sources.fingerprint"] == ["refused"] * 4
    assert not [*project.results.glob("provenance/records/sources.fingerprint*")]

    project.path("pipeline/sources/fingerprint.py").write_text(old)
    again = Held(project, "sources")
    assert again.go() == 0, again.log.read_text()[-3000:]
