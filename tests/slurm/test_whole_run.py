"""`snakemake --profile slurm` as a user types it: the run on two nodes gives the bytes of one machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.energy.readings import read_intervals
from tests.conftest import Project, new_project
from tests.rules.test_corpus_plan import check_memory
from tests.rules.test_determinism import hashes
from tests.rules.test_signed_start import give_key, pinned
from tests.slurm.cluster import ACCOUNT, Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

PLATFORM = """
name: loopback
devices: 1
launch: srun --cpus-per-task=1
partitions:
  cpu: {name: cpu, cpus: 8, memory_megabytes: 16000, minutes: 120}
  gpu: {name: gpu, cpus: 8, memory_megabytes: 16000, minutes: 120}
"""
SECTION = f"\nplatform: loopback\nslurm: {{account: {ACCOUNT}, nodes: 2, evaluation_nodes: 2}}\n"


class OnSlurm(Project):
    """A copy of the project that runs on the cluster."""

    warm = False

    def __init__(self, folder: Path, cluster: Cluster, configuration: str = "config/micro.yaml") -> None:
        super().__init__(folder)
        self.cluster = cluster
        if not folder.exists():
            new_project(folder)
        self.describe(PLATFORM, SECTION, configuration)

    def describe(self, platform: str, section: str, configuration: str = "config/micro.yaml") -> None:
        """Write the platform file and the configuration section of a run on it."""
        self.path("workflow/platforms/loopback.yaml").write_text(platform)
        file = self.path(configuration)
        file.write_text(file.read_text().partition("\nplatform: loopback")[0] + section)

    def command(self, *options: str, configuration: str = "config/micro.yaml") -> list[str]:
        """Return the user's command with more frequent queries of job states."""
        python, *words = super().command(*options, configuration=configuration)
        words[words.index("local")] = "slurm"
        return [python, *words, "--seconds-between-status-checks", "1", "--latency-wait", "10"]

    def environment(self) -> dict[str, str]:
        """Return the environment in which Slurm's commands find the cluster."""
        return {**super().environment(), **self.cluster.environment(), "PYTHONPATH": ""}


def differing(path: Path, expected: Path) -> set[str]:
    """Return the artifacts that differ between both runs."""
    ours, theirs = hashes(path), hashes(expected)
    return {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}


@pytest.mark.demo
def test_complete_demo_on_two_nodes_equals_the_local_one(slurm: Cluster, tmp_path: Path) -> None:
    local = new_project(tmp_path / "local")
    project = OnSlurm(tmp_path / "polder", slurm, "config/config.yaml")
    for each in (local, project):
        each.run(configuration="config/config.yaml", timeout_seconds=5400)
    results, expected = (each.path("results/demo") for each in (project, local))
    assert len(hashes(expected)) > 100
    assert differing(results, expected) == {"plan/plan.json"}


def test_complete_run_on_two_nodes_equals_the_local_one(finished: Project, slurm: Cluster, tmp_path: Path) -> None:
    project = OnSlurm(tmp_path / "polder", slurm)
    give_key(project, "p256")
    verified = pinned(project, project.run())
    assert verified.returncode == 0, verified.stdout
    assert (project.results / "provenance/signatures/base.sig").is_file()
    assert differing(project.results, finished.results) == {"plan/plan.json"}  # it depends on the platform
    record = json.loads((project.results / "provenance/records/pretrain.segment.base.8.json").read_text())
    assert record["counts"]["world_size"] == 2
    assert record["launch"].startswith("srun --export=ALL --nodes=2 --ntasks=2 ")
    evaluated = json.loads((project.results / "provenance/records/evaluate.suites.base.8.json").read_text())
    assert evaluated["launch"].startswith("srun --export=ALL --nodes=2 --ntasks=2 ")
    for step in ("pretrain.segment.base.8", "evaluate.suites.base.8"):
        files = [*(project.results / "provenance/readings").glob(f"{step}.*.jsonl")]
        assert {file.stem.partition("@")[2] for file in files} == {"node1", "node2"}
        for first, second, *_ in (read_intervals(file) for file in files):
            assert first.job_cpu_seconds < second.job_cpu_seconds, "counters are sampled before anything is imported"
    logs = project.results / "logs"
    for rank in (0, 1):
        assert (logs / f"pretrain.segment.base.8.rank-{rank}.log").exists()
        assert (logs / f"evaluate.suites.base.8.rank-{rank}.log").exists()
    assert list((logs / "slurm").rglob("*.log"))
    fields = ("--allocations", "--noheader", "--parsable2", "--format=Comment,Partition,Account,NNodes,State")
    rows = [line.split("|") for line in slurm.ask("sacct", "--starttime=now-12hours", *fields).splitlines()]
    of_rule = {rule: rest for rule, *rest in rows}
    assert of_rule["rule_pretrain_segment_wildcards_base_8"] == ["gpu", ACCOUNT, "2", "COMPLETED"]
    assert of_rule["rule_corpus_filter_wildcards_main_en_guide_0"] == ["cpu", ACCOUNT, "1", "COMPLETED"]
    assert not any("sources_listing" in rule for rule in of_rule)  # a local rule stays local
    check_memory(project.results)  # here, because a fork's memory includes that of the warm Python
