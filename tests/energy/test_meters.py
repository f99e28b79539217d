"""Meters read counters where there are some, say so where there are none, and count children."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from pipeline.energy import meters, processes
from pipeline.energy.meters import Gpus, Meters, Rapl, Reading, combine, start_meters
from pipeline.energy.processes import cpu_seconds_of_process_tree, peak_memory_bytes_of_process_tree

# Energy counters of a two-package server as the kernel shows them: name, range and successive values in microjoules.
PACKAGE_RANGE_MICROJOULES = 262_143_328_850
RECORDED_ZONES = {
    "intel-rapl:0": ("package-0", PACKAGE_RANGE_MICROJOULES, [262_000_000_000, 262_100_000_000, 56_671_150]),
    "intel-rapl:0:0": ("dram", 65_712_999_613, [1_000_000, 4_000_000, 9_000_000]),
    "intel-rapl:0:1": ("core", PACKAGE_RANGE_MICROJOULES, [5_000_000, 900_000_000, 990_000_000]),
    "intel-rapl:1": ("package-1", PACKAGE_RANGE_MICROJOULES, [0, 50_000_000, 120_000_000]),
    "intel-rapl:2": ("psys", PACKAGE_RANGE_MICROJOULES, [0, 500_000_000, 700_000_000]),
    "intel-rapl-mmio:0": ("package-0", PACKAGE_RANGE_MICROJOULES, [0, 100_000_000, 200_000_000]),
}


def write_counters(powercap: Path, moment: int, zones: list[str] | None = None) -> Path:
    for zone, (name, energy_range, counters) in RECORDED_ZONES.items():
        if zones is None or zone in zones:
            (powercap / zone).mkdir(parents=True, exist_ok=True)
            (powercap / zone / "name").write_text(f"{name}\n")
            (powercap / zone / "max_energy_range_uj").write_text(f"{energy_range}\n")
            (powercap / zone / "energy_uj").write_text(f"{counters[moment]}\n")
    return powercap


def burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        sum(range(1000))


def meter_named(reading: Reading, name: str) -> meters.MeterReading:
    return next(meter for meter in reading["meters"] if meter["meter"] == name)


def test_rapl_counts_packages_and_memory_once_and_across_the_wrap_around(tmp_path: Path) -> None:
    rapl = Rapl(write_counters(tmp_path, 0))
    assert sorted(rapl.zones) == ["dram", "package-0", "package-1"]
    assert rapl.joules() == 0
    write_counters(tmp_path, 1)
    assert rapl.joules() == pytest.approx(100 + 3 + 50)
    write_counters(tmp_path, 2)
    wrapped_joules = (PACKAGE_RANGE_MICROJOULES - 262_100_000_000 + 56_671_150) / 1e6
    assert wrapped_joules == pytest.approx(100)
    assert rapl.joules() == pytest.approx(100 + 100 + 8 + 120)


def test_rapl_that_may_not_be_read_is_no_meter(tmp_path: Path) -> None:
    write_counters(tmp_path, 0)
    for counter in tmp_path.glob("*/energy_uj"):
        counter.unlink()
        counter.mkdir()  # reading it raises OSError for every user
    assert Rapl(tmp_path).zones == []
    assert not Meters(gpus=False, powercap=tmp_path).read()["measured"]


def test_measured_packages_and_memory_are_a_measured_reading(tmp_path: Path) -> None:
    running = Meters(gpus=False, powercap=write_counters(tmp_path, 0))
    burn(0.3)
    write_counters(tmp_path, 1)
    reading = running.read()
    rapl = meter_named(reading, "rapl")
    assert reading["measured"]
    assert reading["meters"] == [rapl]
    assert 0 < rapl["joules"] <= 153
    assert "package-0" in (rapl["model"] or "")


def test_a_job_pays_for_its_share_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree_seconds, busy_seconds = iter([10.0, 12.0, 12.0]), iter([100.0, 108.0, 110.0])
    monkeypatch.setattr(meters, "cpu_seconds_of_process_tree", lambda: next(tree_seconds))
    monkeypatch.setattr(meters, "_busy_cpu_seconds", lambda: next(busy_seconds))
    running = Meters(gpus=False, powercap=write_counters(tmp_path, 0))
    write_counters(tmp_path, 1)
    assert running.read()["joules"] == pytest.approx(153 * 2 / 8)
    write_counters(tmp_path, 2)
    assert running.read()["joules"] == pytest.approx(153 * 2 / 8), "an interval in which it did nothing costs nothing"


def test_without_memory_counter_memory_is_estimated(tmp_path: Path) -> None:
    running = Meters(gpus=False, powercap=write_counters(tmp_path, 0, ["intel-rapl:0"]))
    burn(0.05)
    write_counters(tmp_path, 1, ["intel-rapl:0"])
    reading = running.read()
    assert [(meter["meter"], meter["measured"]) for meter in reading["meters"]] == [
        ("rapl", True),
        ("memory_model", False),
    ]
    assert not reading["measured"]


def test_a_counter_that_stands_still_is_not_measured(tmp_path: Path) -> None:
    running = Meters(gpus=False, powercap=write_counters(tmp_path, 0))
    burn(0.05)
    reading = running.read()
    assert not reading["measured"]
    assert meter_named(reading, "cpu_time_model")["joules"] > 0


def test_the_estimate_grows_with_cpu_time_and_names_its_model(tmp_path: Path) -> None:
    running = Meters(gpus=False, powercap=tmp_path)
    burn(0.2)
    first = running.read()
    burn(0.4)
    second = running.read()
    grown = meter_named(second, "cpu_time_model")["joules"] - meter_named(first, "cpu_time_model")["joules"]
    assert grown == pytest.approx(0.4 * 4, rel=0.3)
    assert second["joules"] > first["joules"] > 0
    assert all(not meter["measured"] and "estimate" in (meter["model"] or "") for meter in second["meters"])


BURNING_CHILD = """
import sys, time
ballast = bytearray(120_000_000)
while time.process_time() < 0.6: sum(range(1000))
print("done", flush=True)
sys.stdin.read()
"""


def test_children_count_while_they_run_and_after_they_ended() -> None:
    before_seconds = cpu_seconds_of_process_tree()
    with subprocess.Popen(
        [sys.executable, "-c", BURNING_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        running_seconds = cpu_seconds_of_process_tree() - before_seconds
        with_child_bytes = peak_memory_bytes_of_process_tree()
        own_bytes = psutil.Process().memory_info().rss
    ended_seconds = cpu_seconds_of_process_tree() - before_seconds
    assert 0.55 <= running_seconds < 1.5
    assert running_seconds - 0.05 <= ended_seconds < 1.5, "counted once, not as a running and as a finished child"
    assert with_child_bytes > own_bytes + 100_000_000
    assert peak_memory_bytes_of_process_tree() >= 120_000_000, "an ended child's peak is remembered"


def test_children_of_children_and_of_threads_are_found() -> None:
    command = [sys.executable, "-c", "import subprocess as s; print(s.Popen(['sleep', '60']).pid, flush=True); input()"]
    with ThreadPoolExecutor(1) as pool:
        child = pool.submit(subprocess.Popen, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE).result()
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        found = {process.pid for process in processes._children()}
        assert {child.pid, grandchild} <= found == {process.pid for process in psutil.Process().children(True)}
    psutil.Process(grandchild).kill()
    child.communicate(b"\n")


class CountingGpu:
    """A board with an energy counter, in millijoules."""

    def __init__(self, start_millijoules: int) -> None:
        self.millijoules = start_millijoules

    def supports_get_total_energy_consumption(self) -> bool:
        return True

    def get_total_energy_consumption(self) -> int:
        return self.millijoules

    def get_average_power_usage(self) -> int:
        raise AssertionError("a board with a counter is not integrated")


class PowerOnlyGpu(CountingGpu):
    """A board that tells its power only: 200 W."""

    def supports_get_total_energy_consumption(self) -> bool:
        return False

    def get_total_energy_consumption(self) -> int:
        raise AssertionError("no counter")

    def get_average_power_usage(self) -> int:
        return 200_000


def test_gpu_counters_are_summed_from_the_start() -> None:
    boards = [CountingGpu(7_000_000), CountingGpu(9_000_000)]
    gpus = Gpus(boards)
    boards[0].millijoules += 2_500
    boards[1].millijoules += 500
    assert gpus.joules() == pytest.approx(3)
    assert "counters of 2 GPU" in gpus.model


def test_gpu_power_is_integrated_where_there_is_no_counter() -> None:
    started = time.monotonic()
    gpus = Gpus([PowerOnlyGpu(0)])
    time.sleep(0.1)
    assert gpus.joules() == pytest.approx(200 * (time.monotonic() - started), rel=0.1)


def test_an_unreadable_gpu_is_told_and_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "_gpu_kind", lambda: "nvml")
    monkeypatch.setattr(meters, "_find_gpus", lambda: None)
    gpu = meter_named(Meters(powercap=tmp_path).read(), "nvml")
    assert (gpu["joules"], gpu["measured"]) == (0, False)
    assert "could not be read" in (gpu["model"] or "")


def test_readings_of_several_nodes_add_up() -> None:
    def node(joules: float, measured: bool) -> Reading:
        one = meters.MeterReading(meter="nvml", joules=joules, measured=measured, model=None)
        return Reading(joules=joules, measured=measured, meters=[one])

    assert combine([node(2, True), node(3, True)]) == node(5, True)
    mixed = combine([node(2, True), node(3, False)])
    assert mixed["joules"] == 5
    assert not mixed["measured"]


def test_starting_is_quick_and_imports_nothing_heavy_without_devices() -> None:
    script = """
import sys, time
from pipeline.energy import processes
from pipeline.energy.meters import start_meters
started = time.perf_counter()
start_meters(gpus=False).read()
assert time.perf_counter() - started < 0.3, time.perf_counter() - started
assert not {"torch", "zeus", "codecarbon", "numpy"} & set(sys.modules)
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], check=True, cwd=root)


def test_read_is_cheap_enough_for_a_heartbeat() -> None:
    running = start_meters()
    started = time.perf_counter()
    for _ in range(10):
        running.read()
    assert (time.perf_counter() - started) / 10 < 0.1
