"""The setup script reports missing requirements before any installation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("sh", "awk", "true")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return a folder that is the whole PATH of a machine with Python, a compiler and disk space."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        target = next(path for part in os.get_exec_path() if (path := Path(part, tool)).exists())
        (folder / tool).symlink_to(target)
    program(folder, "python3", f'exec {sys.executable} "$@"')
    program(folder, "g++", "true")
    disk(folder, free_kib=90_000_000)
    return folder


def program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def disk(folder: Path, free_kib: int) -> None:
    program(folder, "df", f"echo Filesystem; echo /dev/disk 100000000 1 {free_kib} 1% /")


def set_up(folder: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(ROOT / "envs" / "setup.sh"), "venv", "nowhere.lock"],
        cwd=tmp_path,
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
    )


def test_old_python_is_refused_with_a_remedy(machine: Path, tmp_path: Path) -> None:
    program(machine, "python3", 'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac')
    done = set_up(machine, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: Python 3.9.2 is too old") and "PYTHON=" in done.stderr


def test_rocm_setup_uses_torch_of_the_image(machine: Path, tmp_path: Path) -> None:
    program(machine, "python3", f'case "$2" in *hip*) exit 1;; esac; exec {sys.executable} "$@"')
    done = subprocess.run(
        ["sh", str(ROOT / "envs" / "setup.sh"), "venv", "envs/rocm.lock"],
        cwd=tmp_path,
        env={"PATH": str(machine)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "has no torch for ROCm: run this in the platform's image" in done.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(("missing", "words"), [("python3", "Python 3.11"), ("g++", "C++ compiler")])
def test_missing_program_is_named(machine: Path, tmp_path: Path, missing: str, words: str) -> None:
    (machine / missing).unlink()
    done = set_up(machine, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and words in done.stderr


def test_full_disk_is_reported_before_writing(machine: Path, tmp_path: Path) -> None:
    disk(machine, free_kib=1_000_000)
    done = set_up(machine, tmp_path)
    assert done.returncode == 1
    assert "1 GB free" in done.stderr and "6 GB" in done.stderr
    assert not (tmp_path / "venv").exists()
