"""The executor and Slurm's answers: a job runs once, its end is seen, a limit is not a failure."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from logging import getLogger
from pathlib import Path

import pytest
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from pipeline.config.sections import Slurm
from pipeline.core.errors import InputError
from pipeline.slurm import executor_registration
from pipeline.slurm.executor import slurm_executor, snakemake_private
from pipeline.slurm.executor.host_interface import ExecutorHost, JobEnd, SlurmError
from pipeline.slurm.executor.slurm_commands import WaitMonitor
from pipeline.slurm.executor.slurm_executor import SlurmExecutor
from pipeline.slurm.executor.snakemake_private import KNOWN_VERSIONS, check_versions
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.executor.test_slurm_commands import put_first_on_the_path

ROOT = Path(__file__).parents[3]
REGISTERED = """
from pathlib import Path
from pipeline.slurm import executor_registration
from pipeline.slurm.executor import slurm_executor
from pipeline.config.sections import Slurm

slurm_executor.SlurmExecutor.pause_seconds = 2.0
slurm_executor.SECONDS_BETWEEN_SACCT = 2.0
executor_registration.register_executor(Slurm(account="polder"), Path("results"), "")

onstart:
    executor_registration.record_slurm_invocation(workflow, Path("results"))
"""
# The local rule suspends or kills the controller, so sbatch gives up on the job after it.
FROZEN = (
    REGISTERED
    + """
localrules: freeze

rule job:
    input: "frozen"
    output: "done"
    resources: runtime=5, mem_mb=600, slurm_partition="cpu"
    # It ends after the executor has seen it in the queue, which forgets it then.
    shell: "echo >> tries; until grep -q 'rule_job has been submitted' log; do sleep 0.1; done; touch {output}"

rule freeze:
    output: "frozen"
    shell: "kill -$SIGNAL $CONTROLLER; touch {output}"
"""
)
# Six jobs of one core with a minimum bill of four cores; one fails at its first attempt, one refuses its input.
MANY = (
    REGISTERED
    + """
rule all:
    input: expand("{number}.done", number=range(6)), "refused.done"

rule small:
    output: "{number}.done"
    threads: 1
    resources: runtime=5, mem_mb=100, slurm_partition="cpu", allocation_cpus=4, allocation_mem_mb=400
    shell:
        "echo $SLURM_JOB_ID $SLURM_CPUS_PER_TASK $OMP_NUM_THREADS $SLURM_JOB_CPUS_PER_NODE >> {wildcards.number}.tries;"
        " until grep -q 'Slurm.s limits do not admit' log; do sleep 0.1; done;"
        " [ {wildcards.number} != 2 ] || [ $(wc -l < 2.tries) = 2 ] && touch {output}"

rule refused:
    output: "refused.done"
    resources: runtime=5, mem_mb=100, slurm_partition="cpu"
    shell: "echo >> refused.tries; exit 2"
"""
)
# Three jobs whose steps never start, one that prints why it fails, and one with the reason only in Slurm.
SILENT = (
    REGISTERED
    + """
rule all:
    input: "1.lost", "2.lost", "3.lost", "own.done", "other.done"

rule lost:
    output: "{number}.lost"
    log: "{number}.log"
    resources: runtime=5, mem_mb=100, slurm_partition="cpu"
    shell: "echo node {wildcards.number} has no such shell >&2; exit 1"

rule own:
    output: "own.done"
    log: "own.log"
    resources: runtime=5, mem_mb=100, slurm_partition="cpu"
    shell: "echo mine > {log}; echo noise >&2; exit 1"

rule other:
    output: "other.done"
    resources: runtime=5, mem_mb=100, slurm_partition="cpu"
    shell: "echo the disk is gone >&2; exit 1"
"""
)
# Jobs of which the first is already submitted, or none.
SLOW = (
    REGISTERED
    + """
rule all:
    input: expand("{number}.done", number=range(JOBS))

rule slow:
    output: "{number}.done"
    resources: runtime=5, mem_mb=100, slurm_partition="cpu"
    shell: "sleep 300; touch {output}"
