"""CPU seconds of the tests with their processes: printed by folder at the end, with a warning above a budget.

Unlike wall-clock time they are nearly the same on a busy machine. The figures of `budgets.yaml` are for the gate,
`make test`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import warm_python

BUDGETS = Path(__file__).with_name("budgets.yaml")
BEGAN = pytest.StashKey[float]()
PROPERTY = "cpu_seconds"
LISTED = 10
"""Files with at least this many CPU seconds have a line of their own."""


def used() -> float:
    """Return the CPU seconds of this process, the processes that it waited for, and its warm Python."""
    return sum(os.times()[:4]) + warm_python.cpu_seconds()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[BEGAN] = used()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: Any = yield
    if report.when == "teardown":
        report.user_properties.append((PROPERTY, used() - item.stash[BEGAN]))
    return report


def lines(used_by_test: dict[str, float], budgets: dict[str, Any]) -> list[str]:
    """Return the summary of a run: each folder with its largest files, and each slow test without a reason."""
    folders: dict[str, float] = defaultdict(float)
    files: dict[str, float] = defaultdict(float)
    for test, seconds in used_by_test.items():
        file = test.split("::")[0]
        files[file] += seconds
        folders["/".join(file.split("/")[:2])] += seconds
    messages = []
    for folder, seconds in sorted(folders.items(), key=lambda pair: -pair[1]):
        most = budgets["folders"].get(folder, budgets["others"])
        over = f": WARNING: above its budget of {most} s in tests/budgets.yaml" if seconds > most else ""
        if seconds >= 1:
            messages.append(f"{seconds:7.0f} s  {folder}{over}")
        for file, part in sorted(files.items(), key=lambda pair: -pair[1]):
            if part >= LISTED and file.startswith(f"{folder}/"):
                messages.append(f"{part:15.0f} s  {file}")
    for test, seconds in sorted(used_by_test.items(), key=lambda pair: -pair[1]):
        if seconds > budgets["slow_test"] and test.split("[")[0] not in budgets["slow_tests"]:
            messages.append(f"{seconds:7.0f} s  WARNING: {test} is slow: add it with its reason to tests/budgets.yaml")
    return messages


def pytest_terminal_summary(terminalreporter: Any) -> None:
    used_by_test = {
        report.nodeid: dict(report.user_properties)[PROPERTY]
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "teardown" and PROPERTY in dict(report.user_properties)
    }
    if used_by_test:
        terminalreporter.section(f"CPU seconds: {sum(used_by_test.values()):.0f}")
        for line in lines(used_by_test, yaml.safe_load(BUDGETS.read_text(encoding="utf-8"))):
            terminalreporter.write_line(line)
