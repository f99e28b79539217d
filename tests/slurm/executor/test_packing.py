"""Which jobs share a Slurm job, and that each may use its requested resources."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.slurm.executor.allocation_runner import AllocationTask
from pipeline.slurm.executor.job_requests import (
    MAX_MINUTES_RATIO,
    PreparedJob,
    ResourceRequest,
    allocation_resources,
    count_smallest_allocations,
    make_resource_request,
    pack_jobs,
)
from pipeline.slurm.executor.slurm_commands import sbatch_options
from tests.slurm.cluster import Cluster
from tests.slurm.executor.test_slurm_executor import REGISTERED, start

ONE_CORE = ResourceRequest("genoa", 1, 1000, 60, 24, 43008)


def test_single_core_jobs_fill_the_smallest_allocation():
    assert [len(group) for group in pack_jobs([ONE_CORE] * 50)] == [24, 24, 2]


def test_memory_and_cores_fill_an_allocation():
    assert [len(group) for group in pack_jobs([replace(ONE_CORE, memory_megabytes=4000)] * 20)] == [10, 10]


def test_jobs_with_other_partitions_or_times_are_not_packed_together():
    long, other = replace(ONE_CORE, minutes=60 * MAX_MINUTES_RATIO + 1), replace(ONE_CORE, partition="rome")
    alone, unknown = replace(ONE_CORE, alone=True), replace(ONE_CORE, allocation_cpus=None)
    jobs = [ONE_CORE, long, other, alone, alone, unknown, unknown, ONE_CORE]
    assert pack_jobs(jobs) == [[0, 7], [1], [2], [3], [4], [5], [6]]


def test_jobs_with_the_same_account_and_qos_are_packed_together():
    mine, other = (replace(ONE_CORE, options=(account, "long")) for account in ("ajs@cpu", "ajs@h100"))
    assert pack_jobs([mine, other, ONE_CORE, mine, other]) == [[0, 3], [1, 4], [2]]


@pytest.mark.parametrize("option", ["slurm_account", "qos", "constraint", "reservation", "slurm_extra"])
def test_jobs_with_different_sbatch_options_are_not_packed_together(option: str) -> None:
    small = {"slurm_partition": "cpu", "cpus_per_task": 1, "mem_mb": 1000, "runtime": 60}
    small |= {"allocation_cpus": 24, "allocation_mem_mb": 43008}
    one, other = ({**small, option: value} for value in ("first", "second"))
    assert pack_jobs([make_resource_request(resources) for resources in (one, other, one, small, other)]) == [
        [0, 2],
        [1, 4],
        [3],
    ]


def prepared(**resources: object) -> PreparedJob:
    task = AllocationTask(what="rule_filter", command="true", srun=[], environment={}, outputs=[])
    resources = {"slurm_partition": "gpp", "cpus_per_task": 1, "runtime": 60, **resources}
    return PreparedJob(None, task, resources, make_resource_request(resources), Path("log"))


@pytest.mark.parametrize(
    ("jobs", "cpus"),
    [
        ([{"mem_mb": 1500}], 1),
        ([{"mem_mb": 2001}], 2),
        ([{"mem_mb": 5000}, {"mem_mb": 1000, "cpus_per_task": 4}], 5),
        ([{"mem_mb": 9000, "nodes": 1}], 5),  # alone: four devices of one process
        ([{"mem_mb": 64000, "nodes": 2, "tasks": 8, "cpus_per_task": 3}], 8),  # of a node that four tasks share
        ([{"mem_mb": 8000, "gres": "gpu:1", "cpus_per_task": 20}], 20),
    ],
)
def test_job_requests_cores_instead_of_memory_if_memory_follows_cores(jobs: list[dict[str, object]], cpus: int) -> None:
    site = {"allocation_cpus": 1, "allocation_mem_mb": 2000, "cpu_mem_mb": 2000}
    result = allocation_resources([prepared(**job, **site) for job in jobs])
    assert result["cpus_per_task"] == cpus
    words = sbatch_options(result)
    assert f"--cpus-per-task={cpus}" in words and not any(word.startswith("--mem") for word in words)
    elsewhere = allocation_resources([prepared(**job) for job in jobs])
    assert f"--mem={sum(int(str(job['mem_mb'])) for job in jobs)}" in sbatch_options(elsewhere)


def test_jobs_with_similar_times_are_packed_together():
    short, long = replace(ONE_CORE, cpus=12, minutes=30), replace(ONE_CORE, cpus=12, minutes=100)
    assert pack_jobs([short, long, short, long]) == [[0, 2], [1, 3]]


def test_unused_billed_resources_of_a_large_job_are_filled():
    large = replace(ONE_CORE, memory_megabytes=100_000)  # three allocations: 72 cores
    groups = pack_jobs([large] + [ONE_CORE] * 40)
    assert groups[0] == list(range(30)) and [len(group) for group in groups] == [30, 11]  # 29 GB next to it


requests = st.builds(
    ResourceRequest,
    partition=st.sampled_from(["genoa", "rome"]),
    cpus=st.integers(1, 60),
    memory_megabytes=st.integers(1, 200_000),
    minutes=st.integers(1, 2000),
    allocation_cpus=st.sampled_from([None, 16, 24]),
    allocation_memory_megabytes=st.sampled_from([None, 28_000, 43_008]),
    alone=st.booleans(),
    options=st.sampled_from([(), ("ajs@cpu", "long")]),
)


@given(st.lists(requests, max_size=40))
def test_every_job_is_packed_once_and_no_group_costs_more_than_its_largest_job(jobs):
    groups = pack_jobs(jobs)
    assert sorted(number for group in groups for number in group) == list(range(len(jobs)))
    for group in (group for group in groups if len(group) > 1):
        members = [jobs[number] for number in group]
        size, memory = members[0].allocation_cpus, members[0].allocation_memory_megabytes
        together = count_smallest_allocations(
            sum(j.cpus for j in members), sum(j.memory_megabytes for j in members), size, memory
        )
        assert together == max(count_smallest_allocations(j.cpus, j.memory_megabytes, size, memory) for j in members)
        assert not any(job.alone for job in members) and len({job.options for job in members}) == 1
        assert max(job.minutes for job in members) <= MAX_MINUTES_RATIO * min(job.minutes for job in members)


# Each holds more memory than the cluster gives a core, 200 MB; one has its allocation to itself.
HOLDING = (
    REGISTERED
    + """
