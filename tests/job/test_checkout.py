"""The recorded commit: in a colleague's checkout and without git, and never missing without a reason."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pipeline.job.attempt import execution_context, read_git_state

NOBODY = 65534


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with a commit, as working directory; the configuration of this machine is ignored."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    folder = tmp_path / "polder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "file").write_text("as committed\n")
    git("init", "--quiet", "--initial-branch=main")
    git("add", "file")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message=first")
    return folder


def git(*words: str) -> str:
    """Return git's output."""
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()


def give_away(folder: Path) -> None:
    """Make a colleague the owner of a folder."""
    if os.getuid() != 0:
        pytest.skip("only root can give files to another user")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)


def test_clean_and_dirty_checkouts_are_recorded(repository: Path) -> None:
    commit = git("rev-parse", "HEAD")
    assert execution_context()["git"] == {"commit": commit, "dirty": False}
    (repository / "untracked").touch()
    assert not read_git_state()["dirty"]
    (repository / "file").write_text("changed\n")
    assert read_git_state() == {"commit": commit, "dirty": True}


def test_checkout_of_another_user_is_recorded(repository: Path) -> None:
    commit = git("rev-parse", "HEAD")
    give_away(repository)
    with pytest.raises(subprocess.CalledProcessError):
        git("rev-parse", "HEAD")
    assert read_git_state() == {"commit": commit, "dirty": False}


def test_untrusted_parent_repository_is_read_without_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = git("rev-parse", "HEAD")
    give_away(repository)
    (repository / "mine").mkdir()
    monkeypatch.chdir(repository / "mine")
    git_state = read_git_state()
    assert git_state["commit"] == commit and git_state["dirty"] is None and "dubious ownership" in git_state["reason"]


@pytest.mark.parametrize("kind", ["branch", "packed", "detached", "worktree", "worktree, packed"])
def test_commit_is_read_from_files_without_git(repository: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    commit = git("rev-parse", "HEAD")
    if kind.startswith("worktree"):
        git("worktree", "add", "--quiet", "../other")
        monkeypatch.chdir(repository.parent / "other")
    if kind == "detached":
        git("checkout", "--quiet", "--detach")
    if kind.endswith("packed"):
        git("pack-refs", "--all", "--prune")
    monkeypatch.setenv("PATH", "/nowhere")
    assert read_git_state() == {"commit": commit, "dirty": None, "reason": "there is no git"}


def test_unknown_commit_has_a_reason(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = execution_context()["git"]
    assert result["commit"] is None and result["dirty"] is None and "not a git repository" in result["reason"]
    assert str(tmp_path) not in result["reason"]
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    git("init", "--quiet")
    assert "no commit yet" in read_git_state()["reason"]
