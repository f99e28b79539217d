"""The package declares its dependencies, has one version, and a release is complete."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from envs.release import bill_of_materials, changes, check_version, missing_addresses
from pipeline.cli.application import VERSION
from tests.conftest import new_project
from tests.test_unused import canonical

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHECKS = "# checks and tests"


def test_dependencies_equal_the_requirements_without_development_tools() -> None:
    text = (ROOT / "envs/requirements.in").read_text().partition(CHECKS)[0]
    names = (re.split(r"[=<>! ]", line.partition("#")[0].strip())[0] for line in text.splitlines())
    listed = {canonical(name) for name in names if name}
    assert {canonical(name) for name in PROJECT["dependencies"]} == listed | {"torch"}


def test_version_is_consistent() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    check_version(ROOT, VERSION)
    assert "version" not in PROJECT and "version" not in citation
    assert PROJECT["license"] == citation["license"] and citation["authors"] == [{"name": "The Polder developers"}]


def test_different_version_in_changelog_or_tag_is_refused(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.0\n")
    with pytest.raises(SystemExit, match=r"version is 2\.0, but CHANGELOG\.md begins with 1\.0"):
        check_version(tmp_path, "2.0")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 2.0\n\n- new\n\n## 1.0\n\n- old\n")
    assert changes((tmp_path / "CHANGELOG.md").read_text(), "2.0") == "- new\n"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "v3.0"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    with pytest.raises(SystemExit, match=r"version is 2\.0, but this commit has the tag v3\.0"):
        check_version(tmp_path, "2.0")
    subprocess.run([*git, "tag", "v2.0"], cwd=tmp_path, check=True)
    check_version(tmp_path, "2.0")


def test_release_without_public_addresses_is_pointed_out(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[project]\nname = "polder"\n')
    assert "no [project.urls]" in str(missing_addresses(tmp_path))
    file.write_text('[project]\nname = "polder"\n[project.urls]\nRepository = "https://example.org/polder"\n')
    assert missing_addresses(tmp_path) is None


def test_bill_of_materials_has_each_locked_package() -> None:
    lock = (ROOT / "envs/cpu.lock").read_text()
    content = bill_of_materials("1.0", lock)
    assert len(content["components"]) == len([line for line in lock.splitlines() if "==" in line])
    results = {one["name"]: one for one in content["components"]}
    assert results["typer"]["purl"] == f"pkg:pypi/typer@{results['typer']['version']}"
    assert results["numpy"]["licenses"][0]["expression"].startswith("BSD-3-Clause")


@pytest.mark.slow
def test_release_contains_all_package_files(tmp_path: Path) -> None:
    project = new_project(tmp_path / "polder")
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in"):
        project.path(name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(
        [sys.executable, ROOT / "envs/release.py"], cwd=project.folder, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    wheel, *_ = project.path("dist").glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("pipeline/")}
    present = {
        path.relative_to(project.folder).as_posix()
        for path in project.path("pipeline").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == present
    assert json.loads(next(project.path("dist").glob("*-cpu.cdx.json")).read_text())["bomFormat"] == "CycloneDX"


def test_hooks_and_templates_name_existing_commands() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["entry"].split()[0] for hook in hooks} == {
        f".venv/bin/{name}" for name in ("ruff", "mypy", "snakefmt")
    }
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yaml"):
        form = yaml.safe_load(path.read_text())
        assert form["name"] and form["description"] and all(part["type"] for part in form["body"])
