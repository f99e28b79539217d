"""`platform check` and refusals before any submission, on the real cluster."""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.cli.application import main
from pipeline.config import platforms
from pipeline.config.configuration import parse_configuration
from pipeline.core import platform_files
from pipeline.core.errors import InputError
from pipeline.slurm import job_software, platform_check, site_checks
from tests.conftest import Project, is_lacking, new_project
from tests.slurm.cluster import ACCOUNT, Cluster

pytestmark = pytest.mark.slurm

MICRO = yaml.safe_load(Path("config/micro.yaml").read_text())
SIZE = {"cpus": 8, "memory_megabytes": 16000, "minutes": 120}
LOOPBACK: dict[str, Any] = {
    "name": "loopback",
    "devices": 2,
    "launch": "torchrun --standalone --nproc-per-node=2",
    "partitions": {"cpu": {"name": "cpu", **SIZE}, "gpu": {"name": "gpu", **SIZE, "gpus": 2}},
}


@pytest.fixture
def here(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Let this process use the cluster."""
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    return cluster


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = new_project(tmp_path / "polder")
    written(made.path("workflow/platforms"), {"scratch": f"{tmp_path}/scratch/{{account}}", "node_disk": "$TMPDIR"})
    return made


def written(folder: Path, keys: dict[str, Any]) -> None:
    (folder / "loopback.yaml").write_text(yaml.safe_dump({**LOOPBACK, **keys}))


def changed(path: str, value: Any) -> dict[str, Any]:
    keys = copy.deepcopy(LOOPBACK)
    node: Any = keys
    *parents, last = path.split(".")
    for parent in parents:
        node = node[parent]
    node[last] = value
    return keys


@pytest.mark.versions
def test_platform_check_tests_slurm_one_node_and_two_nodes(cluster: Cluster, project: Project, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "platform", "check", "--platform=loopback", f"--account={ACCOUNT}"],
        cwd=project.folder,
        env={**cluster.environment(), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and all(line.startswith(("ok ", "unknown ")) for line in lines), (
        done.stdout + done.stderr
    )
    here = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    cpu, gpu = (re.findall(rf"node (node[12]) \({kind}\): Python", done.stdout)[0] for kind in ("cpu", "gpu"))
    for words in (
        "partition gpu (gpu): 2 nodes of 8 CPUs, 16000 MB, 2 GPUs",
        f"account {ACCOUNT}",
        f"scratch {tmp_path}/scratch/{ACCOUNT} can be written",
        f"ok      node {cpu} (cpu): {here}",
        f"ok      node {gpu} (gpu): {here}",
        f"node {gpu} (gpu): Slurm gives 2 GPUs",
        f"node {cpu} (cpu): the node's disk {tmp_path} can be written",
        f"node {gpu} (gpu): the node's disk {tmp_path} can be written",
        "node1 and node2 talk by gloo: ",
        f"unknown node {gpu} (gpu): whether torch sees the GPUs, since the platform's file names no device",
        "unknown limits of account and QOS",
    ):
        assert any(words in line for line in lines), done.stdout
    assert not cluster.jobs()


@pytest.mark.versions
def test_platform_described_from_slurm_passes_the_check(
    here: Cluster, project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.folder)
    assert main(["platform", "new", "asked", f"--account={ACCOUNT}"]) == 0
    monkeypatch.setattr(platform_files, "PLATFORMS", project.path("workflow/platforms"))
    platform = platforms.load_platform_settings("asked")
    ((kind, gpu),) = platform.partitions.items()  # all nodes here have GPUs; the partition high is for urgent jobs
    assert kind == "gpu" and gpu.name in ("cpu", "gpu")
    assert (gpu.cpus, gpu.memory_megabytes, gpu.minutes, gpu.gpus, platform.devices) == (8, 16000, 120, 2, 2)
    file = project.path("workflow/platforms/asked.yaml")
    text = file.read_text()
    (accounts,) = re.findall("Your accounts: (.*)", capfd.readouterr().out)
    assert f"{ACCOUNT} (QOS normal)" in accounts and f"account: {ACCOUNT}" not in text
    # The type of the cluster's GPUs is one of NVIDIA's, and the torch here is built for CPUs.
    assert platform.device == "cuda"
    file.write_text(re.sub("^device: cuda", "# device: cuda", text, flags=re.MULTILINE))
    code = main(["platform", "check", "--platform=asked", f"--account={ACCOUNT}"])
    out = capfd.readouterr().out
    assert code == 0 and "not ok" not in out, out


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (changed("partitions.cpu.name", "nowhere"), "there is no partition nowhere"),
        (changed("partitions.gpu.memory_megabytes", 64000), "gpu.memory_megabytes is 64000, but gpu has 16000: write"),
        (changed("partitions.cpu.minutes", 7200), "partitions.cpu.minutes is 7200, but cpu has 120"),
        (changed("scratch", "/dev/null/scratch"), "scratch /dev/null/scratch cannot be written (Not a directory)"),
        (changed("node_disk", "$NO_SUCH_FOLDER"), "needs the variable NO_SUCH_FOLDER, which is not set"),
        (changed("device", "cuda"), "torch (cpu) sees 0: 2 were asked for: install envs/cuda.lock"),
        (changed("ear", "--ear=on"), "srun has no option --ear, there is no command eacct"),
        (changed("energy_plugin", "rapl"), "Slurm reads energy by none, not by rapl"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_wrong_platform_setting_is_reported_with_a_remedy(here: Cluster, keys: dict[str, Any], words: str) -> None:
    platform = platforms.Platform.model_validate(keys)
    srun = platform_check._srun_words(platform.partitions["gpu"], platform.job_options("gpu", ACCOUNT), 60)
    results = [
        *site_checks.check_partitions(platform, 2),
        *site_checks.check_partition_sizes(platform),
        *site_checks.check_scratch(platform, None),
    ]
    results += platform_check.check_energy_meters(platform)
    if platform.node_disk or platform.device:
        results += platform_check.check_node(platform, "gpu", srun, load=False)
    bad = [finding for finding in results if finding.ok is False]
    assert len(bad) == 1 and words in str(bad[0]) and bad[0].way_out, results


def test_partition_without_python_is_reported(here: Cluster, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(platform_check, "_job_python", lambda platform: "/nowhere/python")
    platform = platforms.Platform.model_validate(LOOPBACK)
    srun = platform_check._srun_words(platform.partitions["cpu"], platform.job_options("cpu", ACCOUNT), 60)
    (finding,) = platform_check.check_node(platform, "cpu", srun, load=False)
    assert finding.ok is False and "a small job on one node (cpu) failed" in finding.what
    assert "--partition=cpu" in finding.way_out


def test_run_options_are_those_of_its_small_jobs(
    here: Cluster, project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.folder)
    monkeypatch.setattr(platform_files, "PLATFORMS", project.path("workflow/platforms"))
    monkeypatch.setenv("TMPDIR", str(project.folder))
    slurm = {"account": ACCOUNT, "partitions": {"gpu": {"constraint": "nowhere"}}}
    config = project.path("config/mine.yaml")
    config.write_text(yaml.safe_dump({**MICRO, "platform": "loopback", "slurm": slurm}))
    assert main(["platform", "check", "--nodes=1", f"--config={config}"]) == 1
    out = capfd.readouterr().out
    assert f"ok      account {ACCOUNT}" in out and f"scratch/{ACCOUNT} can be written" in out
    assert re.search(r"ok      node node\d \(cpu\): Python", out)
    (bad,) = [line for line in out.splitlines() if line.startswith("not ok")]
    assert "a small job on one node (gpu) failed" in bad and "Invalid feature specification" in bad
    assert f"--account={ACCOUNT} --constraint=nowhere" in bad


def test_unchecked_properties_are_listed(here: Cluster) -> None:
    wrong = platforms.Platform.model_validate(changed("partitions.cpu.name", "nowhere"))
    assert [f.what for f in platform_check.check_platform(wrong, ACCOUNT, 2, 60) if f.ok is None][-1].startswith(
        "Python, GPUs and disk"
    )
    alone = platforms.Platform.model_validate({**LOOPBACK, "partitions": {}})
    *_, one, two, last = platform_check.check_platform(alone, ACCOUNT, 1, 60)
    assert one.ok and "(default): Python" in one.what
    assert two.ok is None and two.what == "whether two nodes talk, since --nodes is 1" and last.ok is None


def test_unresponsive_nodes_are_reported(here: Cluster) -> None:
    platform = platforms.Platform.model_validate(changed("partitions.gpu.name", "cpu"))
    here.ask("sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 60")
    srun = platform_check._srun_words(platform.partitions["gpu"], platform.job_options("gpu", ACCOUNT), wait_seconds=1)
    finding = platform_check.check_network(platform, srun)
    assert not finding.ok and "two nodes do not talk" in finding.what


@pytest.mark.parametrize(
    ("sections", "keys", "words"),
    [
        ({"slurm": {"account": "nobody"}}, {}, f"there is no account nobody for this user: .* one of {ACCOUNT}"),
        ({"slurm": {"nodes": 3}, "models": {}}, {}, "slurm.nodes is 3, but a job of the partition gpu gets 2 nodes at"),
        ({"slurm": {"warning_seconds": 4000}}, {}, "warning_seconds is 4000, but a job of gpu has 120 minutes"),
        ({"slurm": {"nodes": 2}}, {}, "slurm.nodes is 2, but platform loopback starts trainings without srun"),
        ({}, changed("partitions.gpu.name", "nowhere"), "there is no partition nowhere .*workflow/platforms/loopback"),
        (
            {},
            changed("partitions.cpu.minutes", 7200),
            "partitions.cpu.minutes is 7200, but cpu has 120: write 120 into",
        ),
        ({}, {"scratch": "/proc/nowhere"}, "scratch /proc/nowhere cannot be written"),
        ({"run": {"name": "micro", "results": "/proc/r"}}, {}, "the folder of the results /proc/r/micro cannot be"),
        (
            {"run": {"name": "micro", "environment": "cuda"}},
            {"partitions": {"cpu": {"name": "cpu", **SIZE}}},
            "run.environment is cuda, but platform loopback has no partition with GPUs: choose another",
        ),
        (
            {"slurm": {"partitions": {"gpu": {"qos": "none"}}}},
            {},
            r"Slurm would refuse the jobs of gpu \(.*Invalid qos.*; sbatch .* --qos=none\): change .*partitions.gpu",
        ),
        ({"slurm": {"partitions": {"cpu": {"constraint": "nowhere"}}}}, {}, "refuse the jobs of cpu .*Invalid feature"),
        ({"slurm": {"partitions": {"cpu": {"options": ["--licenses=x"]}}}}, {}, "refuse the jobs of cpu .*licenses"),
        ({"slurm": {"partitions": {"gpu": {"account": "no@h100"}}}}, {}, "there is no account no@h100 for this user"),
        ({}, {"device": "rocm"}, "platform loopback has rocm devices, but run.environment is cpu: write run"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_invalid_run_is_refused_in_one_sentence(
    here: Cluster,
    sections: dict[str, Any],
    keys: dict[str, Any],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform_files, "PLATFORMS", tmp_path)
    shutil.copy("workflow/platforms/local.yaml", tmp_path)
    written(tmp_path, keys)
    base = {**copy.deepcopy(MICRO), "run": {"name": "micro", "results": str(tmp_path / "results")}}
    platform_check.check_run_requirements(
        parse_configuration({**base, "platform": "local"}), slurm=True, modules=False
    )  # Slurm's default partition
    with pytest.raises(InputError, match=words) as caught:
        platform_check.check_run_requirements(
            parse_configuration({**base, **sections, "platform": "loopback"}), slurm=True, modules=False
        )
    assert "\n" not in str(caught.value)


def test_snakemake_submits_nothing_for_a_refused_run(cluster: Cluster, project: Project) -> None:
    command = [sys.executable, "-m", "snakemake", "--profile", "slurm", "--configfile", "config/micro.yaml"]
    done = subprocess.run(
        [*command, "--config", "platform=loopback", "slurm={account: nobody}"],
        cwd=project.folder,
        env={**cluster.environment(), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and "there is no account nobody for this user: write slurm" in done.stderr
    assert not cluster.jobs() and not [*project.results.glob("provenance/attempts/*")]


def test_run_without_slurm_commands_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"there is no sbatch, srun, .* here: use a login node .* --profile local"):
        platform_check.check_run_requirements(parse_configuration(MICRO), slurm=True, modules=False)
    assert main(["platform", "check"]) == 1


# Environment modules


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of modules, in a login shell: with `module` exported, as on real sites."""
    start = Path("/usr/share/modules/init/bash")
    if not start.exists():
        is_lacking("Environment Modules is not installed here (.ci/run installs it)")
    shell = ["bash", "-c", f"source {start}; env -0"]
    output = subprocess.run(shell, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True).stdout
    for name, value in (entry.split("=", 1) for entry in output.split("\0") if entry):
        if "module" in name.lower():
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("BASH_ENV", raising=False)
    folder = tmp_path / "modulefiles"
    (folder / "tool").mkdir(parents=True)
    (folder / "tool" / "1.0").write_text("#%Module\nsetenv POLDER_TEST_TOOL loaded\n")
    monkeypatch.setenv("MODULEPATH", str(folder))
    return folder


def test_modules_are_loaded_in_a_shell_that_drops_functions(
    cluster: Cluster, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BASH_ENV", "")  # to be undone
    monkeypatch.delenv("BASH_ENV")
    job_software.export_module_function()
    assert job_software.check_modules(["tool/1.0"]).ok
    command = job_software.JobModules("tool/1.0").shellcmd("echo tool is $POLDER_TEST_TOOL")
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\nexec bash -c 'set -euo pipefail; {command}'\n")
    environment = {**cluster.environment(), "BASH_ENV": os.environ["BASH_ENV"]}
    words = ["sbatch", "--wait", f"--output={tmp_path}/out", "--chdir=/", str(tmp_path / "job.sh")]
    subprocess.run(words, env=environment, check=True, capture_output=True, timeout=60)
    assert "tool is loaded" in (tmp_path / "out").read_text()


def test_job_without_the_module_command_fails(tmp_path: Path) -> None:
    command = job_software.JobModules("tool/1.0").shellcmd("echo went on")
    shell = ["bash", "-c", f"set -euo pipefail; {command}"]
    done = subprocess.run(shell, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 1 and "went on" not in done.stdout


def test_unavailable_modules_are_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the modules tool/2.0 do not load (ERROR: Unable to locate" in job_software.check_modules(["tool/2.0"]).what
    for name in [name for name in os.environ if "MODULE" in name.upper()]:
        monkeypatch.delenv(name)
    job_software.export_module_function()
    with pytest.raises(InputError, match="there is no command module here, so --sdm env-modules would load nothing"):
        platform_check.check_run_requirements(parse_configuration(MICRO), slurm=False, modules=True)


def test_every_rule_loads_the_modules_of_the_platform(tree: Path, project: Project) -> None:
    written(project.path("workflow/platforms"), {"modules": ["tool/1.0"]})
    project.edit("config/micro.yaml", "run:", "platform: loopback\nrun:")
    project.warm = False  # a warm Python takes BASH_ENV, by which bash has the command module
    project.run("plan", "--sdm", "env-modules")
    record = project.results / "provenance" / "records" / "plan.estimate.json"
    assert '"tool/1.0"' in record.read_text()
