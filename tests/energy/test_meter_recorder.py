"""The node meter writes complete lines, in order, and stops nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from pipeline.energy import cpu_time_accounting, meter_recorder
from pipeline.energy.cpu_time_accounting import cpu_seconds_of_process_tree
from pipeline.energy.meter_recorder import NodeMeter, count_logical_cpus, find_job_boards, meter_additional_node
from pipeline.energy.readings import UNCHANGED_FIELDS, MeterInterval, Reading, read_intervals
from tests.energy.programs import BURN, QUICK, ROOT, run


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the meters of this process poll frequently."""
    monkeypatch.setattr(meter_recorder, "SAMPLE_SECONDS", 0.1)
    monkeypatch.setattr(meter_recorder, "SHORTEST_WRITE_SECONDS", 0.3)


KILLED = """
import sys
from pathlib import Path
from pipeline.energy.meter_recorder import NodeMeter
meter_recorder.SAMPLE_SECONDS = meter_recorder.SHORTEST_WRITE_SECONDS = 0.01
NodeMeter(Path(sys.argv[1]))
burn(60)
"""


def test_first_interval_begins_with_the_process(tmp_path: Path) -> None:
    path, began = tmp_path / "a@node.jsonl", time.time()
    meter = "import sys; from pathlib import Path; meter_recorder.NodeMeter(Path(sys.argv[1])).end()"
    program = f"import time; print(time.time())\n{QUICK}{meter}"  # before slow imports
    words = [sys.executable, "-c", program, str(path)]
    output = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    # The kernel counts process start times in hundredths of a second.
    assert began - 0.1 < next(read_intervals(path)).started < float(output.split()[0]) + 0.02


def test_killed_meter_leaves_complete_lines_and_the_next_one_appends(tmp_path: Path, quick: None) -> None:
    path = tmp_path / "a@node.jsonl"
    process = subprocess.Popen([sys.executable, "-c", QUICK + BURN + KILLED, str(path)], cwd=ROOT)
    while not path.exists() or path.read_bytes().count(b"\n") < 20:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed = [*read_intervals(path)]
    assert len(killed) >= 20
    with path.open("ab") as stream:
        stream.write(b'{"node":"x","star')  # as after a power failure of the node
    NodeMeter(path, []).end()
    assert [*read_intervals(path)][: len(killed)] == killed
    assert len([*read_intervals(path)]) > len(killed)


def test_clock_jump_gives_no_negative_or_huge_interval(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock, jump = tmp_path / "a@node.jsonl", time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: clock() + jump[0])
    meter = NodeMeter(path, [])
    for seconds in (-86_400, 86_400):
        jump[0] = seconds
        time.sleep(0.5)
    meter.end()
    intervals = [*read_intervals(path)][1:]
    assert len(intervals) >= 2
    assert all(0 < one.seconds < 60 for one in intervals) and abs(intervals[-1].ended - clock()) < 60


SLEPT = """
import sys, time
from pathlib import Path
from pipeline.energy.meter_recorder import NodeMeter
calendar, since_boot, slept = time.time, time.clock_gettime, [0.0]
time.time = lambda: calendar() + slept[0]
time.clock_gettime = lambda clock: since_boot(clock) + slept[0]
before = NodeMeter(Path(sys.argv[1]), [])
slept[0] = 3600.0
after = NodeMeter(Path(sys.argv[2]), [])
after.end()
before.end()
"""


def test_machine_suspended_during_a_job_has_one_time_for_all_meters(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}@node.jsonl" for name in ("before", "after")]
    subprocess.run([sys.executable, "-c", SLEPT, *map(str, paths)], check=True, cwd=ROOT)
    ends = [[*read_intervals(path)][-1].ended for path in paths]
    assert ends[0] == pytest.approx(ends[1], abs=60) and ends[0] > time.time() + 3000, "and not an hour less"


@pytest.mark.skipif(not meter_recorder.BOOT_ID.exists(), reason="Linux alone gives a boot id")
def test_line_has_boot_id_and_boot_time(tmp_path: Path) -> None:
    with NodeMeter(tmp_path / "a@node.jsonl"):
        pass
    *_, line = read_intervals(tmp_path / "a@node.jsonl")
    assert line.boot_id == meter_recorder.BOOT_ID.read_text().strip()
    assert line.booted == pytest.approx(psutil.boot_time(), abs=2)


