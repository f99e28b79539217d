"""Jobs run equally under any Slurm variables of a user's shell or an outer job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.slurm.executor import slurm_commands
from pipeline.slurm.executor.slurm_environment import clean_environment, list_ignored_options
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.executor.test_slurm_executor import REGISTERED, ROOT, start

# A job started by Slurm, two small ones that share an allocation, and one that calls srun itself.
JOBS = (
    REGISTERED
    + """
rule all:
    input: "1.done", "2.done", "alone.done", "mpi.done"

rule small:
    output: "{number}.done"
    wildcard_constraints: number="[0-9]"
    resources: runtime=5, mem_mb=100, slurm_partition="cpu", allocation_cpus=2, allocation_mem_mb=400
    shell: "echo $MINE$MASTER_ADDR $SLURM_JOB_PARTITION $SLURM_JOB_ACCOUNT > {output}"

rule alone:
    output: "alone.done"
    resources: runtime=5, mem_mb=100, slurm_partition="cpu"
    shell: "echo $MINE $SLURM_JOB_PARTITION $SLURM_JOB_ACCOUNT $SLURM_NTASKS > {output}"

rule mpi:
    output: "mpi.done"
    resources: runtime=5, mem_mb=100, slurm_partition="cpu", mpi="srun", nodes=2, tasks=2
    shell: "srun --nodes=2 --ntasks=2 bash -c 'echo $MINE $SLURM_PROCID $SLURM_NNODES' | sort > {output}"
"""
)
RESULTS = {"1": "kept cpu polder", "2": "kept cpu polder", "alone": "kept cpu polder 1", "mpi": "kept 0 2\nkept 1 2"}
# sbatch(1), srun(1) and squeue(1), INPUT ENVIRONMENT VARIABLES: each set to a value that would break or hide jobs.
ODD = {
    **{"SBATCH_ACCOUNT": "nobody", "SBATCH_ARRAY_INX": "1-3", "SBATCH_CONSTRAINT": "nowhere", "SBATCH_EXCLUSIVE": ""},
    **{"SBATCH_EXPORT": "NONE", "SBATCH_GRES": "gpu:9", "SBATCH_JOB_NAME": "mine", "SBATCH_MEM_PER_NODE": "900000"},
    **{"SBATCH_NO_REQUEUE": "", "SBATCH_OPEN_MODE": "truncate", "SBATCH_OUTPUT": "/nowhere/%j", "SBATCH_QOS": "none"},
    **{"SBATCH_PARTITION": "high", "SBATCH_RESERVATION": "none", "SBATCH_TIMELIMIT": "9-0", "SBATCH_WAIT": "1"},
    **{
        "SBATCH_REQ_SWITCH": "1",
        "SBATCH_GET_USER_ENV": "1",
        "SBATCH_THREADS_PER_CORE": "7",
        "SBATCH_USE_MIN_NODES": "1",
    },
    **{"SRUN_EXPORT_ENV": "NONE", "SLURM_EXPORT_ENV": "NONE", "SLURM_NTASKS": "5", "SLURM_NNODES": "9"},
    **{"SLURM_MEM_PER_CPU": "1", "SLURM_MEM_PER_GPU": "1", "SLURM_CPUS_PER_TASK": "7", "SLURM_DISTRIBUTION": "odd"},
    **{"SLURM_JOB_NAME": "outer", "SLURM_PARTITION": "none", "SLURM_CLUSTERS": "other", "SLURM_TIMELIMIT": "odd"},
    **{"SRUN_CPUS_PER_TASK": "9", "SLURM_STDOUTMODE": "none", "SLURM_WORKING_DIR": "/nowhere", "SLURM_QOS": "none"},
    **{"SQUEUE_STATES": "COMPLETED", "SQUEUE_FORMAT": "%N", "SQUEUE_USERS": "nobody", "SQUEUE_PARTITION": "none"},
    **{
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
        "SACCT_FORMAT": "JobID",
        "SCANCEL_STATE": "PENDING",
        "SINFO_FORMAT": "%a",
        "SCANCEL_INTERACTIVE": "true",
    },
}


def results(folder: Path) -> dict[str, str]:
    return {name: (folder / f"{name}.done").read_text().strip() for name in RESULTS}


@pytest.mark.slurm
def test_shell_variables_do_not_change_job_options(cluster: Cluster, tmp_path: Path) -> None:
    run, log = start(cluster, tmp_path, JOBS, MINE="kept", **ODD)
    wait_until(lambda: run.poll() is not None, "the run ends", 420)
    assert run.returncode == 0, log.read_text()
    assert results(tmp_path) == RESULTS
    ignored = ", ".join(sorted(name for name in ODD if name.startswith(("MASTER_", "SBATCH_", "SLURM_", "SRUN_"))))
    assert log.read_text().count(f"{ignored} of this shell: not used for jobs") == 1


@pytest.mark.slurm
def test_run_inside_a_batch_job_submits_its_own_jobs(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(JOBS)
    (tmp_path / "slurm").symlink_to(ROOT / "workflow/profiles/slurm")
    run = [sys.executable, "-m", "snakemake", "--profile", "slurm", "--seconds-between-status-checks=1"]
    options = ["--mem-per-cpu=1500", "--cpus-per-task=1", "--partition=cpu", f"--chdir={tmp_path}", "--output=log"]
    environment = {**cluster.environment(), "PYTHONPATH": str(ROOT), "MINE": "kept"}
    words = ["sbatch", "--parsable", *options, f"--wrap={' '.join(run)}"]
    outer = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    wait_until(lambda: cluster.state(outer) in ("COMPLETED", "FAILED", ""), "the outer job ends", 420)
    assert cluster.state(outer) == "COMPLETED", (tmp_path / "log").read_text()
    assert results(tmp_path) == RESULTS
    assert "not used for jobs" not in (tmp_path / "log").read_text(), "variables set by Slurm are not a user choice"


@pytest.mark.slurm
def test_sbatch_answer_is_tested_without_a_submission(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", cluster.environment()["PATH"])
    before = cluster.jobs()
    assert slurm_commands.ask_sbatch(["--partition=cpu", "--time=1"]).outcome == "taken"
    for option in ("--account=nobody", "--qos=none", "--constraint=nowhere", "--reservation=none", "--nodes=99"):
        answer = slurm_commands.ask_sbatch(["--partition=cpu", "--time=1", option])
        assert answer.outcome == "refused" and answer.said, option
    assert cluster.jobs() == before


def test_slurm_location_and_user_variables_are_kept() -> None:
    own = {"PATH": "/bin", "SLURM_CONF": "/etc/x", "SLURM_JWT": "token", "SLURMS": "3", "OMP_NUM_THREADS": "2"}
    assert clean_environment({**own, **ODD}) == own
    assert clean_environment() == clean_environment(os.environ)


def test_only_user_set_options_are_named_inside_a_job() -> None:
    inside = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SRUN_DEBUG": "3", "SBATCH_QOS": "long", "SLURM_CONF": "/x"}
    assert list_ignored_options(inside) == ["SBATCH_QOS"]
    del inside["SLURM_JOB_ID"]
    assert list_ignored_options(inside) == ["SBATCH_QOS", "SLURM_NTASKS", "SRUN_DEBUG"]
    assert list_ignored_options({"SLURM_CONF": "/x", "SQUEUE_STATES": "all"}) == []
