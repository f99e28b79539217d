"""Each promise of the pages for auditors is still on its page, and has a test that attacks it."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.provenance import verify_attestations, verify_files
from tests.conftest import ROOT

PROMISES: dict[str, dict[str, list[str]]] = yaml.safe_load(Path(__file__).with_name("promises.yaml").read_text())
HOW_TO = ("docs/howto/verify-a-run.md", "docs/howto/trace-a-result.md", "docs/howto/reproduce-a-step.md")


def read_page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def list_items_and_rows(text: str) -> list[str]:
    """Return the list items and the table rows of a page, without heads of tables."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"^\|.*\n\|[-:| ]+\n", "", text, flags=re.MULTILINE)
    items = re.findall(r"^(?:- .*(?:\n  .*)*|\|.*)$", text, flags=re.MULTILINE)
    return [" ".join(item.split()) for item in items]


@pytest.mark.parametrize("page", PROMISES)
def test_each_promise_is_on_its_page(page: str) -> None:
    text = " ".join(read_page(page).split())
    assert [promise for promise in PROMISES[page] if promise not in text] == []


@pytest.mark.parametrize("page", HOW_TO)
def test_each_list_item_and_table_row_has_a_promise(page: str) -> None:
    items = list_items_and_rows(read_page(page))
    assert len(items) > 5
    assert [item for item in items if not any(promise in item for promise in PROMISES[page])] == []


def test_each_promise_has_tests_that_exist() -> None:
    named = {test for promises in PROMISES.values() for tests in promises.values() for test in tests}
    assert all(tests for promises in PROMISES.values() for tests in promises.values())
    defined: set[str] = set()
    for file in {test.partition("::")[0] for test in named}:
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        defined |= {f"{file}::{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert sorted(named - defined) == []


@pytest.mark.parametrize("module", [verify_attestations, verify_files])
def test_verifiers_are_python_3_9_without_packages(module: object) -> None:
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 9))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names - {"tomllib"}
    assert "__future__" in imported, "annotations such as `str | None` are not evaluated"
    newer = [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "strict"]
    assert newer == [], "zip has `strict` since Python 3.10"
