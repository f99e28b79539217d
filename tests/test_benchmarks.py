"""Benchmarks may import from the tests, tests import no benchmark, and the README lists each by its first line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def benchmark_import_lines(tree: ast.AST) -> list[int]:
    """Return the numbers of the lines that import a benchmark."""
    lines = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        lines += [node.lineno for name in names if name.split(".")[0] == "benchmarks"]  # type: ignore[attr-defined]
    return lines


def test_readme_lists_each_benchmark_by_the_first_line_of_its_docstring() -> None:
    readme = (TESTS.parent / "benchmarks/README.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+)\.py` \| (.+) \|$", readme, re.MULTILINE))
    files = {file.stem: file.read_text(encoding="utf-8") for file in (TESTS.parent / "benchmarks").glob("*.py")}
    shared = {"comparison", "gpu_training"}  # helpers of other benchmarks, not commands
    assert listed == {
        name: str(ast.get_docstring(ast.parse(text))).split("\n")[0]
        for name, text in files.items()
        if name not in shared
    }


def test_every_benchmark_named_in_a_text_exists() -> None:
    root = TESTS.parent
    folders = ("docs", "pipeline", "tests", "workflow", "benchmarks")
    texts = [file for name in folders for file in (root / name).rglob("*") if file.suffix in (".md", ".py", ".yaml")]
    named = {
        (name, file.relative_to(root).as_posix())
        for file in [*texts, root / "README.md", root / "CONTRIBUTING.md"]
        for name in re.findall(r"benchmarks/\w[\w/]*\.(?:py|sh|md)\b", file.read_text(encoding="utf-8"))
    }
    assert len(named) > 40
    assert {(name, place) for name, place in named if not (root / name).is_file()} == set()


def test_no_test_imports_a_benchmark() -> None:
    files = sorted(TESTS.rglob("*.py"))
    assert len(files) > 100
    assert {
        file: lines for file in files if (lines := benchmark_import_lines(ast.parse(file.read_text(encoding="utf-8"))))
    } == {}


@pytest.mark.parametrize(
    "line",
    [
        "import benchmarks.whole_run",
        "from benchmarks import whole_run",
        "def f():\n  from benchmarks.whole_run import main",
    ],
)
def test_search_finds_each_kind_of_import(line: str) -> None:
    assert len(benchmark_import_lines(ast.parse(line))) == 1
