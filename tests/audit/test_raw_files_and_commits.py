"""Evidence outside of a run is compared with it: raw files by bytes, code by the trees of the commits."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.audit.raw_files_and_commits import (
    check_recorded_code_versions,
    compare_files_and_commits,
    compare_raw_files,
)
from pipeline.cli.application import main
from pipeline.core.errors import InputError
from pipeline.core.job_records import FileEntry, Record
from pipeline.job import reach
from pipeline.job.versions import code_version
from tests.audit.test_commit_differences import commit, record, repository
from tests.conftest import ROOT, Project

__all__ = ["repository"]
STEP = "corpus.statistics"


def read(path: str, content: bytes, **changes: Any) -> Record:
    entry = FileEntry(name="files", path=path, sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    return replace(record(None), **{"file": "one.json", "inputs": (entry,), "instance": {"source": "s"}, **changes})


def test_raw_files_are_compared_in_the_project_and_under_the_given_folder(repository: Path) -> None:
    (repository / "corpus").mkdir()
    (repository / "corpus/a.txt").write_bytes(b"as it was read")
    (outside := repository / "elsewhere").mkdir()
    (outside / "b.txt").write_bytes(b"edited")
    records = [
        read("data:corpus/a.txt", b"as it was read"),
        read("data:b.txt", b"b"),
        read("tokens/x.arrow", b"no raw"),
    ]
    without = compare_raw_files(records, None)
    assert without.problems == [] and without.agreed == 1 and list(without.absent.values()) == [1]
    assert without.format_lines() == ["Raw files: 1 agree, 1 not found (name their folder with --raw FOLDER)."]
    (problem,) = compare_raw_files(records, outside).problems
    assert problem.startswith(f"{outside}/b.txt, a raw file, was changed since: its sha256 is")
    assert f"one.json read {hashlib.sha256(b'b').hexdigest()}" in problem


def test_non_raw_input_files_may_change(repository: Path) -> None:
    (repository / "rules.smk").write_text("a later commit")
    assert compare_raw_files([read("data:rules.smk", b"as it was", instance={})], None).format_lines() == []


def test_files_with_equal_names_in_two_folders_are_matched(repository: Path) -> None:
    for folder, content in (("x", b"first"), ("y", b"second")):
        (repository / folder).mkdir()
        (repository / folder / "part.txt").write_bytes(content)
    records = [read("data:part.txt", b"first"), read("data:part.txt", b"second")]
    assert [compare_raw_files(records, repository / name).problems for name in ("x", "y")] == [[], []]
    (repository / "x/part.txt").write_bytes(b"third")
    assert len(compare_raw_files(records, repository / "x").problems) == 1


def test_code_is_compared_with_the_tree_of_its_commit(repository: Path) -> None:
    shutil.copytree(reach.PACKAGE, repository / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    name = commit(repository, {})
    version = code_version(f"pipeline.{STEP}")
    honest = replace(record(name), step=STEP, code_version=version, file="one.json")
    assert check_recorded_code_versions([honest]).problems == [] and check_recorded_code_versions([honest]).agreed == 1
    other = replace(honest, code_version="0" * 16, file="two.json")
    assert check_recorded_code_versions([honest, other]).problems == [
        f"two.json says that {STEP} ran code {'0' * 16} of commit {name}, but its tree has {version}."
    ]
    edited = (repository / "pipeline/corpus/statistics.py").read_text().replace("def run(", "x = 1\n\n\ndef run(", 1)
    later = commit(
        repository, {"pipeline/corpus/statistics.py": edited.replace("    return ", "    x\n    return ", 1)}
    )
    assert len(check_recorded_code_versions([replace(honest, git={"commit": later, "dirty": False})]).problems) == 1


def test_incomparable_evidence_is_counted_but_proves_nothing(repository: Path) -> None:
    own = commit(repository, {"pipeline/__init__.py": ""})
    records = [record(own), record(own, dirty=True), record("f" * 40), record("--output=written")]
    compared = check_recorded_code_versions(records)
    assert compared.problems == [] and compared.agreed == 0 and sum(compared.absent.values()) == 4
    assert len(compared.absent) == 4 and not (repository / "written").exists()


def asked_for_code(folder: Path, commit: str, **environment: str) -> str:
    """Return the report on the code of a commit in a folder whose own code runs, if it has any."""
    question = (
        "from pipeline.audit.raw_files_and_commits import check_recorded_code_versions; "
        "from tests.audit.test_commit_differences import record; "
        f"print(check_recorded_code_versions([record({commit!r})]).format_lines()[0])"
    )
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, "-c", question], cwd=folder, env={**os.environ, **settings}, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_git_failure_is_not_reported_as_a_commit_mismatch(repository: Path, tmp_path_factory: Any) -> None:
    name = commit(repository, {"text": "no code"})
    assert f"not compared (commit {name} has no pipeline/ that git can read (" in asked_for_code(repository, name)
    gone = "f" * 40
    assert f"not compared (commit {gone} is not in this repository: fetch it" in asked_for_code(repository, gone)
    assert "there is no git on this machine" in asked_for_code(repository, name, PATH="/nowhere")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert f"({elsewhere} is no checkout of the repository" in asked_for_code(elsewhere, name)
    commit(repository, {"text": "a second commit"})
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{repository}", elsewhere / "shallow"], check=True)
    assert "is not in this shallow clone: `git fetch --unshallow`" in asked_for_code(elsewhere / "shallow", name)


def test_repository_of_another_user_is_reported_unless_its_code_is_running(repository: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a repository to another user")
    for part in ("pipeline", "tests"):
        shutil.copytree(ROOT / part, repository / part, ignore=shutil.ignore_patterns("__pycache__", "*.nb[ci]"))
    name = commit(repository, {})
    for path in (repository, *repository.rglob("*")):
        os.chown(path, 12001, 12001, follow_symlinks=False)
    assert "versions code otherwise or lacks the step" in asked_for_code(repository, name)
    shutil.rmtree(repository / "pipeline")
    message = asked_for_code(repository, name)
    assert f"of commit {name[:12]} not compared (git does not read the repository {repository}" in message
    assert f"git config --global --add safe.directory {repository}`" in message and "is not in this" not in message


@pytest.mark.slow
def test_verify_reports_a_raw_file_edited_after_the_run(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.folder)
    assert main(["verify", "results/micro"]) == 0 and "agree." in capsys.readouterr().out
    letter = next(iter(sorted(project.path("config/corpus/nl_brieven").iterdir())))
    letter.write_text("another text", encoding="utf-8")
    assert main(["verify", "results/micro"]) == 1
    assert f"config/corpus/nl_brieven/{letter.name}, a raw file, was changed since" in capsys.readouterr().out
    with pytest.raises(InputError, match="nowhere is no folder"):
        compare_files_and_commits(project.results, Path("nowhere"))
