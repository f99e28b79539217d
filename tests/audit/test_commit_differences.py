"""Code differences between two commits are shown by the functions that the step reaches, and as text."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.audit.commit_differences import explain_code_changes
from pipeline.core.job_records import Record
from tests.record_content import record_content

STEP = "from pipeline.room.other import used, unused\ndef run():\n    return used()\n"
OTHER = "def used():\n    return 1\ndef unused():\n    return 2\n"


def commit(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    who = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, "commit", "-qm", "x"], cwd=folder, check=True)
    answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    return answer.stdout.strip()


def record(commit: Any, dirty: bool = False) -> Record:
    return Record.parse(json.dumps(record_content("room.step", git={"commit": commit, "dirty": dirty})))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    return tmp_path


def test_commit_difference_lists_changed_functions_and_their_source(repository: Path) -> None:
    names = {"pipeline/__init__.py": "", "pipeline/room/__init__.py": "", "pipeline/room/step.py": STEP}
    a = commit(repository, {**names, "pipeline/room/other.py": OTHER})
    b = commit(repository, {"pipeline/room/other.py": OTHER.replace("2", "3")})
    c = commit(repository, {"pipeline/room/other.py": OTHER.replace("1", "7"), "pipeline/room/apart.py": "x = 1\n"})
    assert explain_code_changes({"room.step": (record(a), record(b))}) == [
        "nothing between these commits: it was not committed, or code was versioned otherwise  [room.step]"
    ]
    lines = explain_code_changes({"room.step": (record(a), record(c))})
    assert lines[0] == "pipeline/room/other.py: used changed  [room.step]"
    assert lines[1] == f"git diff {a} {c} -- pipeline/room/other.py"
    assert "  -    return 1" in lines and "  +    return 7" in lines
    assert not any("apart" in line for line in lines)


def test_unavailable_code_differences_are_explained(repository: Path) -> None:
    a = commit(repository, {"pipeline/__init__.py": ""})
    assert explain_code_changes({"s.t": (record(a), record(a, dirty=True))}) == [
        "s.t: the second run had changes that were not committed, not shown",
        f"s.t: both are of commit {a}, so the difference was never committed",
    ]
    gone = "f" * 40
    assert explain_code_changes({"s.t": (record(a), record(gone))}) == [
        f"s.t: commit {gone} is not in this repository: fetch it, to see what of the code differs"
    ]
    b = commit(repository, {"pipeline/other.py": "x = 1\n"})
    tree = subprocess.run(["git", "rev-parse", f"{b}:pipeline"], capture_output=True, text=True).stdout.strip()
    (repository / ".git/objects" / tree[:2] / tree[2:]).unlink()
    (line,) = explain_code_changes({"s.t": (record(a), record(b))})
    assert line.startswith(f"s.t: commit {b} has no pipeline/ that git can read (")
    for hostile in ("--output=written", None, "HEAD"):
        (line,) = explain_code_changes({"s.t": (record(hostile), record(a))})
        assert line == "s.t: a record names no commit, so what of the code differs is not known"
    assert not (repository / "written").exists()
