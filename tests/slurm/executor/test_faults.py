"""A cluster fault affects at most the job that it hits, and never the run."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.slurm.executor import slurm_commands
from pipeline.slurm.executor.slurm_commands import QueuedJob, WaitMonitor
from tests.conftest import is_lacking
from tests.pretrain.conftest import settings, tokens  # noqa: F401
from tests.pretrain.processes import chaos
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.submitted import ROOT
from tests.slurm.training import SlurmTraining

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

# Each rule counts its attempts; the first attempt of most of them fails.
WORKFLOW = """
from pathlib import Path
from pipeline.slurm import executor_registration
from pipeline.slurm.executor import job_requests
from pipeline.config.sections import Slurm

ONCE = "once() { echo >> $1.tries; [ $(wc -l < $1.tries) != 1 ]; }; "
executor_registration.register_executor(Slurm(account="polder"), Path("results/storm"), ONCE)

onstart:
    executor_registration.record_slurm_invocation(workflow, Path("results/storm"))

FAULTS = ["over_time", "over_memory", "cancelled", "node_down", "patient"]

rule all:
    input: [f"{fault}.done" for fault in FAULTS]

rule over_time:
    output: "over_time.done"
    resources:
        runtime=lambda w, attempt: int(job_requests.compute_request_growth("over_time", [], attempt).time),
        mem_mb=600,
        slurm_extra="--requeue --exclude=node2",
    shell: "once over_time || sleep 200; touch {output}"

rule over_memory:
    output: "over_memory.done"
    resources:
        runtime=9,
        mem_mb=lambda w, attempt: int(600 * job_requests.compute_request_growth("over_memory", [], attempt).memory),
        slurm_extra="--requeue --exclude=node2",
    shell: "once over_memory || :; python -c 'import time; x = bytes([1]) * 7 * 10**8; time.sleep(20)'; touch {output}"

rule cancelled:
    output: "cancelled.done"
    resources: runtime=9, mem_mb=600, slurm_extra="--requeue --exclude=node2"
    shell: "once cancelled || sleep 200; touch {output}"

rule node_down:
    output: "node_down.done"
    resources: runtime=9, mem_mb=600, slurm_extra="--requeue --exclude=node1"
    shell: "once node_down || sleep 200; touch {output}"

rule patient:
    output: "patient.done"
    resources: runtime=9, mem_mb=600, slurm_extra="--requeue --exclude=node2"
    shell: "once patient || sleep 45; touch {output}"
"""


class Storm:
    """A run of that workflow with the project's own profile, while the cluster fails and recovers."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.folder = folder
        (folder / "Snakefile").write_text(WORKFLOW)
        shutil.copytree(ROOT / "workflow/profiles/slurm", folder / "slurm")
        options = ["--seconds-between-status-checks", "3", "--latency-wait", "5"]
        words = [sys.executable, "-m", "snakemake", "--profile", "slurm", *options]
        environment = {**cluster.environment(), "PYTHONPATH": str(ROOT)}
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            wait_until(lambda: len(list(folder.glob("*.tries"))) == 5, "all jobs run", seconds=120)
            self._happen(cluster)
            self.code = process.wait(600)
        finally:
            if process.poll() is None:
                process.kill()
        self.log = (folder / "log").read_text()

    def _happen(self, cluster: Cluster) -> None:
        rows = (line.split() for line in cluster.ask("squeue", "--noheader", "--format=%k %A").splitlines())
        jobs = {rule.removeprefix("rule_"): job for rule, job in rows}
        cluster.ask("scancel", jobs["cancelled"])
        cluster.fail_node("node2")
        wait_until(lambda: cluster.state(jobs["node_down"]) == "PENDING", "the job waits again")
        cluster.start_node("node2")
        cluster.ask("scontrol", "update", "nodename=node2", "state=resume", check=False)  # it may be back
        cluster.end("slurmdbd")
        cluster.end("slurmctld")
        time.sleep(15)
        cluster.start_controller()
        time.sleep(10)
        cluster.start_database()

    def tries(self, rule: str) -> int:
        """Return how often a rule was started."""
        return len((self.folder / f"{rule}.tries").read_text().splitlines())

    def submissions(self, rule: str) -> int:
        """Return how often Snakemake submitted a job of a rule."""
        return sum(f"/rule_{rule}/" in line and "has been submitted" in line for line in self.log.splitlines())


