"""Forks of a warm Python for what the commands of a run start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import warm_python


@pytest.fixture(scope="module")
def warm_processes() -> Iterator[None]:
    """Fork each `python -m MODULE` that this process starts from a Python that has imported the large libraries."""
    tools = Path(sys.executable).parent
    client, variables = warm_python.start()
    variables = {**variables, "PYTHONPATH": "", "PATH": os.pathsep.join([os.environ["PATH"], str(tools)])}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", client)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield
