"""Test selection of `make quick` and `make test-changed` by imports; budget warnings at the end of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests import cpu_seconds
from tests.changed import ROOT, concerned
from tests.conftest import pytest_collection_modifyitems, pytest_ignore_collect


def make_config(quick: bool) -> Any:
    return SimpleNamespace(getoption=lambda name: {"--quick": quick, "--changed": False}[name])


@pytest.mark.parametrize(
    ("text", "is_left_out"),
    [
        ("import subprocess", True),
        ("import os, multiprocessing as mp", True),
        ("from concurrent.futures import ProcessPoolExecutor", True),
        ("import torch.nn as nn", True),
        ("def test() -> None:\n    from pipeline.pretrain import segment\n", True),
        ("from tests.conftest import (\n    Project,\n    new_project,\n)", True),
        ("from pathlib import Path\nsegment = 'torch'  # import torch", False),
    ],
)
def test_quick_mode_skips_test_files_by_their_imports(tmp_path: Path, text: str, is_left_out: bool) -> None:
    file = tmp_path / "test_something.py"
    file.write_text(text)
    assert bool(pytest_ignore_collect(file, make_config(quick=True))) == is_left_out
    assert pytest_ignore_collect(file, make_config(quick=False)) is None
    assert pytest_ignore_collect(file.rename(tmp_path / "conftest.py"), make_config(quick=True)) is None


def test_quick_mode_skips_marked_tests_and_tests_of_a_complete_run() -> None:
    def item(mark: str, fixture: str) -> Any:
        marks = [SimpleNamespace(name=mark)]
        return SimpleNamespace(nodeid="tests/x.py", iter_markers=lambda: marks, fixturenames=[fixture])

    kept = item("parametrize", "tmp_path")
    items = [item("slow", ""), item("slurm", ""), item("demo", ""), item("", "finished"), kept]
    pytest_collection_modifyitems(make_config(quick=True), items)
    assert items == [kept]


def test_change_selects_tests_that_import_it_directly_or_indirectly() -> None:
    here, batch, loader = (
        ROOT / "tests" / name for name in ("test_quick.py", "job/test_job_entry_point.py", "cli/test_entry_point.py")
    )
    files = [here, batch, loader]
    assert concerned(files, [ROOT / "pipeline/job/job_entry_point.py"]) == {batch}
    assert concerned(files, [ROOT / "pipeline/job/reach.py"]) == {here, batch}, "through tests/changed.py, or attempts"
    assert concerned(files, [batch]) == {batch}
    failures = ROOT / "tests/evaluate/test_task_failures.py"
    assert concerned([failures], [ROOT / "tests/evaluate/agreeing.py"]), "it is started as `python -m MODULE`"
    uses = ROOT / "tests/energy/test_cpu_time_accounting.py"
    assert concerned([uses], [ROOT / "pipeline/energy/meter_recorder.py"]), "a program in a string imports it"
    assert concerned(files, [ROOT / "tests/conftest.py"]) == {*files}, "each has the fixtures"
    assert concerned(files, [ROOT / "docs" / f"no{len(files)}.md"]) == set()


def test_summary_lists_folders_and_tests_above_their_budget() -> None:
    budgets = {"folders": {"tests/a": 50}, "others": 10, "slow_test": 20, "slow_tests": {"tests/a/test_b.py::c": "why"}}
    used = {"tests/a/test_b.py::c[1]": 30.0, "tests/a/test_b.py::d[2]": 25.0, "tests/test_e.py::f": 9.0}
    assert cpu_seconds.lines(used, budgets) == [
        "     55 s  tests/a: WARNING: above its budget of 50 s in tests/budgets.yaml",
        "             55 s  tests/a/test_b.py",
        "      9 s  tests/test_e.py",
        "     25 s  WARNING: tests/a/test_b.py::d[2] is slow: add it with its reason to tests/budgets.yaml",
    ]


def test_slow_test_list_names_existing_tests() -> None:
    listed: dict[str, Any] = yaml.safe_load(cpu_seconds.BUDGETS.read_text())["slow_tests"]
    for name, reason in listed.items():
        file, function = name.split("::")
        assert f"def {function}(" in (ROOT / file).read_text() and reason, name
