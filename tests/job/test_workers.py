"""Parallel workers: largest first, a failure starts no other, and nothing outlives its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline import __main__
from pipeline.core.errors import InputError, Stopped
from pipeline.energy import startup_counters
from pipeline.job import job_entry_point
from pipeline.job.job_entry_point import WorkerTask, run_in_parallel

# Four workers of ten minutes; each writes its process id first.
SLOW = """
import os, signal, sys, time
from pathlib import Path
from pipeline.core.errors import Stopped
from pipeline.job.job_entry_point import WorkerTask, run_in_parallel

def stop(number, frame):
    raise Stopped("as asked")

def slow(name):
    try:
        Path(sys.argv[1], name).write_text(str(os.getpid()))
        time.sleep(600)
    except Stopped:
        Path(sys.argv[1], name + ".stopped").touch()
        raise

signal.signal(signal.SIGTERM, stop)
try:
    run_in_parallel([WorkerTask(name, 1, lambda name=name: slow(name)) for name in "abcd"], 2)
except Stopped:
    sys.exit(75)
"""


def wait_for(folder: Path, number: int) -> None:
    deadline = time.monotonic() + 300
    while len([path for path in folder.iterdir() if path.read_text()]) < number:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(process: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_largest_unit_runs_first_and_parallelism_is_limited_to_the_cores(tmp_path: Path) -> None:
    def note(name: str) -> None:
        with (tmp_path / "log").open("a") as log:
            log.write(f"{name}\n")

    sizes = {"a": 1, "b": 3, "c": 3, "d": 2}
    run_in_parallel([WorkerTask(name, size, lambda name=name: note(name)) for name, size in sizes.items()], 1)
    assert (tmp_path / "log").read_text().split() == ["b", "c", "d", "a"]


def test_unit_reads_counters_first_and_uses_no_gpu(tmp_path: Path) -> None:
    def note() -> None:
        sample = startup_counters.pop_startup_sample()
        seen = sample is not None and sample.cpu_seconds <= time.process_time()
        (tmp_path / "seen").write_text(f"{seen} {os.environ['CUDA_VISIBLE_DEVICES']!r}")

    run_in_parallel([WorkerTask("unit", 1, note)], 2)
    assert (tmp_path / "seen").read_text() == "True ''"


def test_failure_starts_no_new_unit_and_running_units_finish(tmp_path: Path) -> None:
    def fail() -> None:
        failing.send(os.getpid())
        raise InputError("laws.jsonl does not exist: give it back")

    def slow() -> None:
        failed = seen.recv()
        while alive(failed):
            time.sleep(0.05)
        (tmp_path / "slow").touch()

    seen, failing = multiprocessing.Pipe(duplex=False)

    works = [
        WorkerTask("late", 0, (tmp_path / "late").touch),
        WorkerTask("fails", 2, fail),
        WorkerTask("slow", 1, slow),
    ]
    with pytest.raises(InputError, match=r"^laws\.jsonl does not exist: give it back$"):
        run_in_parallel(works, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["slow"]


def test_first_of_several_errors_in_order_is_raised() -> None:
    def later() -> None:
        first = seen.recv()
        while alive(first):
            time.sleep(0.01)
        raise InputError("a")

    def fail() -> None:
        failing.send(os.getpid())
        raise InputError("b")

    seen, failing = multiprocessing.Pipe(duplex=False)
    works = [WorkerTask("a", 1, later), WorkerTask("b", 1, fail)]
    with pytest.raises(InputError, match=r"^a$"):
        run_in_parallel(works, 2)


@pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: 1 / 0], ids=["killed", "error"])
def test_worker_that_dies_fails_the_batch(end) -> None:
    with pytest.raises(RuntimeError, match=r"unit 3 ended with (-9|1)$"):
        run_in_parallel([WorkerTask("unit 3", 1, end), WorkerTask("unit 4", 1, lambda: None)], 2)


def test_worker_has_one_thread_and_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "24")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    names = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
    write = WorkerTask(
        "a", 1, lambda: (tmp_path / "seen").write_text(" ".join(repr(os.environ[name]) for name in names))
    )
    run_in_parallel([write], 1)
    assert (tmp_path / "seen").read_text() == "'1' ''"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["asked", "killed"])
def test_worker_does_not_outlive_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path)], cwd=Path.cwd())
    wait_for(tmp_path, 2)
    begun = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert all(map(alive, begun))
    process.send_signal(number)
    if number == signal.SIGTERM:
        time.sleep(0.1)
        process.send_signal(number)  # Slurm asks again
    assert process.wait(300) == (75 if number == signal.SIGTERM else -9)
    deadline = time.monotonic() + 300
    while any(map(alive, begun)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stopped = [path.name for path in tmp_path.iterdir() if path.suffix == ".stopped"]
    assert len(stopped) == (2 if number == signal.SIGTERM else 0) and not (tmp_path / "c").exists()


def test_worker_whose_parent_was_killed_early_does_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    work, (_, ours) = WorkerTask("a", 1, (tmp_path / "a").touch), context.Pipe(duplex=False)
    nobody = 2**22  # Linux has no process of that number
    piece = context.Process(target=job_entry_point._run_task, args=(work, ours, nobody))
    piece.start()
    piece.join()
    assert piece.exitcode == -signal.SIGKILL and not (tmp_path / "a").exists()


def test_worker_stopped_by_slurm_stops_the_batch() -> None:
    def stop() -> None:
        raise Stopped("as asked by Slurm: start again to continue")

    with pytest.raises(Stopped, match="as asked by Slurm"):
        run_in_parallel([WorkerTask("a", 1, stop)], 1)


def test_core_count_comes_from_slurm_or_snakemake() -> None:
    assert job_entry_point.available_cores({"SLURM_CPUS_PER_TASK": "24", "OMP_NUM_THREADS": "1"}) == 24
    assert job_entry_point.available_cores({"OMP_NUM_THREADS": "2"}) == 2
    assert job_entry_point.available_cores({}) == job_entry_point.available_cores({"OMP_NUM_THREADS": "2,1"}) == 1


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_waiting_threads_of_a_job_soon_sleep_by_default(
    given: dict[str, str], spins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["pipeline", "evaluate", "suites", "--settings", "{}"])
    monkeypatch.setattr("pipeline.cli.entry_point.start", lambda: 7)
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {key: value for key, value in os.environ.items() if key not in names}
    monkeypatch.setattr(os, "environ", environment | given)
    assert __main__.start() == 7 and os.environ.get("GOMP_SPINCOUNT") == spins