def test_later_lines_omit_unchanged_fields(tmp_path: Path, quick: None) -> None:
    path = tmp_path / "a@node.jsonl"
    meter = NodeMeter(path)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (not path.exists() or path.read_bytes().count(b"\n") < 3):
        time.sleep(0.02)
    meter.end()
    first, *others = map(json.loads, path.read_text().splitlines())
    assert first["node"] and first["processors"] and others
    assert not any(UNCHANGED_FIELDS & line.keys() for line in others)
    assert {interval.node for interval in read_intervals(path)} == {first["node"]}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
def test_full_disk_delays_lines_and_stops_nothing(tmp_path: Path, quick: None) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (disk / "ballast").write_bytes(b"x" * 4096)
        path = disk / "a@node.jsonl"
        meter = NodeMeter(path, [Still()])
        deadline, looks = time.monotonic() + 30, 0
        while looks < 5 and time.monotonic() < deadline:  # a line waits for a moment in any case
            time.sleep(0.02)
            looks = looks + 1 if meter._lines._waiting else 0
        written = path.read_bytes()
        assert written.endswith(b"\n") and 0 < len(written) <= 4096
        (disk / "ballast").unlink()
        meter.end()
        intervals = [*read_intervals(path)]
        assert len(path.read_bytes()) > 4096
        assert [a.ended for a in intervals[:-1]] == [b.started for b in intervals[1:]]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_unwritable_meter_path_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    NodeMeter(tmp_path / "file" / "a@node.jsonl", []).end()


class Still:
    """A meter of two boards with a watt each."""

    reads_power = False

    def __init__(self) -> None:
        self.last, self.looks = time.time(), 0
        self.gpus = ("a" * 200, "b" * 200)

    def sample(self, now: float) -> None:
        self.looks += 1

    def take_interval_readings(self, now: float) -> list[Reading]:
        joules, self.last = now - self.last, now
        board = Reading(component="board", joules=joules, label="measured", method="power", meter="still")
        return [board.model_copy(update={"part": part * 200}) for part in ("a", "b")]


class Broken(Still):
    """An unresponsive meter."""

    def sample(self, now: float) -> None:
        raise RuntimeError("the board fell off the bus")

    take_interval_readings = sample  # type: ignore[assignment]


def test_meters_are_read_from_discovery_and_a_failing_one_affects_no_other(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, meter = tmp_path / "a@node.jsonl", Still()
    cpu_time_accounting._accounting = None  # as in a new process: earlier time is without readings
    with NodeMeter(path, [Broken(), meter]):
        deadline = time.monotonic() + 60
        while meter.looks <= 4 and time.monotonic() < deadline:
            time.sleep(0.1)
    start_up, *others = read_intervals(path)
    assert start_up.readings == () and start_up.started == pytest.approx(psutil.Process().create_time(), abs=1.1)
    assert meter.looks > 4
    for one in others:
        assert [reading.part[:1] for reading in one.readings] == ["a", "b"] and one.job_boards == ("a" * 200, "b" * 200)
        assert one.readings[0].joules == pytest.approx(one.seconds, abs=0.1)
    assert [record.message for record in caplog.records] == ["a meter cannot be read: the board fell off the bus"]


def test_powers_are_read_more_often_than_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_recorder, "POWER_SAMPLE_SECONDS", 0.01)
    power, counter = Still(), Still()
    power.reads_power = True
    with NodeMeter(tmp_path / "a@node.jsonl", [power, counter]):
        deadline = time.monotonic() + 60
        while power.looks < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert power.looks >= 20 > 10 * counter.looks


def test_meters_continue_in_the_next_attempt_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[Still] = []

    def find() -> list[Still]:
        results.append(Still())
        return results[-1:]

    meter_recorder._reusable_meters.clear()
    monkeypatch.setattr(meter_recorder, "_find_meters_or_warn", find)
    began = time.time()
    for number in range(3):
        NodeMeter(tmp_path / str(number)).end()
        time.sleep(0.5)
    assert len(results) == 1
    calendar = time.time
    monkeypatch.setattr(time, "time", lambda: calendar() + 3600)
    NodeMeter(tmp_path / "after the clock was set").end()
    meter_recorder._reusable_meters.clear()
    assert len(results) == 2, "its readings would cover an hour"
    (second,) = read_intervals(tmp_path / "1")
    assert second.seconds > 0.5, "the time between belongs to the next one"
    assert 0.5 < second.readings[0].joules < second.ended - began  # a watt


