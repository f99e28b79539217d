"""CPU seconds and memory are those of a process and of all that it has started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from pipeline.energy import process_use
from pipeline.energy.process_use import cpu_seconds_of_process_tree, peak_memory_bytes_of_process_tree

BURNING_CHILD = """
import sys, time
ballast = bytearray(120_000_000)
while time.process_time() < 1.0: sum(range(1000))
print(time.process_time(), flush=True)
sys.stdin.read()
"""


def burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        sum(range(1000))


def test_children_count_while_they_run_and_after_they_ended() -> None:
    before_seconds = cpu_seconds_of_process_tree() - time.process_time()
    with subprocess.Popen(
        [sys.executable, "-c", BURNING_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child_seconds = float(child.stdout.readline())
        running_seconds = cpu_seconds_of_process_tree() - time.process_time() - before_seconds
        with_child_bytes = peak_memory_bytes_of_process_tree()
        own_bytes = psutil.Process().memory_info().rss
    ended_seconds = cpu_seconds_of_process_tree() - time.process_time() - before_seconds
    assert running_seconds == pytest.approx(child_seconds, rel=0.5)
    assert ended_seconds == pytest.approx(child_seconds, rel=0.5), "not as a running and as a finished child"
    assert with_child_bytes > own_bytes + 100_000_000
    assert peak_memory_bytes_of_process_tree() >= 120_000_000, "an ended child's peak is remembered"


def test_children_of_children_and_of_threads_are_found() -> None:
    command = [sys.executable, "-c", "import subprocess as s; print(s.Popen(['sleep', '60']).pid, flush=True); input()"]
    with ThreadPoolExecutor(1) as pool:
        child = pool.submit(subprocess.Popen, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE).result()
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        found = {process.pid for process in process_use._children()}
        assert {child.pid, grandchild} <= found == {process.pid for process in psutil.Process().children(True)}
    psutil.Process(grandchild).kill()
    child.communicate(b"\n")


def test_a_thread_that_ends_while_one_looks_hides_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    read, gone = Path.read_text, iter([True])

    def shown(path: Path, encoding: str) -> str:
        if path.name == "children" and next(gone, False):
            raise FileNotFoundError(path)  # it was listed a moment ago
        return read(path, encoding=encoding)

    monkeypatch.setattr(Path, "read_text", shown)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in [*process_use.descendants(os.getpid())]
        child.communicate(b"\n")


def test_a_job_starts_its_meter_without_anything_heavy_where_there_are_no_boards(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from pipeline.energy.node_meter import NodeMeter
NodeMeter(Path(sys.argv[1])).end()
assert not {"torch", "zeus", "codecarbon", "numpy", "pynvml", "amdsmi"} & set(sys.modules)
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a@b.jsonl")], check=True, cwd=root)
    assert (tmp_path / "a@b.jsonl").exists()
