"""Third-party tools in an environment of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, is_lacking

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def auditor() -> Run:
    """Runs a tool of `.venv-auditors`: `auditor(name, *arguments)`; without it the test skips, and fails under CI."""

    def run(name: str, *arguments: str | Path, folder: str | Path = "/") -> subprocess.CompletedProcess[str]:
        tool = ROOT / ".venv-auditors/bin" / name
        if not tool.exists():
            is_lacking(f"{tool.relative_to(ROOT)} is not installed: see tests/auditors/requirements.in")
        return subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, check=False, cwd=folder)

    return run
