"""What `make quick` leaves out is told by what a file of tests imports."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_collection_modifyitems, pytest_ignore_collect


def asked(quick: bool) -> Any:
    return SimpleNamespace(getoption=lambda name: {"--quick": quick}[name])


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
