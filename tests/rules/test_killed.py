"""Killed in any stage, a run continues to the same bytes, and the killed attempts stay visible."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.configuration_file import load_configuration
from pipeline.workflow.steps import STEPS
from tests.conftest import Project, new_project
from tests.rules.test_determinism import hashes, reverse_files
from tests.stored import read_attempts

STAGES = {name for name, step in STEPS.items() if step.instances.jobs(load_configuration(Path("config/micro.yaml")))}
SOME = {"corpus.filter", "pretrain.segment", "evaluate.suites"}


# Each process of the run imports this with the package. The first attempt of a stage dies when its outputs are ready,
# and none is in place; its name is then in a file called by the stage.
KILLER = """
import os, signal, sys
from pathlib import Path
run, killed, stages = Path({run!r}), Path({killed!r}), {stages!r}

def kill(event, given):
    if event != "os.rename":
        return
    path = Path(os.fsdecode(given[1])).absolute()
    if run not in path.parents or run / "provenance" in path.parents:
        return
    names = [name.split(".") for name in os.listdir(run / "provenance/attempts") if not name.startswith(".")]
    own = [name for name in names if name[-2] == str(os.getpid())]
    name = max(own, key=lambda name: name[-3], default=["", ""])
    stage = ".".join(name[:2])
    if stage in stages:
        try:
            with open(killed / stage, "x") as file:
                file.write(".".join(name))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
"""


def run_with_kills(project: Project, stages: set[str]) -> dict[str, str]:
    """Run the DAG and kill the first attempt of each stage; return the attempt's name by stage.

    Snakemake retries a dead job once, as the profile of a cluster does.
    """
    killed, package = project.path("killed"), project.path("pipeline/__init__.py")
    killed.mkdir()
    package.write_text(package.read_text() + KILLER.format(run=str(project.results), killed=str(killed), stages=stages))
    project.run("--keep-going", "--retries", "1")
    return {path.name: path.read_text() for path in killed.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "warm"),
    [(SOME, True), pytest.param(STAGES, False, marks=pytest.mark.thorough)],
    ids=["three stages, one core", "all stages"],
)
def test_run_killed_in_each_stage_gives_the_same_bytes(
    stages: set[str], warm: bool, finished: Project, tmp_path: Path
) -> None:
    project = new_project(tmp_path / "polder")
    project.warm = warm
    reverse_files(project)
    killed = run_with_kills(project, stages)
    assert set(killed) == stages
    expected = hashes(finished.results)
    assert hashes(project.results) == expected
    made = {"tokenizer/main/tokenizer.json", "tokens/main/train/0.arrow", "models/base/final/model.safetensors"}
    assert made <= set(expected)
    attempts = read_attempts(project.results)
    assert {attempts[name]["status"] for name in killed.values()} == {"running"}
    page = (project.results / "report/index.html").read_text()
    # The writers of the report, and later steps, cannot be in it.
    shown = stages - {"report.page", "provenance.crate"}
    assert all(killed[stage].removesuffix(".json") in page for stage in shown)
