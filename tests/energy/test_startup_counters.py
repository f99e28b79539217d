"""Energy is counted from the startup of a process; the time to find its meters is not lost."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pynvml
import pytest

from pipeline.energy import startup_counters
from pipeline.energy.gpu_meter import Gpu, find_gpu_meter
from pipeline.energy.rapl_and_cray_meters import find_pm_counters, find_rapl
from pipeline.energy.readings import MeterInterval, Reading, read_intervals
from pipeline.energy.startup_counters import CounterSample, sample_counters
from tests.energy.programs import ROOT, run
from tests.energy.test_gpu_meter import Board

ZONES = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "dram", "intel-rapl:1": "package-1"}

SHOW = """
import os, sys, time
from pathlib import Path
from pipeline.energy import rapl_and_cray_meters, startup_counters
folder = startup_counters.POWERCAP = sys.argv[1]
def show(joules):
    for number, zone in enumerate(sorted(os.listdir(folder))):
        Path(folder, zone, "new").write_text(f"{round((joules + number) * 1e6)}")
        Path(folder, zone, "new").replace(Path(folder, zone, "energy_uj"))  # a thread of the meter reads it meanwhile
meter_recorder.find_meters = lambda with_gpus: [rapl_and_cray_meters.find_rapl(Path(folder))]
burn(0.05)
show(100)
startup_counters.keep_startup_sample()
burn(1.0)
show(130)
"""
ALONE = """
with meter_recorder.NodeMeter(Path(sys.argv[2])):
    burn(0.1)
    show(137)
print(time.process_time())
"""
FORKED = """
meter_recorder.divide_startup_among_jobs(2)
for number in range(2):
    if (child := os.fork()) == 0:
        startup_counters.keep_startup_sample()
        show(140 + number * 10)
        with meter_recorder.NodeMeter(Path(f"{sys.argv[2]}{number}")):
            show(145 + number * 10)
        os._exit(0)
    os.waitpid(child, 0)
with meter_recorder.NodeMeter(Path(f"{sys.argv[2]} parent")):
    pass
