"""Steps are traced only on request; the numbers of the training are unchanged."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from pipeline.cli.entry_point import main
from pipeline.pretrain.monitors import profiler
from pipeline.pretrain.monitors.profiler import REQUEST, TRACES, Profiler
from pipeline.pretrain.settings import SegmentSettings
from tests.pretrain.test_segment import hashes, losses, start_apart, train, workers_of

pytestmark = pytest.mark.usefixtures("warm_processes")
CPU = torch.device("cpu")


def steps(profiler: Profiler, first: int, last: int) -> None:
    for step in range(first, last + 1):
        profiler.begin(step)
        torch.ones(64, 64) @ torch.ones(64, 64)
        profiler.end(step, is_last=step == 9)


def test_steps_after_a_request_are_in_one_trace(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, CPU)
    steps(profiler, 1, 2)
    assert not (tmp_path / TRACES).exists()
    (tmp_path / REQUEST).write_text("2\n")
    steps(profiler, 3, 6)
    (trace,) = (tmp_path / TRACES).iterdir()
    assert trace.name == "steps-3-4.json" and not (tmp_path / REQUEST).exists()
    products = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("name") == "aten::mm"]
    assert len(products) == 2 and "[64, 64]" in str(products[0]["args"]["Input Dims"])


def test_request_longer_than_the_training_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / REQUEST).write_text("100")
    steps(Profiler(tmp_path, CPU), 8, 9)
    assert [path.name for path in (tmp_path / TRACES).iterdir()] == ["steps-8-9.json"]


@pytest.mark.parametrize("asked", ["", "all", "0", "-1"])
def test_non_numeric_request_is_discarded(asked: str, tmp_path: Path) -> None:
    (tmp_path / REQUEST).write_text(asked)
    steps(Profiler(tmp_path, CPU), 1, 2)
    assert [*tmp_path.iterdir()] == []


def test_request_withdrawn_during_reading_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: path.name == REQUEST)  # it existed just before
    steps(Profiler(tmp_path, CPU), 1, 2)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_running_training_is_traced_without_restart(
    settings: Callable[..., SegmentSettings], tokens: dict[str, Path], tmp_path: Path
) -> None:
    chosen = settings()
    train(chosen, tokens, tmp_path / "alone")
    run = tmp_path / "run"
    (run / "provenance").mkdir(parents=True)
    (run / "scratch/base/300").mkdir(parents=True)
    folder = run / "scratch/base/300/code"
    folder.symlink_to(tmp_path / "traced/scratch")
    process = start_apart(chosen, tokens, tmp_path / "traced", "")
    while not (workers := workers_of(tmp_path / "traced")):
        assert process.poll() is None
        time.sleep(0.01)
    (worker,) = map(psutil.Process, workers)
    worker.suspend()  # it does not finish before the request: that takes seconds of imports
    words = [sys.executable, "-m", "pipeline", "profile", str(run), "base", "--steps", "2", "--seconds", "120"]
    asking = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (folder / REQUEST).exists():
        assert asking.poll() is None
        time.sleep(0.05)
    worker.resume()
    output, wrong = asking.communicate()
    assert asking.returncode == 0, wrong
    assert process.wait(timeout=120) == 0
    (trace,) = (tmp_path / "traced/scratch" / TRACES).iterdir()
    assert str(trace.name) in output and json.loads(trace.read_text())["traceEvents"]
    assert losses(tmp_path / "traced") == losses(tmp_path / "alone")
    assert hashes(tmp_path / "traced") == hashes(tmp_path / "alone")


def set_clock(monkeypatch: pytest.MonkeyPatch, *events: Callable[[], object]) -> list[float]:
    """Feed a follower of a trace these events, one between two polls, without other time; return its waits."""
    waits: list[float] = []
    following = iter(events)

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        next(following, lambda: None)()

    monkeypatch.setattr(profiler, "time", SimpleNamespace(monotonic=lambda: sum(waits), sleep=sleep))
    return waits


def test_trace_is_renamed_when_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "provenance").mkdir()
    folder = tmp_path / "scratch/base/8/code"
    (folder / "starts").mkdir(parents=True)
    (folder / TRACES).mkdir()
    partial = folder / TRACES / ".steps-3-5.json"  # large traces are slow
    name = partial.with_name("steps-3-5.json")
    waits = set_clock(monkeypatch, lambda: partial.write_text("{"), lambda: partial.rename(name))
    assert main(["profile", str(tmp_path), "base", "--seconds", "60"]) == 0 and len(waits) == 2
    assert f"{TRACES}/steps-3-5.json:" in capsys.readouterr().out


def test_request_is_renamed_when_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "provenance").mkdir()
    folder, seen = tmp_path / "scratch/base/8/code", []
    (folder / "starts").mkdir(parents=True)

    def write(path: Path, content: bytes) -> None:
        path.touch()
        seen.append((folder / REQUEST).exists())
        path.write_text(content.decode())

    monkeypatch.setattr(Path, "write_bytes", write)
    set_clock(monkeypatch)
    assert main(["profile", str(tmp_path), "base", "--seconds", "5"]) == 2
    assert seen == [False]


def test_profiling_a_training_that_does_not_run_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = set_clock(monkeypatch)
    (tmp_path / "provenance").mkdir()
    assert main(["profile", str(tmp_path), "base"]) == 2
    assert "has no training of base that runs" in capsys.readouterr().err
    (tmp_path / "scratch/base/8/code/starts").mkdir(parents=True)
    assert main(["profile", str(tmp_path), "base", "--seconds", "5"]) == 2
    assert "no step was traced within 5 seconds" in capsys.readouterr().err and 5 < sum(waits) <= 6
    assert not (tmp_path / "scratch/base/8/code" / REQUEST).exists()
    assert main(["profile", str(tmp_path), "base", "--steps", "0"]) == 2