"""
)
FORGETS = """#!/bin/sh
case "$*" in *--states=all*) exec {squeue} --noheader "--format=%A|%T|%r|%k";; *) exec {squeue} "$@";; esac
"""


def start(
    cluster: Cluster,
    folder: Path,
    workflow: str,
    latency_seconds: int = 5,
    options: tuple[str, ...] = (),
    **environment: str,
) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a workflow with the project's profile; return its process and its output."""
    (folder / "Snakefile").write_text(workflow)
    shutil.copytree(ROOT / "workflow/profiles/slurm", folder / "slurm")
    quick = ["--seconds-between-status-checks=1", f"--latency-wait={latency_seconds}"]
    log = folder / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "snakemake", "--profile", "slurm", *quick, *options],
            cwd=folder,
            env={**cluster.environment(), "PYTHONPATH": str(ROOT), **environment},
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    return process, log


@pytest.mark.slurm
@pytest.mark.parametrize(("number", "submissions"), [("STOP", 1), pytest.param("KILL", 2, marks=pytest.mark.slow)])
def test_job_with_a_lost_sbatch_answer_runs_once(
    number: str, submissions: int, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    squeue, calls = tmp_path / "bin/squeue", tmp_path / "calls"
    squeue.write_text(FORGETS.format(squeue=cluster.folder / "bin/squeue"))
    sbatch = tmp_path / "bin/sbatch"
    sbatch.write_text(f'#!/bin/sh\necho >> {calls}\nexec {cluster.folder}/bin/sbatch "$@"\n')
    for client in (squeue, sbatch):
        client.chmod(0o755)
    # It writes down its jobs when it ends. One that is killed before it has would give the last job's number again.
    cluster.end("slurmctld")
    cluster.start_controller()
    cluster.wait_for_nodes()
    controller = cluster.process("slurmctld")
    path = f"{squeue.parent}:{cluster.environment()['PATH']}"
    run, log = start(cluster, tmp_path, FROZEN, PATH=path, CONTROLLER=str(controller), SIGNAL=number)
    try:
        wait_until(lambda: "Slurm did not confirm the submission of rule_job" in log.read_text(), "sbatch fails", 120)
    finally:
        if number == "STOP":  # the request waits at its door
            os.kill(controller, signal.SIGCONT)
        else:
            cluster.start_controller()
    try:
        wait_until(lambda: run.poll() is not None, "the run ends", 420)
        attempts = (tmp_path / "tries").read_text().splitlines()
        assert run.returncode == 0 and (tmp_path / "done").exists() and len(attempts) == 1, log.read_text()
    except (AssertionError, TimeoutError, OSError) as error:
        raise AssertionError(log.read_text() + cluster.describe()) from error
    finally:
        run.kill()
    assert len(calls.read_text().splitlines()) == submissions


@pytest.fixture(scope="module")
def many(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of the six small jobs and the one that refuses its input."""
    folder = tmp_path_factory.mktemp("many")
    slurm.ask("sacctmgr", "--immediate", "modify", "user", "root", "set", "maxsubmitjobs=2")
    try:
        run, _ = start(slurm, folder, MANY)
        run.wait(600)
    finally:
        slurm.ask("sacctmgr", "--immediate", "modify", "user", "root", "set", "maxsubmitjobs=-1")
    return folder


def tries(folder: Path, name: str) -> list[list[str]]:
    """Return the output of each attempt of a job: allocation, cores of its step, threads, cores of its allocation."""
    return [line.split() for line in (folder / f"{name}.tries").read_text().splitlines()]


@pytest.mark.versions
@pytest.mark.slurm
@pytest.mark.slow
def test_small_jobs_share_the_smallest_billed_allocation(many: Path) -> None:
    first = [tries(many, str(number))[0] for number in range(6)]
    assert len({job for job, *_ in first}) == 2, (many / "log").read_text()
    assert all(shape == ["1", "1", "4"] for _, *shape in first)


@pytest.mark.versions
@pytest.mark.slurm
@pytest.mark.slow
def test_only_the_failed_job_of_an_allocation_is_retried(many: Path) -> None:
    assert [len(tries(many, str(number))) for number in range(6)] == [1, 1, 2, 1, 1, 1], (many / "log").read_text()
    assert all((many / f"{number}.done").exists() for number in range(6))


@pytest.mark.versions
@pytest.mark.slurm
@pytest.mark.slow
def test_job_that_refuses_its_input_is_not_retried(many: Path) -> None:
    log = (many / "log").read_text()
    assert len(tries(many, "refused")) == 1 and "The step refused its inputs, and is not retried" in log
    assert "Trying to restart job" in log, "another one was"


@pytest.mark.versions
@pytest.mark.slurm
@pytest.mark.slow
def test_submission_limit_is_awaited_and_reported_once(many: Path) -> None:
    log = (many / "log").read_text()
    assert log.count("Slurm's limits do not admit") == 1 and "AssocMaxSubmitJobLimit" in log


def submitted(folder: Path, *numbers: int, size: int = 1) -> list[SubmittedJobInfo]:
    """Return jobs with these Slurm numbers and the files of their allocations."""
    files = {number: {"path": folder / f"{number}.json", "size": size} for number in numbers}
    return [SubmittedJobInfo(None, external_jobid=str(number), aux=aux) for number, aux in files.items()]


def executor_of(folder: Path, accounted: dict[str, JobEnd] | None) -> SlurmExecutor:
    """Return an executor without threads with this accounting answer, or none."""

    def query_accounting(names: list[str], since: datetime) -> dict[str, JobEnd]:
        if accounted is None:
            raise SlurmError("there is no accounting")
        return accounted

    host = ExecutorHost(folder, "", 10, 60.0, "", "", query_accounting)
    executor = object.__new__(SlurmExecutor)
    executor.__dict__ |= {"name": "this-start", "host": host, "_began": datetime.now(UTC), "logger": getLogger()}
    executor.__dict__ |= {"_over": {}, "_forgotten": {}, "_warned": set(), "_asked_seconds": float("-inf")}
    executor._waiting = WaitMonitor(60.0, print)
    return executor


def test_job_being_signalled_or_suspended_has_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["1|SIGNALING|None|rule_a", "2|STOPPED|None|rule_b", "3|EXPEDITING|None|rule_c", "4|COMPLETED|None|rule_d"]
    put_first_on_the_path(tmp_path, monkeypatch, squeue="".join(f'[ "$1" = --all ] && echo "{row}"\n' for row in rows))
    executor = executor_of(
        tmp_path, {"1": JobEnd("COMPLETED", True, "finished"), "5": JobEnd("FAILED", True, "failed")}
    )
    ended = executor._ended_states(submitted(tmp_path, 1, 2, 3, 4, 5))
    assert ended == {"4": "COMPLETED", "5": "FAILED"}, "the accounting may show the end before a requeue"


@pytest.mark.parametrize(
    ("ends", "accounted", "state"),
    [
        ("0 0\n1 0\n", None, "COMPLETED"),
        ("0 0\n1 3\n", None, "FAILED"),
        ("0 0\n1 0\n", {}, "COMPLETED"),
        ("0 0\n", None, None),
        ("0 0\n", {"7": JobEnd("TIMEOUT", True, "time")}, "TIMEOUT"),
        ("0 0\n1 0\n", {"7": JobEnd("RUNNING", False, "failed")}, None),
    ],
)
def test_state_of_a_forgotten_job_comes_from_accounting_or_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, accounted: dict[str, JobEnd] | None, state: str | None
) -> None:
    put_first_on_the_path(tmp_path, monkeypatch, squeue="true")
    jobs, executor = submitted(tmp_path, 7, size=2), executor_of(tmp_path, accounted)
    (tmp_path / "7.ends").write_text(ends)
    assert executor._ended_states(jobs) == ({"7": state} if state else {})
    monkeypatch.setattr(slurm_executor, "FORGOTTEN_SECONDS", 0.0)
    executor._asked_seconds = float("-inf")
    is_known = accounted is not None and "7" in accounted
    assert executor._ended_states(jobs) == ({"7": state or "FAILED"} if state or not is_known else {})


@pytest.mark.slurm
def test_image_of_snakemake_itself_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    run, log = start(cluster, tmp_path, MANY, options=("--sdm", "apptainer"))
    assert run.wait(300) != 0 and "--sdm apptainer does not go with --profile slurm" in log.read_text()
    assert not cluster.jobs() and not [*tmp_path.glob("*.tries")]


@pytest.mark.parametrize("name", [*KNOWN_VERSIONS])
def test_unsupported_snakemake_version_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(of: str) -> str:
        return "99.0.1" if of == name else f"{KNOWN_VERSIONS[of]}.0"

    check_versions({of: f"{version}.7" for of, version in KNOWN_VERSIONS.items()}.__getitem__)
    monkeypatch.setattr(snakemake_private.check_versions, "__defaults__", (installed,))
    words = f"{name} is 99.0.1, but the executor for Slurm supports .*: install envs"
    with pytest.raises(InputError, match=words):
        executor_registration.register_executor(Slurm(), Path("results"), "")


@pytest.mark.versions
@pytest.mark.slurm
def test_slurm_reason_for_an_empty_log_is_shown_once_per_cause(cluster: Cluster, tmp_path: Path) -> None:
    run, log = start(cluster, tmp_path, SILENT, options=("--retries=1",))
    wait_until(lambda: run.poll() is not None, "the run ends", 420)
    text = log.read_text()
    shown = re.findall(r"Slurm's own log ends with: (.*)", text)
    assert sorted(re.sub(r"\d", "N", line) for line in shown) == ["node N has no such shell", "the disk is gone"], text
    assert len(re.findall(r"Slurm's job \d+ ended as FAILED, exit code 1", text)) == 10, "each of both tries"


@pytest.mark.versions
@pytest.mark.slurm
def test_jobs_with_qos_and_account_share_an_allocation(cluster: Cluster, tmp_path: Path) -> None:
    options = 'slurm_account="polder", qos="normal", slurm_extra="--exclude=node2"'
    packed = MANY.replace('slurm_partition="cpu", allocation', f'slurm_partition="cpu", {options}, allocation')
    run, _ = start(
        cluster, tmp_path, packed.replace("until grep -q 'Slurm.s limits do not admit' log; do sleep 0.1; done;", "")
    )
    wait_until(lambda: run.poll() is not None, "the run ends", 420)
    tries = [(tmp_path / f"{number}.tries").read_text().split() for number in range(6)]
    allocations = {first[0] for first in tries}
    assert len(allocations) == 2, "four jobs of one core, and the other two"
    rows = cluster.ask(
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        f"--jobs={','.join(allocations)}",
        "--format=QOS,Account,NodeList",
    )
    assert {*rows.splitlines()} == {"normal|polder|node1"}


@pytest.mark.versions
@pytest.mark.slurm
def test_step_fails_once_even_if_slurm_requeues_its_exit_code(cluster: Cluster, tmp_path: Path) -> None:
    workflow = SLOW.replace("JOBS", "1").replace("sleep 300", "echo >> tries; exit 77")
    run, log = start(cluster, tmp_path, workflow, options=("--retries=0",))
    assert run.wait(120) != 0 and "ended as FAILED, exit code 77" in log.read_text()
    assert len((tmp_path / "tries").read_text().splitlines()) == 1


@pytest.mark.slurm
def test_possibly_submitted_job_is_not_submitted_again(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / ".snakemake").mkdir()
    (tmp_path / ".snakemake/allocations").touch()  # an unexpected error
    run, log = start(cluster, tmp_path, SLOW.replace("JOBS", "1"))
    assert run.wait(120) != 0
    assert log.read_text().count("it could not be submitted: ") == 1 and "Trying to restart" not in log.read_text()


@pytest.mark.slurm
@pytest.mark.parametrize(("name", "sign"), [("50%j", "%"), ("a\\b", "\\")])
def test_folder_with_slurm_replacement_patterns_is_refused(
    cluster: Cluster, tmp_path: Path, name: str, sign: str
) -> None:
    (tmp_path / name).mkdir()
    run, log = start(cluster, tmp_path / name, SLOW.replace("JOBS", "1"))
    assert run.wait(120) != 0 and f"Slurm replaces {sign} in paths" in log.read_text()
