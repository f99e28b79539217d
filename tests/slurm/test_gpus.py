"""GPUs of 4 and of 8 per node, without computation: the resources of a training on each platform.

The masks of LUMI's file are compared with its documentation of a node; this machine has no such cores.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config import platforms
from pipeline.config.configuration import parse_configuration
from pipeline.config.platforms import Platform
from pipeline.pretrain.processes.launch_command import (
    count_processes,
    count_processes_per_node,
    find_option,
    parse_cpus_per_task,
    split_command,
)
from pipeline.slurm.executor import slurm_commands
from pipeline.slurm.resources import StepResources
from pipeline.workflow.job_parameters import Dag
from tests.slurm.cluster import Cluster, running, wait_until

NODES = 2
MACHINES = {"snellius": 4, "juwels-booster": 4, "lumi": 8}
DEVICES = {**MACHINES, "leonardo": 4, "marenostrum5": 4, "jean-zay": 4, "jupiter": 4, "alps": 4}
WILDCARDS = {"model": "base", "step": "8"}
# The NUMA node of each die, in the order of the dies, by `rocm-smi --showtoponuma`:
# https://docs.lumi-supercomputer.eu/runjobs/scheduled-jobs/distribution-binding/#gpu-binding
NUMA_OF_DIE = [3, 3, 1, 1, 0, 0, 2, 2]
# `lscpu` on a node of LUMI-G, the first hardware threads: NUMA node0 CPU(s): 0-15,64-79, node1 16-31,80-95, node2
# 32-47,96-111, node3 48-63,112-127; https://docs.lumi-supercomputer.eu/hardware/lumig/: 8 cores share an L3 cache.
CORES_OF_NUMA = {0: range(16), 1: range(16, 32), 2: range(32, 48), 3: range(48, 64)}
CORES_OF_CACHE = 8
SAID = {
    "rank": "SLURM_PROCID",
    "local": "SLURM_LOCALID",
    "node": "SLURMD_NODENAME",
    "tasks": "SLURM_STEP_TASKS_PER_NODE",
    "cpus": "SLURM_CPUS_PER_TASK",
    "bind": "SLURM_CPU_BIND_LIST",
    "visible": "CUDA_VISIBLE_DEVICES",
    "job": "SLURM_JOB_GPUS",
    "step": "SLURM_STEP_GPUS",
}
SAY = "echo " + " ".join(f'"{name}=${variable};"' for name, variable in SAID.items())


def cores(mask: str) -> set[int]:
    """Return the processors of a hexadecimal mask."""
    bits = int(mask, 16)
    return {core for core in range(bits.bit_length()) if bits >> core & 1}


def masks_of(launch: str | None) -> list[set[int]]:
    """Return the processors of each rank of a node in a launch command."""
    bound = find_option(split_command(launch), "--cpu-bind") or ""
    return [cores(mask) for mask in bound.removeprefix("mask_cpu:").split(",")]


def check_lumi(masks: list[set[int]]) -> None:
    """Check that each rank of a node has seven cores next to its die, its own, without the first of the L3 cache."""
    assert len(masks) == len(NUMA_OF_DIE) and sum(map(len, masks)) == len(set().union(*masks)) == 56
    for mask, numa in zip(masks, NUMA_OF_DIE, strict=True):
        first = min(mask) - 1
        assert first % CORES_OF_CACHE == 0 and mask == {*range(first + 1, first + CORES_OF_CACHE)}
        assert mask <= {*CORES_OF_NUMA[numa]}


def test_lumi_cpu_masks_are_the_cores_next_to_each_die() -> None:
    lumi = platforms.load_platform_settings("lumi")
    check_lumi(masks_of(lumi.launch))
    assert parse_cpus_per_task(lumi.launch) == 7 and count_processes_per_node(lumi.launch) == lumi.devices == 8
    swapped = (lumi.launch or "").replace("fe0000,fe000000,fe,fe00", "fe,fe00,fe0000,fe000000")
    with pytest.raises(AssertionError):
        check_lumi(masks_of(swapped))


@pytest.mark.parametrize("name", DEVICES)
def test_ranks_of_a_node_share_exactly_its_cores(name: str) -> None:
    platform = platforms.load_platform_settings(name)
    gpu = platform.partitions["gpu"]
    assert platform.devices == gpu.gpus == DEVICES[name]
    assert gpu.gpus * (parse_cpus_per_task(platform.launch) or 1) == gpu.cpus


@pytest.fixture(scope="module")
def machine() -> Iterator[Cluster]:
    """Return a cluster of its own, whose nodes have as many GPUs as the largest of the machines."""
    with running(nodes=NODES, cpus=128, memory_megabytes=800_000, gpus=max(MACHINES.values())) as cluster:
        yield cluster


def request_resources(stage: str, name: str) -> dict[str, Any]:
    """Return the resources of a stage's job on a platform, in the only GPU partition of the tests."""
    described = platforms.load_platform_settings(name).model_dump(exclude_unset=True)
    for partition in {"gpu", "evaluation"} & described["partitions"].keys():
        described["partitions"][partition] |= {"name": "gpu", "minutes": 60}
    described["ear"] = None
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    config = parse_configuration({**raw, "slurm": {"nodes": NODES}}).model_copy(
        update={"platform": Platform.model_validate(described)}
    )
    resources = StepResources(config, Dag(config))(stage)
    return {key: resolved(value) if callable(value) else value for key, value in resources.items()}


