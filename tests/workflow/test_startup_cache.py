"""What is kept of the steps' code is what it was worked out to be, and is worked out again when the code is another."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.workflow import startup_cache
from pipeline.workflow.startup_cache import VERSIONS_FILE
from pipeline.workflow.steps import STEPS
from tests.conftest import ROOT, rewrite

KEEP = """
import json, sys
from pipeline.job import reach, versions
from pipeline.workflow import startup_cache
from pipeline.workflow.steps import STEPS

if len(sys.argv) > 1:
    reach.Reach = None  # whoever follows a name now fails
startup_cache.cache_code_versions()
modules = [f"pipeline.{step}" for step in STEPS]
print(json.dumps({one: [versions.code_version(one), sorted(versions.imported(one))] for one in modules}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    shutil.copytree(ROOT / "pipeline", folder / "pipeline", ignore=shutil.ignore_patterns("*.pyc.*", "*.tmp.*"))
    return folder


def kept(folder: Path, *only: str, check: bool = True) -> dict[str, list[object]]:
    """Return what a process has at hand of each step; with `only` one that can work nothing out."""
    words = [sys.executable, "-c", KEEP, *only]
    done = subprocess.run(words, cwd=folder, check=check, text=True, capture_output=True)
    found: dict[str, list[object]] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


def test_what_is_kept_is_what_was_worked_out_until_a_byte_changes(copy: Path) -> None:
    worked_out = kept(copy)
    assert (copy / VERSIONS_FILE).is_file() and len(worked_out) > 30
    assert kept(copy, "only") == worked_out
    rewrite(copy / "pipeline/corpus/filter.py")
    assert kept(copy, "only", check=False) == {}, "no name was followed, though the code is another"
    edited = kept(copy)
    assert {one for one in edited if edited[one] != worked_out[one]} == {"pipeline.corpus.filter"}
    assert kept(copy, "only") == edited
    (copy / "pipeline/corpus/rules/words.txt").write_text("a new file\n")
    assert kept(copy, "only", check=False) == {}


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[object]]:
    """Return what is worked out from now on: of each step the same, which takes no time."""
    monkeypatch.setattr(startup_cache, "package_sha256", lambda: "a")
    monkeypatch.setattr(startup_cache.versions, "code_version", lambda _: "0")
    monkeypatch.setattr(startup_cache.versions, "imported", lambda _: {"torch", "numpy"})
    return {f"pipeline.{step}": ["0", ["numpy", "torch"]] for step in STEPS}


def test_a_link_to_nothing_among_the_code_stops_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package := tmp_path / "pipeline").mkdir()
    (package / ".#dag.py").symlink_to("somebody@somewhere.1234")
    monkeypatch.setattr(startup_cache, "PACKAGE", package)
    startup_cache.cache_code_versions(tmp_path / "kept.json")
    assert not (tmp_path / "kept.json").exists()


@pytest.mark.usefixtures("worked_out")
def test_nothing_is_kept_of_code_that_is_edited_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for hashes, is_kept in ((["a", "b"], False), (["b", "b"], True)):
        monkeypatch.setattr(startup_cache, "package_sha256", iter(hashes).__next__)
        startup_cache.cache_code_versions(tmp_path / "kept.json")
        assert (tmp_path / "kept.json").exists() == is_kept


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"package": 1}', '{"package": "a"}', '{"package": "a", "modules": 0}']
)
def test_a_file_that_says_nothing_is_written_again(
    worked_out: dict[str, list[object]], tmp_path: Path, content: str
) -> None:
    (file := tmp_path / "kept.json").write_text(content)
    startup_cache.cache_code_versions(file)
    assert json.loads(file.read_text()) == {"package": "a", "modules": worked_out}


@pytest.mark.usefixtures("worked_out")
def test_where_it_cannot_be_written_nothing_stops(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("no folder")
    startup_cache.cache_code_versions(tmp_path / "folder" / "kept.json")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
