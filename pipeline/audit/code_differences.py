"""What of a step's code differs between two commits: the functions that it reaches, and the text of their files.

Nothing of either commit is run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from pipeline.audit.code_at_commit import Statements, Tree, commit_of, git
from pipeline.core.errors import InputError
from pipeline.core.records import Record

SHOWN_LINES = 60


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
        if not commit_of(a) or not commit_of(b):
            lines.append(f"{step}: a record names no commit, so what of the code differs is not known")
        elif commit_of(a) == commit_of(b):
            lines.append(f"{step}: both are of commit {commit_of(a)}, so the difference was never committed")
        else:
            by_commits.setdefault((commit_of(a), commit_of(b)), []).append(step)
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
    answer = git("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--unified=1", *commits, "--", *files)
    diff = answer.decode(errors="replace").splitlines()
    rest = [f"… and {len(diff) - SHOWN_LINES} lines more"] if len(diff) > SHOWN_LINES else []
    return [*lines, " ".join(shown), *(f"  {line}" for line in [*diff[:SHOWN_LINES], *rest])]
