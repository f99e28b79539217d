"""A wheel folder is packed with an index and installed without one; a changed file is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "envs" / "wheels.sh"


def wheel(folder: Path, name: str, text: str) -> None:
    """Write a wheel of one module."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, content in {**files, f"{info}/RECORD": "".join(f"{path},,\n" for path in files)}.items():
            archive.writestr(path, content)


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    return subprocess.run(
        ["sh", str(SCRIPT), *words],
        env={**kept, "PYTHON": sys.executable, "PIP_CONFIG_FILE": os.devnull, **environment},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def wheel_folder(tmp_path: Path) -> Path:
    index, wheel_folder = tmp_path / "index", tmp_path / "house"
    wheel(index, "polder_first", "WORD = 'first'\n")
    wheel(index, "polder_second", "WORD = 'second'\n")
    (tmp_path / "small.lock").write_text("# small\npolder-first==1.0\npolder-second==1.0 ; python_version < '4'\n")
    done = run("pack", str(tmp_path / "small.lock"), str(wheel_folder), PIP_FIND_LINKS=str(index), PIP_NO_INDEX="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 wheels") and "SHA256SUMS" in done.stdout
    return wheel_folder


def test_packed_wheels_are_installed_without_an_index(wheel_folder: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    done = run("install", str(wheel_folder), str(venv), PIP_INDEX_URL="https://index.invalid/")
    assert done.returncode == 0, done.stderr
    program = "import polder_first, polder_second as s; print(polder_first.WORD, s.WORD)"
    process = subprocess.run([venv / "bin" / "python", "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout == "first second\n"

    wheel(wheel_folder, "polder_second", "WORD = 'another'\n")
    done = run("install", str(wheel_folder), str(tmp_path / "other"))
    assert done.returncode == 1 and "another than was packed: carry it over again" in done.stderr
    (wheel_folder / "polder_second-1.0-py3-none-any.whl").unlink()
    assert run("install", str(wheel_folder), str(tmp_path / "other")).returncode == 1


def test_another_python_is_named(wheel_folder: Path, tmp_path: Path) -> None:
    (wheel_folder / "python").write_text("3 9 riscv64\n")
    done = run("install", str(wheel_folder), str(tmp_path / "venv"))
    assert done.returncode == 1 and "is for Python and processor 3 9 riscv64, this is 3 " in done.stderr
    done = run("install", str(tmp_path), str(tmp_path / "venv"))
    assert done.returncode == 1 and "holds no wheels" in done.stderr
    assert "write: sh envs/wheels.sh pack" in run("pack").stderr
