"""The test cluster is a real one."""

import re

import pytest

from tests.slurm.cluster import OTHER_SLURM, Cluster, wait_until

pytestmark = pytest.mark.slurm


@pytest.mark.versions
def test_all_daemons_have_the_requested_slurm_version(cluster: Cluster) -> None:
    version = cluster.ask("sbatch", "--version")
    assert re.findall("SLURM_VERSION *= (.*)", cluster.ask("scontrol", "show", "config")) == [version.split()[-1]]
    (node,) = set(re.findall(r"Version=(\S+)", cluster.ask("scontrol", "show", "node")))
    assert node == version.split()[-1]
    client = (cluster.folder / "bin/sbatch").read_text()
    assert (f" {OTHER_SLURM}/bin/sbatch " in client) == bool(OTHER_SLURM)


@pytest.mark.versions
def test_cluster_runs_and_accounts_a_two_node_job(cluster: Cluster) -> None:
    words = ("sbatch", "--parsable", "--nodes=2", "--ntasks=2", "--output=/dev/null", "--wrap=srun sleep 0")
    job = cluster.ask(*words)
    wait_until(lambda: cluster.state(job) == "COMPLETED", "the job has ended")
    fields = ("sacct", "--noheader", "--parsable2", f"--jobs={job}", "--format=JobName,State,NNodes,Account")
    rows = ["wrap|COMPLETED|2|polder", "batch|COMPLETED|1|polder", "sleep|COMPLETED|2|polder"]
    wait_until(lambda: cluster.ask(*fields).splitlines() == rows, "sacct knows the job")


@pytest.mark.versions
def test_job_of_an_unknown_account_is_refused(cluster: Cluster) -> None:
    with pytest.raises(AssertionError, match="Invalid account"):
        cluster.ask("sbatch", "--account=nobody", "--wrap=true")


@pytest.mark.versions
def test_dead_node_returns_to_service(cluster: Cluster) -> None:
    cluster.end("node2", signal=9)
    cluster.start_node("node2")
    cluster.wait_for_nodes()
