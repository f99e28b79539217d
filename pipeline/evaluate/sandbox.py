"""Execute programs that a model wrote, each in a sandbox of its own, and say whether they pass their tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.lock_owner import die_with_parent

CPU_SECONDS = 10
"""CPU time does not depend on what else a machine does. The slowest solution of MBPP takes 3 s (item 123)."""
WALL_SECONDS = 30.0  # of a program that sleeps
MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 24  # of its /tmp, which is in memory
SYSTEM_FOLDERS = ("/bin", "/lib", "/lib64", "/usr")
LIBRARIES = "LD_LIBRARY_PATH"  # with modules, those of Python


EXECUTED = "pass_at_1"
"""The metric that executes programs."""


def require_permission(task: str, is_allowed: bool) -> None:
    """Refuse a task that executes programs, unless the run allows it and the machine can.

    Raises:
        InputError: with the reason.
    """
    if not is_allowed:
        raise InputError(
            f"task {task}: it executes the programs that models write; write `execute_code: true` below `evaluation`, "
            "which does it in a sandbox, or leave the task out"
        )
    require_sandbox()


def passes_tests(program: str) -> bool:
    """Execute a Python program with its tests; return whether it ran to its end.

    It did not if it raised an exception, ended itself, or exceeded a limit.

    Raises:
        InputError: this machine has no sandbox.
    """
    require_sandbox()
    response = _execute(program)
    if "passed" not in response:
        raise RuntimeError(f"the sandbox failed: {response.get('refused')}")
    return bool(response["passed"])


@cache
def require_sandbox() -> None:
    """Execute an empty program.

    Raises:
        InputError: this machine has no sandbox.
    """
    response = _execute("")
    if not response.get("passed"):
        problem = response.get("refused") or "Python does not start in it"
        raise InputError(
            f"this machine has no sandbox for the programs that a model writes ({problem}): allow user namespaces "
            "(sysctl user.max_user_namespaces), or leave out the tasks that execute programs"
        )


def _execute(program: str) -> dict[str, Any]:
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    libraries = os.environ.get(LIBRARIES, "")
    folders = {*SYSTEM_FOLDERS, os.path.realpath(sys.base_prefix), *libraries.split(":")}
    request: Mapping[str, Any] = {
        "program": program,
        "folders": sorted(folder for folder in folders if folder.startswith("/") and os.path.isdir(folder)),
        "environment": {LIBRARIES: libraries} if libraries else {},
        "cpu_seconds": CPU_SECONDS,
        "wall_seconds": WALL_SECONDS,
        "memory_bytes": MEMORY_BYTES,
        "file_bytes": FILE_BYTES,
    }
    done = subprocess.run(
        [python, "-I", "-S", "-B", Path(__file__).with_name("sandbox_entry.py")],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        preexec_fn=die_with_parent,
        check=False,
    )
    try:
        response: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        response = {"refused": (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]}
    return response