rule all:
    input: "1.done", "2.done", "alone.done"

rule shared:
    output: "{number}.done"
    resources: runtime=5, mem_mb=400, slurm_partition="cpu", allocation_cpus=4, allocation_mem_mb=800, cpu_mem_mb=200
    shell: "$HOLD && echo $SLURM_JOB_ID $SLURM_CPUS_PER_TASK > {output}"

rule alone:
    output: "alone.done"
    resources: runtime=5, mem_mb=500, slurm_partition="cpu", nodes=1, cpu_mem_mb=200
    shell: "$HOLD && echo $SLURM_JOB_ID $SLURM_CPUS_PER_TASK > {output}"
"""
)


HOLD = f"""#!{sys.executable} -S
import time
held = bytearray(330_000_000)
held[::4096] = b"1" * len(held[::4096])
time.sleep(4)  # Slurm looks every second
"""


@pytest.mark.versions
@pytest.mark.slurm
@pytest.mark.parametrize("packed", [True, False])
def test_job_may_use_all_requested_memory_if_memory_follows_cores(
    cluster: Cluster, tmp_path: Path, packed: bool
) -> None:
    (tmp_path / "hold").write_text(HOLD)
    (tmp_path / "hold").chmod(0o755)
    workflow = HOLDING if packed else HOLDING.replace("allocation_cpus=4, allocation_mem_mb=800, ", "")
    run, log = start(cluster, tmp_path, workflow, options=("--retries=0",), HOLD=str(tmp_path / "hold"))
    assert run.wait(420) == 0, log.read_text()
    results = {name: (tmp_path / f"{name}.done").read_text().split() for name in ("1", "2", "alone")}
    assert {cpus for _, cpus in results.values()} == {"1"}, "a batch has as many processes as requested cores"
    assert len({job for job, _ in results.values()}) == (2 if packed else 3)
    fields = ["--noheader", "--parsable2", "--allocations", "--format=AllocCPUS"]
    counts = {name: cluster.ask("sacct", f"--jobs={job}", *fields) for name, (job, _) in results.items()}
    assert counts == {"1": "4" if packed else "2", "2": "4" if packed else "2", "alone": "3"}
