"""What of a step's code differs between two commits: the functions that it reaches, and the text of their files.

Nothing of either commit is run. Both trees are taken out of the repository, and the module that follows a step from
name to name is read once beside each, so that it sees that tree alone.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from pipeline.ground.errors import InputError
from pipeline.job import reach
from pipeline.provenance.records import Record

SHOWN_LINES = 60
FULL_COMMIT = 40

Statements = dict[str, str]
"""The statements that a step reaches, `pipeline/room/module.py: function`, each with a hash."""


def _git(*words: str) -> bytes | None:
    """What git answers; None where it refuses or is not there."""
    try:
        done = subprocess.run(["git", "--no-optional-locks", *words], capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _commit(record: Record) -> str:
    """The commit of a record, if it is one: what a record says is no option of git's."""
    commit = str((record.git or {}).get("commit") or "")
    return commit if len(commit) == FULL_COMMIT and set(commit) <= set("0123456789abcdef") else ""


class Tree:
    """The package as it was at a commit, below a folder."""

    def __init__(self, commit: str, folder: Path) -> None:
        answer = _git("archive", "--format=tar", commit, "pipeline")
        if answer is None:
            raise InputError(f"commit {commit} is not in this repository: fetch it, to see what of the code differs")
        with tarfile.open(fileobj=BytesIO(answer)) as archive:
            archive.extractall(folder, filter="data")
        beside = folder / "pipeline" / "job" / "reach_of_today.py"
        beside.parent.mkdir(exist_ok=True)
        beside.write_bytes(Path(reach.__file__).read_bytes())
        name = f"reach_of_{commit}"
        specification = importlib.util.spec_from_file_location(name, beside)
        if specification is None or specification.loader is None:
            raise InputError(f"{beside} cannot be read")
        self.folder = folder
        self.reach: Any = importlib.util.module_from_spec(specification)
        sys.modules[name] = self.reach  # a dataclass looks for its module there
        try:
            specification.loader.exec_module(self.reach)
        finally:
            del sys.modules[name]

    def statements(self, step: str) -> Statements:
        """What a step reaches in this tree; nothing where it has no such step."""
        module = f"pipeline.{step}"
        if self.reach.file_of(module) is None:
            return {}
        found: Statements = {}
        for file, statements in self.reach.reach(module).statements():
            name = file.relative_to(self.folder).as_posix()
            known = self.reach.module_of(file)
            for statement in statements:
                bound = [word for word, numbers in known.binding.items() if statement in _of(known, numbers)]
                key = f"{name}: {', '.join(sorted(bound)) or 'a statement'}"
                found[key] = _digest(f"{found.get(key, '')}{statement.dumped}")
            for data in self.reach.data_files(file, statements):
                found[data.relative_to(self.folder).as_posix()] = hashlib.sha256(data.read_bytes()).hexdigest()
        return found


def _of(module: Any, numbers: Iterable[int]) -> list[Any]:
    return [module.statements[number] for number in numbers]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _differing(before: Statements, now: Statements) -> dict[str, str]:
    """What differs, each with `changed`, `added` or `removed`."""
    words = {}
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            words[key] = "changed" if key in before and key in now else "added" if key in now else "removed"
    return words


def changed_code(steps: Mapping[str, tuple[Record, Record]]) -> list[str]:
    """Explain for steps whose code versions differ which functions do, and show the text of the difference.

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
        if not _commit(a) or not _commit(b):
            lines.append(f"{step}: a record names no commit, so what of the code differs is not known")
        elif _commit(a) == _commit(b):
            lines.append(f"{step}: both are of commit {_commit(a)}, so the difference was never committed")
        else:
            by_commits.setdefault((_commit(a), _commit(b)), []).append(step)
    for commits, names in by_commits.items():
        try:
            lines += _between(commits, names)
        except InputError as error:
            lines += [f"{step}: {error}" for step in names]
    return lines


def _between(commits: tuple[str, str], steps: list[str]) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="compare-") as name:
        trees = []
        for number, commit in enumerate(commits):
            (folder := Path(name) / str(number)).mkdir()
            trees.append(Tree(commit, folder))
        found: dict[str, list[str]] = {}
        for step in steps:
            differing = _differing(*(tree.statements(step) for tree in trees))
            for key, word in differing.items():
                found.setdefault(f"{key} {word}", []).append(step)
            if not differing:
                found.setdefault(
                    "nothing between these commits: it was not committed, or versions were reckoned otherwise", []
                ).append(step)
    lines = [
        f"{told}  [{', '.join(steps[:3])}{' and more' if len(steps) > 3 else ''}]" for told, steps in found.items()
    ]
    files = sorted({told.split(":")[0].split(" ")[0] for told in found if told.startswith("pipeline/")})
    if not files:
        return lines
    shown = ["git", "diff", *commits, "--", *files]
    text = (
        _git("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--unified=1", *commits, "--", *files) or b""
    ).decode(errors="replace")
    diff = text.splitlines()
    rest = [f"… and {len(diff) - SHOWN_LINES} lines more"] if len(diff) > SHOWN_LINES else []
    return [*lines, " ".join(shown), *(f"  {line}" for line in [*diff[:SHOWN_LINES], *rest])]
