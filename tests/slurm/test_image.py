"""A platform with an image: processes compute inside, where Slurm is absent, and Slurm is queried from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.platforms import Platform
from pipeline.pretrain.processes.device_and_process_group import find_first_node
from pipeline.slurm import accounting
from pipeline.slurm.job_software import describe_image
from tests.conftest import Project, new_project
from tests.other_release import CLIENTS
from tests.slurm import image
from tests.slurm.cluster import Cluster

LISTS = ["node1", "node[2-12]", "nid[005010-005012]", "a[1-2],b1", "cn-[001-002,13],a1", "n[1-2]-[3-4]"]


@pytest.fixture
def copy(tmp_path: Path) -> Project:
    """Return a copy of the project whose Python in images is this one, under the same path."""
    made = new_project(tmp_path / "polder")
    made.path(".venv-image").symlink_to(Path(sys.prefix).resolve())
    return made


def inside(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    folder = Path(environment["PATH"].split(":")[0]).parent
    command = ["apptainer", "exec", "--bind", str(Path.cwd()), str(folder / "torch.sif"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.slurm
def test_image_contains_nothing_of_slurm(slurm: Cluster, tmp_path: Path) -> None:
    environment = {**slurm.environment(), **image.make(tmp_path, [])}
    for name in (*CLIENTS, "munge"):
        assert inside(environment, "sh", "-c", f"command -v {name}").returncode == 127
    asked = "import subprocess; subprocess.run(['scontrol', 'ping'])"
    assert "No such file or directory: 'scontrol'" in inside(environment, sys.executable, "-c", asked).stderr
    gone = f"test ! -e {slurm.configuration} && test ! -e {slurm.folder}/run/munge.sock && test ! -e /etc/slurm"
    assert inside(environment, "sh", "-c", f"{gone} && echo $APPTAINER_NAME").stdout == "torch.sif\n"


@pytest.mark.slurm
@pytest.mark.parametrize("nodes", LISTS)
def test_node_lists_are_parsed_as_by_slurm(slurm: Cluster, nodes: str) -> None:
    expanded = slurm.ask("scontrol", "show", "hostnames", nodes).split()
    assert find_first_node(nodes) == expanded[0]
    assert sorted(accounting.list_hosts(nodes)) == sorted(expanded)


@pytest.mark.slow
def test_every_step_runs_in_the_image_and_records_it(project: Project, tmp_path: Path) -> None:
    environment = {**project.environment(), **image.make(tmp_path / "images", [], tmp_path)}
    project.path(".venv-image").symlink_to(Path(sys.prefix).resolve())
    written(project, {"container": f"{tmp_path}/images/torch.sif", "launch": "torchrun --nproc-per-node=2"})
    records = project.results / "provenance/records"
    path = records / "pretrain.segment.base.8.json"
    before = json.loads(path.read_text())
    assert before["container"] is None and before["counts"]["container"] is None
    path.unlink()
    command = project.command("pretrain", "plan", "--config", "platform=image")
    done = subprocess.run(command, cwd=project.folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    after = json.loads(path.read_text())
    assert after["container"] == after["counts"]["container"] == "torch.sif"
    assert weights(after) == weights(before) and after["environment_version"] == before["environment_version"]
    planned = json.loads((records / "plan.estimate.json").read_text())
    assert planned["container"] == "torch.sif"
    frozen = json.loads((project.results / planned["frozen"]["path"]).read_text())
    assert frozen["image"] == {"path": f"{tmp_path}/images/torch.sif", "sha256": None}, "a folder has no hash"


def weights(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in record["outputs"] if entry["path"].endswith(".safetensors")]


def written(project: Project, keys: dict[str, Any]) -> None:
    (project.path("workflow/platforms") / "image.yaml").write_text(yaml.safe_dump({"name": "image", **keys}))


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("other", "has Python 3.99, but .venv has Python 3.1"),
        (
            "bare",
            "lacks torch, pyarrow, datatrove, pydantic: make .venv-image in it, see docs/howto/use-a-container.md",
        ),
        ("none", "exec: python: not found): see docs/howto/use-a-container.md"),
    ],
)
def test_image_with_another_python_is_refused_at_startup(
    python: str, words: str, copy: Project, tmp_path: Path
) -> None:
    environment = {**copy.environment(), **image.make(tmp_path / "images", [], tmp_path)}
    copy.path(".venv-image").unlink()
    if python == "other":
        program = copy.path(".venv-image/bin/python")
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\necho 3.99\n")
        program.chmod(0o755)
    elif python == "bare":
        venv.create(copy.path(".venv-image"), symlinks=True)
    written(copy, {"container": f"{tmp_path}/images/torch.sif"})
    command = copy.command("plan", "--config", "platform=image")
    done = subprocess.run(command, cwd=copy.folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert not copy.attempts()


def test_python_of_the_image_runs_the_code_of_this_checkout(copy: Project, tmp_path: Path) -> None:
    environment = {**image.make(tmp_path / "images", []), "PIPELINE_IMAGE": f"{tmp_path}/images/torch.sif"}
    command = [copy.path("envs/container/python"), "-c", "import pipeline; print(pipeline.__file__)"]
    done = subprocess.run(command, cwd=copy.folder, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{copy.path('pipeline/__init__.py')}\n", done.stderr


def test_missing_apptainer_is_one_sentence(copy: Project, tmp_path: Path) -> None:
    (tmp_path / "torch.sif").touch()
    written(copy, {"container": f"{tmp_path}/torch.sif"})
    command = copy.command("plan", "--config", "platform=image")
    done = subprocess.run(command, cwd=copy.folder, env=copy.environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and not copy.attempts()
    assert "there is neither apptainer nor singularity here: load its module before snakemake starts" in done.stderr


def test_missing_image_is_refused_before_any_job_and_reported_by_a_dry_run(copy: Project, tmp_path: Path) -> None:
    written(copy, {"container": f"{tmp_path}/gone.sif"})
    sentence = f"there is no image {tmp_path}/gone.sif: write an existing one into workflow/platforms/image.yaml"
    for options, code in (((), 2), (("--dry-run",), 0)):
        command = copy.command("plan", *options, "--config", "platform=image")
        environment = copy.environment()
        done = subprocess.run(command, cwd=copy.folder, env=environment, capture_output=True, text=True, timeout=120)
        output = done.stdout + done.stderr  # a dry run prints all of it as its output
        assert done.returncode == code and sentence in output and "Traceback" not in output
        assert ("This would be refused" in output) is (code == 0)
    assert not copy.attempts()


def test_image_hash_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "torch.sif"
    path.write_bytes(b"an image")
    platform = Platform(name="image", container=str(path))
    first = describe_image(platform, None)
    sha256 = subprocess.run(["sha256sum", path], capture_output=True, text=True).stdout.split()[0]
    assert first["image"]["sha256"] == sha256 and first["image"]["bytes"] == 8
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.slurm.job_software.hash_file", lambda path: pytest.fail(f"{path} is hashed again"))
        assert describe_image(platform, first) == first
        path.write_bytes(b"another image")
        assert describe_image(platform, first, hashed=False)["image"]["sha256"] is None, "a dry run keeps it"
    assert describe_image(platform, first)["image"]["sha256"] not in (None, sha256)
    (tmp_path / "folder").mkdir()
    folder = Platform(name="image", container=str(tmp_path / "folder"))
    assert describe_image(folder, None) == {"image": {"path": folder.container, "sha256": None}}
    assert describe_image(Platform(name="local"), None) == {}
