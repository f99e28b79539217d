"""Training on one device, the simplest case: one process, under a minimal platform file."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.conftest import Project
from tests.slurm.cluster import ACCOUNT, Cluster
from tests.slurm.test_whole_run import OnSlurm

pytestmark = pytest.mark.slow

BARE = "name: loopback\n"
SRUN = "name: loopback\ndevices: 1\nlaunch: srun --cpus-per-task=1\n"
SECTION = "\nplatform: loopback\nslurm: {account: %s}\n"


def forget_training(project: Project) -> None:
    """Remove the last segment of the finished run, so that it is trained again."""
    shutil.rmtree(project.results / "models/base/milestones/8")
    (project.results / "provenance/records/pretrain.segment.base.8.json").unlink()


def check(project: Project) -> None:
    """Check that one process has trained the segment."""
    record = json.loads((project.results / "provenance/records/pretrain.segment.base.8.json").read_text())
    assert record["counts"]["world_size"] == 1 and record["counts"]["steps"] == 4 and record["launch"] == ""


def test_minimal_platform_trains_locally(project: Project) -> None:
    forget_training(project)
    project.path("workflow/platforms/loopback.yaml").write_text(BARE)
    file = project.path("config/micro.yaml")
    file.write_text(file.read_text() + "\nplatform: loopback\n")
    project.run("pretrain")
    check(project)


@pytest.mark.slurm
@pytest.mark.thorough  # tests/slurm/test_waiting_for_leftover_jobs.py runs jobs on a platform without partitions
def test_minimal_platform_trains_through_slurm(project: Project, cluster: Cluster) -> None:
    forget_training(project)
    on_slurm = OnSlurm(project.folder, cluster)
    on_slurm.describe(BARE, SECTION % ACCOUNT)
    on_slurm.run("pretrain")
    check(on_slurm)


@pytest.mark.slurm
def test_single_device_energy_policy_is_requested_from_slurm(project: Project, cluster: Cluster) -> None:
    project.edit("config/micro.yaml", "learning_rate: 0.003", "learning_rate: 0.003\n      energy_policy: slow")
    on_slurm = OnSlurm(project.folder, cluster)
    on_slurm.describe(SRUN + "energy_policies: {slow: --cpu-freq=Low}\n", SECTION % ACCOUNT)
    on_slurm.run("pretrain")
    check(on_slurm)
    record = json.loads((project.results / "provenance/records/pretrain.segment.base.8.json").read_text())
    assert record["settings"]["training"]["energy_policy"] == "slow"
    assert record["operation"]["energy_options"] == "--cpu-freq=Low"
    job = f"--jobs={record['slurm']['slurm_job_id']}"
    assert " --cpu-freq=Low" in cluster.ask("sacct", "--noheader", "--allocations", job, "--format=SubmitLine%2000")
