"""Select the test files affected by a change from their imports: `pytest --changed` (`make test-changed`)."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from pipeline.job.reach import file_of

ROOT = Path(__file__).parents[1]
ALL = {
    Path("tests/conftest.py"),
    Path("tests/warm_python.py"),
    Path("tests/warm_client.py"),
    Path("tests/cpu_seconds.py"),
}  # all tests need them


def _names(tree: ast.AST, *, in_texts: bool) -> Iterator[str]:
    """Yield the modules, and the names in them, that code imports; in tests also those named in strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif in_texts and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\b(?:pipeline|tests)(?:\.\w+)+", node.value)
            if "import " in node.value:
                with suppress(SyntaxError, ValueError):
                    yield from _names(ast.parse(node.value), in_texts=True)


@cache
def imported(file: Path) -> frozenset[Path]:
    """Return the files of `pipeline` and `tests` that a file imports, in functions too; a test has its conftests."""
    tree, is_test = ast.parse(file.read_text(encoding="utf-8")), file.is_relative_to(ROOT / "tests")
    names = {*_names(tree, in_texts=is_test)}
    files = {file_of(name) or file_of(name.rpartition(".")[0]) for name in names}
    if file.name.startswith("test_"):
        files |= {folder / "conftest.py" for folder in file.parents if (folder / "conftest.py").exists()}
    return frozenset(path for path in files if path is not None)


def reached(file: Path) -> set[Path]:
    """Return a file and its direct and indirect imports; the imports of every test are not followed."""
    seen, waiting = {file}, [file]
    while waiting:
        here = waiting.pop()
        if here.relative_to(ROOT) not in ALL:
            new = imported(here) - seen
            seen |= new
            waiting += new
    return seen


def concerned(files: Iterable[Path], changed: Iterable[Path]) -> set[Path]:
    """Return the files that reach a changed one; for data and pages, those that mention one by its name."""
    changed = {*changed}
    others = {path.name for path in changed if path.suffix != ".py"}

    def is_concerned(file: Path) -> bool:
        return bool(reached(file) & changed) or any(name in file.read_text(encoding="utf-8") for name in others)

    return {file for file in files if is_concerned(file)}


@cache
def changed_tests() -> set[Path]:
    """Return the test files affected by the difference to the last commit, new files included."""
    words = (["diff", "--name-only", "HEAD"], ["ls-files", "--others", "--exclude-standard"])
    printed = (subprocess.run(["git", *some], cwd=ROOT, check=True, capture_output=True, text=True) for some in words)
    changed = {ROOT / line for done in printed for line in done.stdout.splitlines()}
    return concerned((ROOT / "tests").rglob("test_*.py"), changed)