@pytest.fixture(scope="module")
def storm(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Storm:
    return Storm(slurm, tmp_path_factory.mktemp("storm"))


@pytest.mark.thorough
def test_run_completes(storm: Storm) -> None:
    assert storm.code == 0, storm.log
    assert len(list(storm.folder.glob("*.done"))) == 5


@pytest.mark.thorough
@pytest.mark.parametrize(("rule", "state"), [("over_time", "TIMEOUT"), ("over_memory", ""), ("cancelled", "CANCELLED")])
def test_failed_job_is_retried_with_more_resources(storm: Storm, rule: str, state: str) -> None:
    assert (storm.tries(rule), storm.submissions(rule)) == (2, 2)
    assert state in storm.log


@pytest.mark.thorough
def test_job_on_a_dead_node_is_requeued_and_has_not_failed(storm: Storm) -> None:
    assert (storm.tries("node_down"), storm.submissions("node_down")) == (2, 1)


@pytest.mark.thorough
def test_jobs_continue_while_controller_and_database_are_down(storm: Storm) -> None:
    assert (storm.tries("patient"), storm.submissions("patient")) == (1, 1)


def held_jobs(cluster: Cluster, name: str, number: int) -> list[str]:
    words = (f"--job-name={name}", "--comment=rule_patient", "--output=/dev/null", "--wrap=true")
    return [cluster.ask("sbatch", "--parsable", "--hold", *words) for _ in range(number)]


def test_blocked_jobs_are_reported_immediately_and_together(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = held_jobs(cluster, "never", 1)
    monkeypatch.setenv("PATH", cluster.environment()["PATH"])
    messages: list[str] = []
    waiting = WaitMonitor(0.0, messages.append)
    waiting.warn_of_waiting_jobs(slurm_commands.query_jobs(["never"]) or {})
    assert messages == [f"job {first} (rule_patient) waits for its start: held: scontrol release {first} (JobHeldUser)"]
    more = held_jobs(cluster, "never", 5)
    together = WaitMonitor(60.0, messages.append)
    for _ in range(2):
        together.warn_of_waiting_jobs(slurm_commands.query_jobs(["never"]) or {})
    numbers = [first, *more]
    assert messages[1:] == [
        f"6 jobs wait for their start ({', '.join(numbers[:4])} and 2 more): held: scontrol release "
        f"{','.join(numbers)} (JobHeldUser)"
    ]


def queue_of(reasons: list[str]) -> dict[str, QueuedJob]:
    return {str(number): QueuedJob("PENDING", reason, f"rule_{number}") for number, reason in enumerate(reasons, 1)}


def test_queued_jobs_are_reported_once_after_a_long_wait() -> None:
    messages: list[str] = []
    waiting = WaitMonitor(60.0, messages.append)
    waiting.warn_of_waiting_jobs(queue_of(["Priority", "Resources", "None"]))
    assert messages == [], "they have only begun to wait"
    waiting.seconds = 0.0
    for _ in range(2):
        waiting.warn_of_waiting_jobs(queue_of(["Priority", "Resources", "Resources"]))
    first, second = messages
    assert first.startswith(
        "job 1 (rule_1) waits for its start, 0 minutes now: other jobs come first (Priority); wait,"
    )
    assert second.startswith("2 jobs wait for their start (2, 3), 0 minutes now: other jobs have the nodes (Resources)")
    waiting.warn_of_waiting_jobs({"1": QueuedJob("RUNNING", "None", "rule_1")})
    waiting.warn_of_waiting_jobs(queue_of(["Priority"]))
    assert messages[2:] == [first], "it is queued again"


def test_pending_reason_is_reported_once_for_all_nodes() -> None:
    messages: list[str] = []
    waiting = WaitMonitor(60.0, messages.append)
    waiting.warn_of_waiting_jobs(queue_of(["ReqNodeNotAvail, UnavailableNodes:node2", "PartitionDown"]))
    waiting.warn_of_waiting_jobs(
        queue_of(["ReqNodeNotAvail, UnavailableNodes:node[2-3]", "PartitionDown", "PartitionDown"])
    )
    why = "nodes that are needed are down or reserved (ReqNodeNotAvail, UnavailableNodes:node2)"
    assert messages == [
        f"job 1 (rule_1) waits for its start: {why}",
        "job 2 (rule_2) waits for its start: the partition is down (PartitionDown)",
    ]


def test_full_scratch_loses_checkpoints_but_not_the_training(
    cluster: Cluster,
    tokens: dict[str, Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        is_lacking("only root can mount a small file system")
    disk = tmp_path / "run/scratch"
    mount = f'mkdir -p {disk} && mount -t tmpfs -o size=17400k none {disk} && exec "$@"'
    small = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    training = SlurmTraining(
        cluster, chaos.small(30, "full_shard", 600), tokens, tmp_path / "run", 1, 1, before=shlex.join(small)
    )
    training.finish()
    counts = json.loads((tmp_path / "run/counts").read_text())
    assert counts["steps"] == 30 and counts["failed_checkpoints"] > 0
    assert "free space there; earlier checkpoints are intact; the training continues without it" in training.said()
