"""A node lost to Slurm may continue training: the job's next process owns the scratch, and the old one stops."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.job import versions
from pipeline.pretrain import segment
from pipeline.pretrain.monitors import metrics
from tests.conftest import is_lacking
from tests.pretrain.conftest import tokens  # noqa: F401
from tests.pretrain.processes import chaos
from tests.slurm.cluster import Cluster, Link, running, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
MODULE = "pipeline.pretrain.segment"


@pytest.fixture
def parted(request: pytest.FixtureRequest, accident: str) -> Iterator[Cluster]:
    """Return a cluster that can lose node2: its slurmd, or its link to the controller and node1; the disk is shared."""
    if accident == "slurmd is killed":
        yield request.getfixturevalue("cluster")
        return
    if reason := Link.lacking():
        is_lacking(f"no network can be parted here: {reason}")
    with running(link=Link()) as cluster:
        yield cluster


SMALL = chaos.small(300, "full_shard", 600)
SETTINGS = SMALL.model_copy(update={"training": SMALL.training.model_copy(update={"checkpoint_every": 25})})


class Segment:
    """A segment in a Slurm job on node2, by the command line of its rule: it writes attempts and a record."""

    def __init__(self, cluster: Cluster, tokens: dict[str, Path], folder: Path) -> None:  # noqa: F811
        self.cluster, self.run = cluster, folder / "results/test"
        self.milestone, self.scratch = self.run / "models/tiny/milestones/1", self.run / "scratch/tiny/1/code"
        options = ["--settings", SETTINGS.model_dump_json(), "--code", versions.code_version(MODULE)]
        options += ["--environment", versions.environment_version(MODULE, "cpu"), "--instance", "model=tiny", "step=1"]
        for name, path in tokens.items():
            options += ["--input", name, str(path)]
        options += ["--output", "milestone", str(self.milestone), "--scratch", str(self.scratch)]
        options += ["--record", str(self.run / "provenance/records/pretrain.segment.tiny.1.json")]
        command = shlex.join([sys.executable, "-m", "pipeline", "pretrain", "segment", *options])
        self.messages = folder / "messages"
        words = (
            "sbatch",
            "--parsable",
            "--requeue",
            "--open-mode=append",
            f"--chdir={ROOT}",
            f"--output={self.messages}",
        )
        script = f"export GLOO_SOCKET_IFNAME=lo; {command}; code=$?; echo ended with $code; exit $code"
        cluster.ask("scontrol", "update", "nodename=node1", "state=drain", "reason=test")
        self.job = cluster.ask(*words, "--mem=3000", "--time=20", f"--wrap={script}")
        wait_until(lambda: self.step() >= 10, "it trains on node2", seconds=180)
        cluster.ask("scontrol", "update", "nodename=node1", "state=resume")

    def step(self) -> int:
        """Return the last step of the metrics."""
        lines = metrics.read_metrics(self.scratch / "metrics.jsonl")
        return lines[-1]["step"] if lines else 0

    def attempts(self) -> list[dict[str, Any]]:
        """Return the attempts in order."""
        files = sorted((self.run / "provenance/attempts").glob("[!.]*.json"))
        return [json.loads(file.read_text()) for file in files]

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Suspend all current training processes."""
        results = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("SLURM_JOB_ID") == self.job and str(self.scratch) in " ".join(
                    process.cmdline()
                ):
                    results.append(process)
        assert results
        for process in results:
            process.suspend()
        try:
            yield
        finally:
            for process in results:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def starts(self) -> int:
        """Return the number of process starts."""
        return len(list(self.scratch.glob("starts/*/arguments.json")))


@pytest.fixture(scope="module")
def undisturbed(tokens: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:  # noqa: F811
    folder = tmp_path_factory.mktemp("undisturbed")
    paths = {**tokens, "milestone": folder / "milestone", "scratch": folder / "scratch"}
    segment.run(SETTINGS, previous=[], launch="", **paths)
    return chaos.result(folder)


@pytest.mark.parametrize(
    "accident", [pytest.param("the network is parted", marks=pytest.mark.thorough), "slurmd is killed"]
)
def test_superseded_process_stops_and_weights_equal_an_undisturbed_run(
    accident: str,
    parted: Cluster,
    tokens: dict[str, Path],  # noqa: F811
    undisturbed: dict[str, Any],
    tmp_path: Path,
) -> None:
    training = Segment(parted, tokens, tmp_path)
    before = training.step()
    if parted.link:
        parted.link.cut()
    else:
        parted.end("node2", signal=9)
    try:
        wait_until(lambda: training.step() >= before + 10, "the old process trains on")
        with training.held_up():  # on a slow machine it would have finished before the next start
            if not parted.link:  # Slurm takes some time to mark it down
                parted.ask("scontrol", "update", "nodename=node2", "state=down", "reason=test")
            wait_until(lambda: training.starts() == 2, "Slurm has started it again", seconds=180)
            assert [attempt["status"] for attempt in training.attempts()] == ["running", "running"]
        wait_until(lambda: training.attempts()[0]["status"] != "running", "the old process stops", seconds=60)
        wait_until(lambda: parted.state(training.job) == "COMPLETED", "the new one finishes", seconds=300)
        wait_until(lambda: "ended with 2" in training.messages.read_text(), "the old one's shell has ended")
    finally:
        if parted.link:
            parted.link.mend()
        parted.clear()
    old, new = training.attempts()
    output = training.messages.read_text()
    assert old["status"] == "failed" and new["status"] == "finished", output
    sentence = f"a later start of this step owns {training.scratch}"
    assert (
        old["error"].startswith(f"Superseded: {sentence}") and f"job {training.job} of Slurm, restart 1" in old["error"]
    )
    assert f"error: {sentence}" in output and "ended with 2" in output and "ended with 0" in output
    assert training.starts() == 2
    folder = tmp_path / "compared"
    folder.mkdir()
    (folder / "milestone").symlink_to(training.milestone)
    assert chaos.result(folder) == undisturbed
