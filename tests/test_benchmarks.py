"""A benchmark may take from the tests what both need; a test takes nothing from a benchmark."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def of_benchmarks(tree: ast.AST) -> list[int]:
    """Return the lines that import something of the benchmarks."""
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found += [node.lineno for name in names if name.split(".")[0] == "benchmarks"]  # type: ignore[attr-defined]
    return found


def test_no_test_imports_a_benchmark() -> None:
    files = sorted(TESTS.rglob("*.py"))
    assert len(files) > 100
    assert {
        file: lines for file in files if (lines := of_benchmarks(ast.parse(file.read_text(encoding="utf-8"))))
    } == {}


@pytest.mark.parametrize(
    "line",
    ["import benchmarks.whole_run", "from benchmarks import run", "def f():\n  from benchmarks.whole_run import main"],
)
def test_such_an_import_is_found(line: str) -> None:
    assert len(of_benchmarks(ast.parse(line))) == 1
