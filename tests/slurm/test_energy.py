"""The use of ranks on all nodes of a job is metered there, for any parent process and any end."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from pipeline.energy.attribution.job_usage_intervals import MeteredJob
from pipeline.energy.power_model import PowerModel
from pipeline.energy.readings import MeterInterval, read_intervals
from pipeline.slurm.executor.allocation_runner import AllocationTask
from tests.energy.accounts import attribute
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.submitted import ROOT, submit

pytestmark = pytest.mark.slurm

RANKS, SECONDS, WATTS = 4, 3.0, 4.0
JOB = """
import subprocess, sys
from pathlib import Path
from pipeline.job.attempt import RunningAttempt
with RunningAttempt("pretrain.segment", {"model": "base"}, Path(sys.argv[1])):
    for process in [subprocess.Popen(sys.argv[3:]) for _ in range(int(sys.argv[2]))]:
        assert process.wait() == 0
"""
# Like the processes of a training, each ends when all have finished.
RANK = """
import os, sys, time
from pathlib import Path
from pipeline.energy.meter_recorder import meter_additional_node
folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
seconds = float(sys.argv[3 + int(os.environ.get("SLURM_RESTART_COUNT", 0))])
with meter_additional_node():
    until = time.process_time() + seconds
    while time.process_time() < until: sum(range(1000))
    (folder / f"done-{os.getpid()}").touch()
    while len([*folder.glob("done-*")]) < ranks: time.sleep(0.05)
"""


def commands(folder: Path, launch: str, *seconds: float) -> list[str]:
    """Return the command line of a job whose ranks burn the given CPU seconds, at its first and later starts."""
    rank = [sys.executable, "-c", RANK, str(folder), str(RANKS), *map(str, seconds)]
    copies = "1" if launch else str(RANKS)
    return [sys.executable, "-c", JOB, str(folder / "results"), copies, *shlex.split(launch), *rank]


def readings(folder: Path) -> dict[str, dict[str, list[MeterInterval]]]:
    """Return the intervals of each attempt in order, by node."""
    result: dict[str, dict[str, list[MeterInterval]]] = defaultdict(dict)
    for path in sorted((folder / "results/provenance/readings").glob("*.jsonl")):
        attempt, _, node = path.stem.partition("@")
        result[attempt][node] = [*read_intervals(path)]
    return dict(result)


def cpu_seconds(*nodes: list[MeterInterval]) -> float:
    return sum(interval.job_cpu_seconds for intervals in nodes for interval in intervals)


def joules(*attempts: dict[str, list[MeterInterval]]) -> float:
    """Return the attributed energy of attempts, on nodes where only busy cores use energy."""
    jobs = [
        MeteredJob(
            str(number), "pretrain.segment", {}, "finished", None, [line for lines in nodes.values() for line in lines]
        )
        for number, nodes in enumerate(attempts)
    ]
    model = PowerModel(idle_watts=0.0, busy_core_watts=WATTS, relative_error=0.05, source="a core of this test")
    return attribute(jobs, [], model).total().joules


class Burn:
    """A job of two nodes with two ranks each, which burn."""

    def __init__(self, cluster: Cluster, folder: Path, *seconds: float) -> None:
        self.cluster, self.folder = cluster, folder
        folder.mkdir()
        shape = ["--nodes=2", f"--ntasks={RANKS}", f"--ntasks-per-node={RANKS // 2}", "--cpus-per-task=1"]
        words = commands(folder, shlex.join(["srun", "--kill-on-bad-exit=1", *shape]), *seconds)
        options = [*shape, f"--output={folder}/messages", "--time=5"]
        self.job = submit(cluster, folder, [AllocationTask("burn", f"trap : TERM; {shlex.join(words)}", [])], *options)

    def finish(self) -> None:
        """Wait until the job has succeeded."""
        wait_until(lambda: self.cluster.state(self.job) == "COMPLETED", "the job is complete", seconds=180)


@pytest.mark.versions
@pytest.mark.thorough  # meters of a busy machine use CPU time themselves, the more the longer it takes
def test_two_srun_nodes_are_metered_as_the_same_local_work(cluster: Cluster, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    subprocess.run(commands(here, "", SECONDS), check=True, cwd=ROOT, timeout=120)
    (alone,) = readings(here).values()
    burn = Burn(cluster, tmp_path / "there", SECONDS)
    burn.finish()
    (nodes,) = readings(burn.folder).values()
    assert sorted(nodes) == ["node1", "node2"]
    alone_seconds, nodes_seconds = cpu_seconds(*alone.values()), cpu_seconds(*nodes.values())
    print(f"{alone_seconds:.2f} CPU s alone, {nodes_seconds:.2f} under srun")
    assert alone_seconds > RANKS * SECONDS
    assert nodes_seconds == pytest.approx(alone_seconds, rel=0.1)
    assert cpu_seconds(nodes["node2"]) == pytest.approx(nodes_seconds / 2, rel=0.15), "each node has its own ranks"
    alone_joules, nodes_joules = joules(alone), joules(nodes)
    assert alone_joules == pytest.approx(WATTS * alone_seconds, rel=0.02)
    assert nodes_joules == pytest.approx(alone_joules, rel=0.1), "and so does the attribution"
    assert {interval.job_processors for interval in nodes["node1"]} == {min(RANKS // 2, os.cpu_count() or 1)}


def test_interval_of_a_dead_node_ends_and_a_requeued_job_has_two_attempts(cluster: Cluster, tmp_path: Path) -> None:
    burn = Burn(cluster, tmp_path / "there", 1000.0, SECONDS)
    files = tmp_path / "there/results/provenance/readings"

    def burnt() -> list[float]:
        return [cpu_seconds([*read_intervals(path)]) for path in files.glob("*@node*.jsonl")]

    wait_until(lambda: len(result := burnt()) == 2 and min(result) > 1, "both nodes are metered")
    cluster.fail_node("node2")
    killed = time.time()
    cluster.start_node("node2")
    cluster.ask("scontrol", "update", "nodename=node2", "state=resume", check=False)  # it may be back
    burn.finish()
    first, second = readings(burn.folder).values()
    assert sorted(first) == sorted(second) == ["node1", "node2"]
    assert first["node2"][-1].ended <= killed and cpu_seconds(first["node2"]) > 1
    assert joules(first, second) == pytest.approx(joules(first) + joules(second)), "a requeued job counts twice"
    assert joules(first) > WATTS * 1 and joules(second) > WATTS * RANKS * SECONDS * 0.7
    assert cpu_seconds(*second.values()) > RANKS * SECONDS * 0.7  # srun's ranks lose up to a poll at their end
    attempts = sorted((burn.folder / "results/provenance/attempts").glob("[!.]*.json"))
    assert [json.loads(path.read_text())["status"] for path in attempts][-1] == "finished" and len(attempts) == 2
