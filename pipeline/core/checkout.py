"""Which commit the code is, also in the checkout of a colleague and where git is missing."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

# One question; of the folder that the code runs from anyway git needs no proof that it is this user's.
STATUS = ("status", "--porcelain=v2", "--branch", "--untracked-files=no")


def _head(folder: Path) -> str | None:
    """Return the commit that a checkout's own files name, without git and without believing its configuration."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        if git.is_file():  # of a worktree
            git = place / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        if not git.is_dir():
            continue
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        reference, shared = head.removeprefix("ref: "), git / "commondir"
        common = git / shared.read_text(encoding="utf-8").strip() if shared.is_file() else git
        for base in (git, common):
            if (base / reference).is_file():
                return (base / reference).read_text(encoding="utf-8").strip()
        packed = (common / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {reference}")), None)
    return None


def checkout() -> dict[str, Any]:
    """Return the commit of the working directory, whether files differ from it, and `reason` where that is not known.

    Versions of git before 2.38 do not let a call name a colleague's checkout as safe, and an image may have no git: the
    commit is then read from the checkout's files, and nobody knows whether others differ.
    """
    folder = Path.cwd()
    words = ["git", "--no-optional-locks", "-c", f"safe.directory={folder}", "-c", "core.fsmonitor=false", *STATUS]
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=30)
        if answer.returncode == 0:
            header = [line.split(maxsplit=2) for line in answer.stdout.splitlines() if line.startswith("# ")]
            oid = next(words[2] for words in header if words[1] == "branch.oid")
            if oid == "(initial)":
                return {"commit": None, "dirty": None, "reason": "the repository has no commit yet"}
            return {"commit": oid, "dirty": not all(line.startswith("# ") for line in answer.stdout.splitlines())}
        reason = (answer.stderr.splitlines() or ["git says nothing"])[0]
    except FileNotFoundError:
        reason = "there is no git"
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"git does not answer ({type(error).__name__})"
    try:
        commit = _head(folder)
    except (OSError, UnicodeDecodeError) as error:
        commit, reason = None, f"{reason}; its files cannot be read ({type(error).__name__})"
    return {"commit": commit, "dirty": None, "reason": reason}
