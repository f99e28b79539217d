"""The warm Python runs a process like any other, with the modules of its own folder."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from tests import warm_python

SAYS = """
import atexit, os, signal, sys, time
atexit.register(lambda: print("the end"))
print(sys.argv[1:], os.getcwd(), os.environ["COLOUR"], sys.stdin.readline(), "torch" in sys.modules)
print("seen", b"\\0COLOUR=blue\\0" in open(f"/proc/{os.getpid()}/environ", "rb").read())
if "fail" in sys.argv:
    raise ValueError("on purpose")
if "dies" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
if "wait" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    print(os.getpid(), flush=True)
    time.sleep(600)
sys.exit(len(sys.argv))
"""


@pytest.fixture
def python(tmp_path: Path) -> list[str]:
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline/__init__.py").touch()
    (tmp_path / "pipeline/__main__.py").write_text(SAYS)
    return ["bash", "-c", 'python -m pipeline "$@"', "-"]


def begin(words: list[str], folder: Path) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "PYTHONPATH": "/nowhere", **warm_python.start()[1], "COLOUR": "blue"}
    return subprocess.Popen(words, cwd=folder, env=environment, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def test_module_runs_as_in_a_new_process_and_returns_its_exit_code(python: list[str], tmp_path: Path) -> None:
    with begin([*python, "a b", "{}"], tmp_path) as process:
        out, errors = process.communicate("input")
    assert out == f"['a b', '{{}}'] {tmp_path} blue input True\nseen True\nthe end\n"
    assert (errors, process.returncode) == ("", 3)
    with begin([*python, "fail"], tmp_path) as process:
        out, errors = process.communicate("")
    assert out.endswith("the end\n") and errors.endswith("ValueError: on purpose\n") and process.returncode == 1


def test_module_with_unbuffered_output_is_a_fork_too(python: list[str], tmp_path: Path) -> None:
    with begin(["bash", "-c", "python -u -m pipeline"], tmp_path) as process:
        assert process.communicate("input")[0].splitlines()[0].endswith("input True"), "with torch"


def test_signal_that_ends_the_module_ends_the_client(python: list[str], tmp_path: Path) -> None:
    with begin([warm_python.start()[0], "-m", "pipeline", "dies"], tmp_path) as process:
        process.communicate("")
    assert process.returncode == -signal.SIGKILL


def test_other_modules_and_arguments_use_the_real_python(tmp_path: Path) -> None:
    for words in ("-m platform", '-c \'import sys; print("torch" in sys.modules, "Linux")\''):
        with begin(["bash", "-c", f"python {words}"], tmp_path) as process:
            assert "Linux" in process.communicate()[0] and process.returncode == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 9), (signal.SIGKILL, -signal.SIGKILL)])
def test_signal_ends_the_module_like_a_process(
    python: list[str], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    client = [warm_python.start()[0], "-m", "pipeline", "wait"]
    with begin(client, tmp_path) as process:
        assert process.stdin and process.stdout
        process.stdin.write("\n")
        process.stdin.flush()
        fork = int([next(process.stdout) for _ in range(4)][-1])
        gone = os.pidfd_open(fork)
        process.send_signal(number)
        assert process.wait(60) == code
        assert select.select([gone], [], [], 60)[0], "the fork has ended with its client"
        os.close(gone)
