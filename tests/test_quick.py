"""Which tests `make quick` and `make test-changed` take follows from imports; what the end of a run warns of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests import cpu_seconds
from tests.changed import ROOT, concerned
from tests.conftest import pytest_collection_modifyitems, pytest_ignore_collect


def asked(quick: bool) -> Any:
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
def test_a_file_of_tests_is_left_out_by_what_it_imports(tmp_path: Path, text: str, is_left_out: bool) -> None:
    file = tmp_path / "test_something.py"
    file.write_text(text)
    assert bool(pytest_ignore_collect(file, asked(quick=True))) == is_left_out
    assert pytest_ignore_collect(file, asked(quick=False)) is None
    assert pytest_ignore_collect(file.rename(tmp_path / "conftest.py"), asked(quick=True)) is None


def test_what_is_marked_and_what_needs_a_whole_run_is_left_out() -> None:
    def item(mark: str, fixture: str) -> Any:
        marks = [SimpleNamespace(name=mark)]
        return SimpleNamespace(nodeid="tests/x.py", iter_markers=lambda: marks, fixturenames=[fixture])

    kept = item("parametrize", "tmp_path")
    items = [item("slow", ""), item("slurm", ""), item("demo", ""), item("", "finished"), kept]
    pytest_collection_modifyitems(asked(quick=True), items)
    assert items == [kept]


def test_a_change_concerns_the_tests_that_import_it_directly_or_not() -> None:
    here, batch, loader = (
        ROOT / "tests" / name for name in ("test_quick.py", "job/test_batch.py", "cli/test_entry_point.py")
    )
    files = [here, batch, loader]
    assert concerned(files, [ROOT / "pipeline/job/batch.py"]) == {batch}
    assert concerned(files, [ROOT / "pipeline/job/reach.py"]) == {here, batch}, "through tests/changed.py, or attempts"
    assert concerned(files, [batch]) == {batch}
    failures = ROOT / "tests/evaluate/test_task_failures.py"
    assert concerned([failures], [ROOT / "tests/evaluate/agreeing.py"]), "it is started as `python -m MODULE`"
    uses = ROOT / "tests/energy/test_cpu_time_accounting.py"
    assert concerned([uses], [ROOT / "pipeline/energy/node_meter.py"]), "a program in a text imports it"
    assert concerned(files, [ROOT / "tests/conftest.py"]) == {*files}, "each has the fixtures"
    assert concerned(files, [ROOT / "docs" / f"no{len(files)}.md"]) == set()


def test_the_end_of_a_run_names_what_is_above_its_budget() -> None:
    budgets = {"folders": {"tests/a": 50}, "others": 10, "slow_test": 20, "slow_tests": {"tests/a/test_b.py::c": "why"}}
    used = {"tests/a/test_b.py::c[1]": 30.0, "tests/a/test_b.py::d[2]": 25.0, "tests/test_e.py::f": 9.0}
    assert cpu_seconds.lines(used, budgets) == [
        "     55 s  tests/a: WARNING: above its budget of 50 s in tests/budgets.yaml",
        "             55 s  tests/a/test_b.py",
        "      9 s  tests/test_e.py",
        "     25 s  WARNING: tests/a/test_b.py::d[2] is slow: add it with its reason to tests/budgets.yaml",
    ]


def test_the_list_of_slow_tests_names_tests() -> None:
    listed: dict[str, Any] = yaml.safe_load(cpu_seconds.BUDGETS.read_text())["slow_tests"]
    for name, reason in listed.items():
        file, function = name.split("::")
        assert f"def {function}(" in (ROOT / file).read_text() and reason, name