def test_failing_driver_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*, with_gpus: bool) -> list[Still]:
        raise RuntimeError("driver and library differ")

    meter_recorder._reusable_meters.clear()
    monkeypatch.setattr(meter_recorder, "find_meters", broken)
    NodeMeter(tmp_path / "a@node.jsonl").end()
    meter_recorder._reusable_meters.clear()
    assert [*read_intervals(tmp_path / "a@node.jsonl")]
    assert [record.message for record in caplog.records] == [
        "no meter of this node can be read: driver and library differ"
    ]


@pytest.mark.parametrize(
    ("variables", "boards"),
    [
        ({}, ("GPU-aa", "GPU-ab", "GPU-b")),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, ("GPU-b", "GPU-aa")),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, ("GPU-b",)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a"}, ("GPU-aa", "GPU-ab", "GPU-b")),  # unknown which ones
        ({"ROCR_VISIBLE_DEVICES": "1"}, ("GPU-ab",)),
        ({"SLURM_JOB_GPUS": "5,6,7"}, ("GPU-aa", "GPU-ab", "GPU-b")),  # it sees only its own
        ({"CUDA_VISIBLE_DEVICES": "1", "SLURM_JOB_GPUS": "3"}, ("GPU-ab",)),
    ],
)
def test_boards_of_a_job_are_its_visible_devices(variables: dict[str, str], boards: tuple[str, ...]) -> None:
    assert find_job_boards(["GPU-aa", "GPU-ab", "GPU-b"], variables) == boards


def test_two_dies_of_a_card_are_one_board() -> None:
    cards = ["accel0", "accel0", "accel1", "accel1"]
    assert find_job_boards(cards, {"ROCR_VISIBLE_DEVICES": "2,3"}) == ("accel1",)
    assert find_job_boards(cards, {"ROCR_VISIBLE_DEVICES": "1,2"}) == ("accel0", "accel1")
    assert find_job_boards(cards, {}) == ("accel0", "accel1")


def test_processor_count_comes_from_slurm() -> None:
    assert count_logical_cpus({}) == (os.cpu_count(), len(os.sched_getaffinity(0)))
    assert count_logical_cpus({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "1"}) == (os.cpu_count(), 1)


@pytest.mark.parametrize(
    ("variables", "is_metered"),
    [
        ({"PIPELINE_METERED_NODE": "node1", "SLURMD_NODENAME": "node2", "SLURM_LOCALID": "0"}, True),
        ({"PIPELINE_METERED_NODE": "node1", "SLURMD_NODENAME": "node2", "SLURM_LOCALID": "1"}, False),
        (
            {"PIPELINE_METERED_NODE": "node1", "SLURMD_NODENAME": "node2", "SLURM_LOCALID": "0", "LOCAL_RANK": "3"},
            False,
        ),
        ({"PIPELINE_METERED_NODE": "node1", "SLURMD_NODENAME": "node1", "SLURM_LOCALID": "0"}, False),
        ({"PIPELINE_ATTEMPT": ""}, False),
    ],
)
def test_first_process_on_another_node_meters_it(
    variables: dict[str, str], is_metered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"PIPELINE_ATTEMPT": "train", "PIPELINE_READINGS": str(tmp_path), **variables}
    monkeypatch.setenv("SLURMD_NODENAME", given.get("SLURMD_NODENAME", ""))
    with meter_additional_node(given):
        pass
    assert [path.name for path in tmp_path.iterdir()] == (["train@node2.jsonl"] if is_metered else [])


def test_meter_ends_once_and_not_in_a_forked_process(tmp_path: Path) -> None:
    path = tmp_path / "a@node.jsonl"
    meter = NodeMeter(path, [])
    if (child := os.fork()) == 0:
        meter.end()
        os._exit(len([*tmp_path.iterdir()]))
    assert os.waitpid(child, 0)[1] == 0
    assert meter._thread in threading.enumerate()
    meter.end()
    size = path.stat().st_size
    meter.end()
    assert path.stat().st_size == size > 0
    assert isinstance(next(read_intervals(path)), MeterInterval)


def test_sampling_imports_nothing_heavy() -> None:
    run("import sys; import pipeline.energy.meter_recorder; assert not {'torch', 'zeus', 'numpy'} & set(sys.modules)")
    assert cpu_seconds_of_process_tree() > 0