def resolved(resource: Callable[..., Any]) -> Any:
    """Return a resource of a model's job at its first attempt, given by name as in Snakemake."""
    given = {"wildcards": WILDCARDS, "attempt": 1}
    return resource(*(given[name] for name in signature(resource).parameters))


def run_and_report(cluster: Cluster, resources: dict[str, Any], folder: Path) -> list[dict[str, str]]:
    """Submit a job with these resources and return the view of its processes, by rank."""
    script = folder / "say.sh"
    script.write_text(SAY)
    launch = re.sub(r"--output=\S+", "", resources.get("launch") or "srun").replace("--open-mode=append", "")
    words = ["sbatch", "--wait", f"--output={folder}/said", *slurm_commands.sbatch_options(resources)]
    words.append(f"--wrap={launch} bash {script}")
    done = subprocess.run(words, env=cluster.environment(), capture_output=True, text=True, timeout=120)
    assert "Submitted" in done.stdout, done.stderr
    wait_until(lambda: (folder / "said").is_file(), "it has said something")
    text = (folder / "said").read_text()
    assert done.returncode == 0, done.stderr + text
    lines = [dict(re.findall(r"(\w+)=([^;]*);", line)) for line in text.splitlines() if line.startswith("rank=")]
    return sorted(lines, key=lambda line: int(line["rank"]))


@pytest.mark.slurm
@pytest.mark.parametrize("name", MACHINES)
def test_training_has_a_process_per_gpu_and_all_gpus_of_its_nodes(name: str, machine: Cluster, tmp_path: Path) -> None:
    gpus = MACHINES[name]
    everything = ",".join(map(str, range(gpus)))
    resources = request_resources("pretrain.segment", name)
    ranks = run_and_report(machine, resources, tmp_path)
    assert len(ranks) == count_processes(resources["launch"]) == NODES * gpus
    assert [int(rank["local"]) for rank in ranks] == [*range(gpus)] * NODES
    assert [rank["node"] for rank in ranks] == ["node1"] * gpus + ["node2"] * gpus
    for rank in ranks:
        assert rank["tasks"] == f"{gpus}(x{NODES})" and rank["cpus"] == str(resources["cpus_per_task"])
        assert rank["step"] == rank["visible"] == everything, "each process takes the GPU of its local rank"
    if name == "lumi":
        check_lumi([cores(rank["bind"].split(",")[int(rank["local"])]) for rank in ranks[:gpus]])


@pytest.mark.slurm
@pytest.mark.parametrize("name", ["snellius", "lumi"])
def test_evaluation_gets_one_gpu_and_an_unavailable_one_is_refused(name: str, machine: Cluster, tmp_path: Path) -> None:
    resources = request_resources("evaluate.suites", name)
    (rank,) = run_and_report(machine, resources, tmp_path)
    assert rank["step"] == rank["visible"] == "0" and rank["cpus"] == str(resources["cpus_per_task"])
    words = (
        "sbatch",
        "--wrap=true",
        *slurm_commands.sbatch_options({**resources, "gres": f"gpu:{len(machine.gpus) + 1}"}),
    )
    refused = subprocess.run(words, env=machine.environment(), capture_output=True, text=True)
    assert refused.returncode and "Requested node configuration is not available" in refused.stderr
