"""Cached code versions equal computed ones, and are recomputed when the code changes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.workflow import cache_between_invocations
from pipeline.workflow.cache_between_invocations import VERSIONS_FILE
from pipeline.workflow.steps import STEPS
from tests.conftest import ROOT, rewrite

KEEP = """
import json, sys
from pipeline.job import reach, versions
from pipeline.workflow import cache_between_invocations
from pipeline.workflow.steps import STEPS

if len(sys.argv) > 1:
    reach.Reach = None  # whoever follows a name now fails
cache_between_invocations.cache_code_versions()
modules = [f"pipeline.{step}" for step in STEPS]
print(json.dumps({one: [versions.code_version(one), sorted(versions.imported(one))] for one in modules}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    shutil.copytree(ROOT / "pipeline", folder / "pipeline", ignore=shutil.ignore_patterns("*.pyc.*", "*.tmp.*"))
    return folder


def kept(folder: Path, *only: str, check: bool = True) -> dict[str, list[object]]:
    """Return the cached versions of each step; with `only` in a process that cannot compute any."""
    words = [sys.executable, "-c", KEEP, *only]
    done = subprocess.run(words, cwd=folder, check=check, text=True, capture_output=True)
    result: dict[str, list[object]] = json.loads(done.stdout) if done.returncode == 0 else {}
    return result


def test_cached_versions_equal_computed_ones_until_a_byte_changes(copy: Path) -> None:
    worked_out = kept(copy)
    assert (copy / VERSIONS_FILE).is_file() and len(worked_out) > 30
    assert kept(copy, "only") == worked_out
    rewrite(copy / "pipeline/corpus/filter.py")
    assert kept(copy, "only", check=False) == {}, "the code changed, but no name was followed"
    edited = kept(copy)
    assert {one for one in edited if edited[one] != worked_out[one]} == {"pipeline.corpus.filter"}
    assert kept(copy, "only") == edited
    (copy / "pipeline/corpus/rules/words.txt").write_text("a new file\n")
    assert kept(copy, "only", check=False) == {}


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[object]]:
    """Return the versions computed from now on: the same for each step, without computation."""
    monkeypatch.setattr(cache_between_invocations, "package_sha256", lambda: "a")
    monkeypatch.setattr(cache_between_invocations.versions, "code_version", lambda _: "0")
    monkeypatch.setattr(cache_between_invocations.versions, "imported", lambda _: {"torch", "numpy"})
    return {f"pipeline.{step}": ["0", ["numpy", "torch"]] for step in STEPS}


def test_dangling_link_in_the_code_is_tolerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package := tmp_path / "pipeline").mkdir()
    (package / ".#dag.py").symlink_to("somebody@somewhere.1234")
    monkeypatch.setattr(cache_between_invocations, "PACKAGE", package)
    cache_between_invocations.cache_code_versions(tmp_path / "kept.json")
    assert not (tmp_path / "kept.json").exists()


@pytest.mark.usefixtures("worked_out")
def test_result_is_not_cached_if_the_code_changed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for hashes, is_kept in ((["a", "b"], False), (["b", "b"], True)):
        monkeypatch.setattr(cache_between_invocations, "package_sha256", iter(hashes).__next__)
        cache_between_invocations.cache_code_versions(tmp_path / "kept.json")
        assert (tmp_path / "kept.json").exists() == is_kept


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"package": 1}', '{"package": "a"}', '{"package": "a", "modules": 0}']
)
def test_invalid_cache_file_is_rewritten(worked_out: dict[str, list[object]], tmp_path: Path, content: str) -> None:
    (file := tmp_path / "kept.json").write_text(content)
    cache_between_invocations.cache_code_versions(file)
    assert json.loads(file.read_text()) == {"package": "a", "modules": worked_out}


@pytest.mark.usefixtures("worked_out")
def test_unwritable_cache_is_tolerated(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("no folder")
    cache_between_invocations.cache_code_versions(tmp_path / "folder" / "kept.json")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