"""


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    for zone, name in ZONES.items():
        (tmp_path / "powercap" / zone).mkdir(parents=True)
        (tmp_path / "powercap" / zone / "name").write_text(f"{name}\n")
        (tmp_path / "powercap" / zone / "max_energy_range_uj").write_text("262143328850\n")
        (tmp_path / "powercap" / zone / "energy_uj").write_text("1000000\n")
    return tmp_path / "powercap"


def joules(*intervals: MeterInterval) -> dict[str, float]:
    results: dict[str, float] = {}
    for reading in (reading for interval in intervals for reading in interval.readings):
        assert reading.joules is not None and reading.problem is None
        results[reading.part] = results.get(reading.part, 0.0) + reading.joules
    return {part: round(amount, 6) for part, amount in results.items()}


def test_job_counts_from_its_startup_sample(tmp_path: Path, powercap: Path) -> None:
    used = float(run(SHOW + ALONE, powercap, tmp_path / "a@node.jsonl"))
    first, second, *others = read_intervals(tmp_path / "a@node.jsonl")
    assert first.readings == () and joules(second) == {"package-0": 30, "dram-0": 30, "package-1": 30}
    assert joules(second, *others) == {"package-0": 37, "dram-0": 37, "package-1": 37}
    assert first.ended == second.started and second.ended == others[0].started
    assert 0.05 <= first.job_cpu_seconds < second.job_cpu_seconds and second.job_cpu_seconds > 0.9
    assert sum(one.job_cpu_seconds for one in (first, second, *others)) == pytest.approx(used, abs=0.1)
    assert second.node_cpu_seconds >= second.job_cpu_seconds, "the node's counters begin at the same time"


def test_forked_jobs_share_a_measured_startup_and_have_their_own_intervals(tmp_path: Path, powercap: Path) -> None:
    run(SHOW + FORKED, powercap, tmp_path / "unit")
    for number in range(2):
        before, shared, *own = read_intervals(tmp_path / f"unit{number}")
        assert before.is_shared_start and shared.is_shared_start and not any(one.is_shared_start for one in own)
        assert before.readings == () and joules(shared) == {"package-0": 30, "dram-0": 30, "package-1": 30}
        assert 0.45 < shared.job_cpu_seconds < 0.7, "a half"
        # From its sample on: the node's energy between the two jobs is in neither.
        expected = 15 if number == 0 else 10
        assert joules(*own)["package-0"] == expected, number
    assert not any(one.is_shared_start for one in read_intervals(tmp_path / "unit parent"))


def test_sampled_boards_are_counted_from_the_sample() -> None:
    counted, powered, unseen = Board(joules=1000), Board(joules=None, watts=100), Board(joules=5000)
    boards: list[tuple[str, Gpu]] = [
        (f"GPU-{number}", board) for number, board in enumerate((counted, powered, unseen))
    ]
    meter = find_gpu_meter("nvml", lambda _: boards)
    assert meter is not None
    meter.begin(10.0, CounterSample(0.0, 0.0, 0.0, {}, {"GPU-0": 900_000, "GPU-1": 900_000, "GPU-7": 1}))
    readings = {reading.part: reading for reading in meter.take_interval_readings(12.0)}
    assert readings["GPU-0"].joules == 100 and readings["GPU-0"].problem is None
    for part in ("GPU-1", "GPU-2"):
        assert readings[part].joules is None and (readings[part].problem or "").endswith("this is its first reading")


def test_cray_counters_are_counted_only_from_the_sample(
    tmp_path: Path, powercap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cray").mkdir()

    def show(joules: int, seconds: int) -> None:
        for name in ("energy", "cpu_energy", "accel0_energy"):
            (tmp_path / "cray" / name).write_text(f"{joules} J {seconds * 1_000_000} us\n")
        (tmp_path / "cray/power").write_text(f"300 W {seconds * 1_000_000} us\n")
        (tmp_path / "cray/freshness").write_text(f"{seconds * 10}\n")

    show(1000, 50)
    monkeypatch.setattr(startup_counters, "PM_COUNTERS", str(tmp_path / "cray"))
    monkeypatch.setattr(startup_counters, "POWERCAP", str(powercap))
    sample = sample_counters()
    assert sorted(Path(path).name for path in sample.files) == ["accel0_energy", "cpu_energy", "energy", "freshness"]
    show(1600, 52)
    meter = find_pm_counters(tmp_path / "cray", tmp_path / "none")
    assert meter is not None
    meter.begin(100.0, sample)
    assert [reading.joules for reading in meter.take_interval_readings(102.0)] == [600.0] * 3


def test_failed_sample_is_a_gap_and_samples_of_other_meters_are_ignored(powercap: Path) -> None:
    meter = find_rapl(powercap)
    assert meter is not None
    zones = {f"{powercap}/intel-rapl:0/energy_uj": "500000\n", f"{powercap}/intel-rapl:1/energy_uj": "x"}
    meter.begin(10.0, CounterSample(0.0, 0.0, 0.0, zones, {}))
    readings = {reading.part: reading for reading in meter.take_interval_readings(11.0)}
    assert readings["package-0"].joules == 0.5
    assert all("could not be read" in (readings[part].problem or "") for part in ("dram-0", "package-1"))
    other = find_rapl(powercap)
    assert other is not None
    other.begin(10.0, CounterSample(0.0, 0.0, 0.0, {"/elsewhere/energy": "1 J 1 us"}, {}))
    assert all(first_reading(reading) for reading in other.take_interval_readings(11.0))


def first_reading(reading: Reading) -> bool:
    return (reading.problem or "").endswith("this is its first reading")


def test_unreadable_counters_are_not_sampled(tmp_path: Path, powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (powercap / "intel-rapl:1/energy_uj").unlink()
    (powercap / "intel-rapl:1/energy_uj").mkdir()
    (powercap / "dtpm").mkdir()
    monkeypatch.setattr(startup_counters, "POWERCAP", str(powercap))
    sample = sample_counters()
    assert sample.files == {f"{powercap}/{zone}/energy_uj": "1000000\n" for zone in ("intel-rapl:0", "intel-rapl:0:0")}
    assert 0 < sample.cpu_seconds <= sum(psutil.Process().cpu_times()[:2]) + 0.02
    assert sample.node_cpu_seconds == pytest.approx(sum(psutil.cpu_times()[:3]), rel=0.01)
    for name in ("POWERCAP", "PM_COUNTERS", "DEVICES", "CPU_TIMES"):
        monkeypatch.setattr(startup_counters, name, str(tmp_path / "none"))
    assert sample_counters()[2:] == (0.0, {}, {})


@pytest.mark.parametrize(
    ("visible", "broken", "boards"),
    [
        ("0,1", None, {"GPU-0": 5000, "GPU-2": 7000}),  # one has no counter
        ("", None, {}),  # a unit of a batch
        ("0,1", "nvmlInit", {}),
        ("0,1", "nvmlDeviceGetCount", {}),
    ],
)
def test_nvidia_boards_are_sampled_if_visible_to_the_job(
    visible: str, broken: str | None, boards: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(board: int) -> int:
        if board == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 5000 + board * 1000

    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    library: dict[str, Callable[..., object]] = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetUUID": lambda board: f"GPU-{board}",
        "nvmlDeviceGetTotalEnergyConsumption": count,
    }
    for name, function in (library | ({broken: fail} if broken else {})).items():
        monkeypatch.setattr(pynvml, name, function)
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(startup_counters, "DEVICES", str(tmp_path))
    monkeypatch.setattr(startup_counters, "POWERCAP", str(tmp_path / "none"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert sample_counters().board_millijoules == boards
    (tmp_path / "nvidia0").unlink()  # a node with the driver and without boards
    assert sample_counters().board_millijoules == {}


def test_sample_is_used_once_and_only_by_its_process() -> None:
    startup_counters.keep_startup_sample()
    if (child := os.fork()) == 0:
        os._exit(startup_counters.pop_startup_sample() is not None)
    assert os.waitpid(child, 0)[1] == 0
    sample = startup_counters.pop_startup_sample()
    assert sample is not None and math.isclose(sample.moment, startup_counters.monotonic_seconds(), abs_tol=600)
    assert startup_counters.pop_startup_sample() is None


def test_startup_sampling_imports_nothing_slow() -> None:
    act = "import sys; from pipeline.energy.startup_counters import sample_counters; sample_counters();"
    words = [sys.executable, "-c", f"{act} print(*sys.modules)"]
    loaded = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    assert "pipeline.energy.startup_counters" in loaded
    assert not {"pathlib", "json", "logging", "psutil", "pydantic", "pynvml", "subprocess"} & {*loaded}
