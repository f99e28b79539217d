"""The package at a commit, and differences of a step's code between two commits.

The tree is extracted from the repository. A copy of `pipeline.job.reach` follows the names of a step, so it
sees only that tree. No code of a commit is run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.job_records import Record
from pipeline.job import reach, versions

FULL_COMMIT = 40

Statements = dict[str, str]
"""The statements that a step reaches, `pipeline/package/module.py: function`, each with a hash."""

SHOWN_LINES = 60


def run_git(*words: str) -> bytes:
    """Run git in the repository of the working directory and return its output.

    git refuses the repository of another user, whose settings may name programs. The repository of the running code is
    allowed: its code runs already.

    Raises:
        InputError: git is missing, refuses the repository, or does not know the commit.
    """
    folder = Path.cwd()
    trust = ["-c", f"safe.directory={folder}"] if Path(__file__).resolve().is_relative_to(folder) else []
    command = ["git", "--no-optional-locks", *trust, *words]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, env={**os.environ, "LC_ALL": "C"})
    except FileNotFoundError:
        raise InputError("there is no git on this machine: install it, or look from another one") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"git does not answer ({type(error).__name__}): try it in {folder}") from None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode(errors="replace")
    if "dubious ownership" in said:
        way_out = f"allow it with `git config --global --add safe.directory {folder}`"
        raise InputError(f"git does not read the repository {folder}, which belongs to another user: {way_out}")
    if "not a git repository" in said:
        raise InputError(f"{folder} is no checkout of the repository: start from one")
    raise InputError((said.splitlines() or ["git does not say why"])[-1])


def _archive_commit(commit: str) -> bytes:
    """Return the package as it was at a commit, as a tar file.

    Raises:
        InputError: git cannot read the repository, does not have the commit, or cannot pack its tree.
    """
    run_git("rev-parse", "--git-dir")
    try:
        run_git("cat-file", "-e", f"{commit}^{{commit}}")
    except InputError:
        is_shallow = run_git("rev-parse", "--is-shallow-repository").strip() == b"true"
        where = "this shallow clone: `git fetch --unshallow`" if is_shallow else "this repository: fetch it"
        raise InputError(f"commit {commit} is not in {where}, to see what of the code differs") from None
    try:
        return run_git("archive", "--format=tar", commit, "pipeline")
    except InputError as error:
        raise InputError(f"commit {commit} has no pipeline/ that git can read ({error})") from None


def recorded_commit(record: Record) -> str:
    """Return the commit of a record, or an empty text if it is no full hash, such as an option of git."""
    commit = str((record.git or {}).get("commit") or "")
    return commit if len(commit) == FULL_COMMIT and set(commit) <= set("0123456789abcdef") else ""


class CommitTree:
    """The package at a commit, extracted to a folder."""

    def __init__(self, commit: str, folder: Path) -> None:
        with tarfile.open(fileobj=BytesIO(_archive_commit(commit))) as archive:
            archive.extractall(folder, filter="data")
        module_file = folder / "pipeline" / "job" / "reach_of_today.py"
        module_file.parent.mkdir(exist_ok=True)
        module_file.write_bytes(Path(reach.__file__).read_bytes())
        name = f"reach_of_{commit}"
        specification = importlib.util.spec_from_file_location(name, module_file)
        if specification is None or specification.loader is None:
            raise InputError(f"{module_file} cannot be read")
        self.folder = folder
        self.reach: Any = importlib.util.module_from_spec(specification)
        sys.modules[name] = self.reach  # a dataclass looks for its module there
        try:
            specification.loader.exec_module(self.reach)
        finally:
            del sys.modules[name]

    def step_code_version(self, step: str) -> str | None:
        """Return the code version of a step in this tree; None if it lacks the step or versions code otherwise.

        Versions agree only if the modules that compute them are those of today, byte by byte.
        """
        module = f"pipeline.{step}"
        for today in (reach, versions):
            module_file = self.folder / "pipeline" / "job" / Path(str(today.__file__)).name
            if not module_file.is_file() or module_file.read_bytes() != Path(str(today.__file__)).read_bytes():
                return None
        return versions.version_by(self.reach, module) if self.reach.file_of(module) else None

    def reached_statements(self, step: str) -> Statements:
        """Return the statements that a step reaches in this tree; empty if it lacks the step."""
        module = f"pipeline.{step}"
        if self.reach.file_of(module) is None:
            return {}
        hashes: Statements = {}
        for file, statements in self.reach.reach(module).statements():
            name = file.relative_to(self.folder).as_posix()
            known = self.reach.module_of(file)
            for statement in statements:
                bound = [
                    word
                    for word, numbers in known.binding.items()
                    if statement in [known.statements[number] for number in numbers]
                ]
                key = f"{name}: {', '.join(sorted(bound)) or 'a statement'}"
                hashes[key] = hashlib.sha256(f"{hashes.get(key, '')}{statement.dumped}".encode()).hexdigest()
            for data in self.reach.data_files(file, statements):
                hashes[data.relative_to(self.folder).as_posix()] = hashlib.sha256(data.read_bytes()).hexdigest()
        return hashes


def _compare_statements(before: Statements, now: Statements) -> dict[str, str]:
    """Return the differing statements with `changed`, `added` or `removed`."""
    words = {}
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            words[key] = "changed" if key in before and key in now else "added" if key in now else "removed"
    return words


def explain_code_changes(steps: Mapping[str, tuple[Record, Record]]) -> list[str]:
    """Return the functions that differ between the code versions of steps, and their diff.

    Args:
        steps: the two records of a job of each step.
    """
    lines: list[str] = []
    by_commits: dict[tuple[str, str], list[str]] = {}
    for step, (a, b) in sorted(steps.items()):
        uncommitted = [name for name, record in (("first", a), ("second", b)) if (record.git or {}).get("dirty")]
        if uncommitted:
            lines.append(
                f"{step}: the {' and the '.join(uncommitted)} run had changes that were not committed, not shown"
            )
        if not recorded_commit(a) or not recorded_commit(b):
            lines.append(f"{step}: a record names no commit, so what of the code differs is not known")
        elif recorded_commit(a) == recorded_commit(b):
            lines.append(f"{step}: both are of commit {recorded_commit(a)}, so the difference was never committed")
        else:
            by_commits.setdefault((recorded_commit(a), recorded_commit(b)), []).append(step)
    for commits, names in by_commits.items():
        try:
            lines += _compare_commits(commits, names)
        except InputError as error:
            lines += [f"{step}: {error}" for step in names]
    return lines


def _compare_commits(commits: tuple[str, str], steps: list[str]) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="compare-") as name:
        trees = []
        for number, commit in enumerate(commits):
            (folder := Path(name) / str(number)).mkdir()
            trees.append(CommitTree(commit, folder))
        steps_by_difference: dict[str, list[str]] = {}
        for step in steps:
            differing = _compare_statements(*(tree.reached_statements(step) for tree in trees))
            for key, word in differing.items():
                steps_by_difference.setdefault(f"{key} {word}", []).append(step)
            if not differing:
                steps_by_difference.setdefault(
                    "nothing between these commits: it was not committed, or code was versioned otherwise", []
                ).append(step)
    lines = [
        f"{description}  [{', '.join(steps[:3])}{' and more' if len(steps) > 3 else ''}]"
        for description, steps in steps_by_difference.items()
    ]
    files = sorted(
        {
            description.split(":")[0].split(" ")[0]
            for description in steps_by_difference
            if description.startswith("pipeline/")
        }
    )
    if not files:
        return lines
    shown = ["git", "diff", *commits, "--", *files]
    answer = run_git("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--unified=1", *commits, "--", *files)
    diff = answer.decode(errors="replace").splitlines()
    rest = [f"… and {len(diff) - SHOWN_LINES} lines more"] if len(diff) > SHOWN_LINES else []
    return [*lines, " ".join(shown), *(f"  {line}" for line in [*diff[:SHOWN_LINES], *rest])]
