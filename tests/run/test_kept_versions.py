"""What is kept of the steps' code is what it was worked out to be, and is worked out again when the code is another."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.run import kept_versions
from pipeline.run.kept_versions import FILE
from tests.conftest import ROOT, rewrite

KEEP = """
import json, sys
from pipeline.job import reach, versions
from pipeline.run import kept_versions
from pipeline.run.steps import STEPS

if len(sys.argv) > 1:
    reach.Reach = None  # whoever follows a name now fails
kept_versions.keep()
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
    assert (copy / FILE).is_file() and len(worked_out) > 30
    assert kept(copy, "only") == worked_out
    rewrite(copy / "pipeline/corpus/filter.py")
    assert kept(copy, "only", check=False) == {}, "no name was followed, though the code is another"
    edited = kept(copy)
    assert {one for one in edited if edited[one] != worked_out[one]} == {"pipeline.corpus.filter"}
    assert kept(copy, "only") == edited
    (copy / "pipeline/corpus/rules/words.txt").write_text("a new file\n")
    assert kept(copy, "only", check=False) == {}


def test_a_link_to_nothing_among_the_code_stops_no_start(copy: Path) -> None:
    before, lock = kept(copy), copy / "pipeline/run/.#dag.py"
    lock.symlink_to("somebody@somewhere.1234")
    try:
        assert kept(copy) == before
    finally:
        lock.unlink()


def test_nothing_is_kept_of_code_that_is_edited_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_versions.versions, "code_version", lambda _: "0")
    monkeypatch.setattr(kept_versions.versions, "imported", lambda _: set())
    for hashes, is_kept in ((["a", "b"], False), (["b", "b"], True)):
        monkeypatch.setattr(kept_versions, "package_sha256", iter(hashes).__next__)
        kept_versions.keep(tmp_path / "kept.json")
        assert (tmp_path / "kept.json").exists() == is_kept


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"package": 1}'])
def test_a_file_that_says_nothing_is_written_again(copy: Path, content: str) -> None:
    before = kept(copy)
    (copy / FILE).write_text(content)
    assert kept(copy) == before and json.loads((copy / FILE).read_text())["modules"] == before


def test_where_it_cannot_be_written_all_is_worked_out(copy: Path, tmp_path: Path) -> None:
    before = kept(copy)
    shutil.rmtree(copy / FILE.parent)
    (copy / FILE.parent).write_text("no folder")
    assert kept(copy) == before
