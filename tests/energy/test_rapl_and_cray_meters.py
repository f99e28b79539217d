"""RAPL packages and memory are counted once; unreadable counters are not measured, with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.energy import rapl_and_cray_meters
from pipeline.energy.meter_recorder import find_meters
from pipeline.energy.rapl_and_cray_meters import UnreadableMeter
from pipeline.energy.readings import Reading

# Zones of the kernel on a server of two packages (Documentation/power/powercap): name and range.
RANGE_MICROJOULES = 262_143_328_850
ZONES = {
    "intel-rapl:0": ("package-0", RANGE_MICROJOULES),
    "intel-rapl:0:0": ("dram", 65_712_999_613),
    "intel-rapl:0:1": ("core", RANGE_MICROJOULES),
    "intel-rapl:1": ("package-1", RANGE_MICROJOULES),
    "intel-rapl:1:0": ("dram", 65_712_999_613),
    "intel-rapl:2": ("psys", RANGE_MICROJOULES),
    "intel-rapl-mmio:0": ("package-0", RANGE_MICROJOULES),
}


class Server:
    """A powercap folder with counters set by a test, in joules."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for zone, (name, whole) in ZONES.items():
            (folder / zone).mkdir()
            (folder / zone / "name").write_text(f"{name}\n")
            (folder / zone / "max_energy_range_uj").write_text(f"{whole}\n")
        for zone in ("intel-rapl:0", "intel-rapl:1"):
            (folder / zone / "constraint_0_max_power_uw").write_text("205000000\n")
        self.show()

    def show(self, package_0: float = 100, dram_0: float = 10, package_1: float = 200, dram_1: float = 20) -> None:
        shown = {"intel-rapl:0": package_0, "intel-rapl:0:0": dram_0, "intel-rapl:1": package_1}
        shown |= {"intel-rapl:1:0": dram_1, "intel-rapl:0:1": 5000, "intel-rapl:2": 7000, "intel-rapl-mmio:0": 9000}
        for zone, joules in shown.items():
            (self.folder / zone / "energy_uj").write_text(f"{round(joules * 1e6)}\n")


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def begun(server: Server, now: float = 0.0) -> rapl_and_cray_meters.Rapl:
    meter = rapl_and_cray_meters.find_rapl(server.folder)
    assert isinstance(meter, rapl_and_cray_meters.Rapl)
    meter.take_interval_readings(now)
    return meter


def by_part(readings: list[Reading]) -> dict[str, Reading]:
    assert len({reading.part for reading in readings}) == len(readings)
    return {reading.part: reading for reading in readings}


def joules(readings: list[Reading]) -> dict[str, float | None]:
    return {part: reading.joules for part, reading in by_part(readings).items()}


def test_packages_and_memory_are_counted_once(server: Server) -> None:
    meter = begun(server)
    server.show(400, 16, 350, 27)
    readings = meter.take_interval_readings(10)
    assert joules(readings) == pytest.approx({"package-0": 300, "dram-0": 6, "package-1": 150, "dram-1": 7})
    assert {reading.component for reading in readings} == {"package", "dram"}
    assert all(reading.label == "measured" and reading.method == "counter" for reading in readings)


def test_polls_between_two_readings_lose_nothing(server: Server) -> None:
    meter = begun(server)
    for second in range(1, 10):
        server.show(100 + 20 * second, 10 + second)
        meter.sample(second)
    assert joules(meter.take_interval_readings(9))["package-0"] == pytest.approx(180)
    server.show(290, 21)
    assert joules(meter.take_interval_readings(10))["package-0"] == pytest.approx(10)


def test_counter_wraparound_is_handled(server: Server) -> None:
    server.show(package_0=RANGE_MICROJOULES / 1e6 - 50)
    meter = begun(server)
    server.show(package_0=70)
    assert joules(meter.take_interval_readings(2))["package-0"] == pytest.approx(120)


def test_reset_counter_is_not_measured_and_others_are(server: Server) -> None:
    server.show(package_0=127_160)
    meter = begun(server)
    server.show(package_0=5, package_1=300, dram_0=11, dram_1=21)
    result = by_part(meter.take_interval_readings(10))
    assert result["package-0"].joules is None
    assert result["package-0"].problem == "rapl package-0: its counter was reset"
    assert result["package-1"].joules == pytest.approx(100) and result["package-1"].problem is None
    server.show(package_0=905, package_1=301, dram_0=12, dram_1=22)
    assert joules(meter.take_interval_readings(20))["package-0"] == pytest.approx(900)


def test_temporarily_unreadable_counter_is_a_gap(server: Server) -> None:
    meter = begun(server)
    (server.folder / "intel-rapl:1" / "energy_uj").rename(server.folder / "away")
    meter.sample(2)
    (server.folder / "away").rename(server.folder / "intel-rapl:1" / "energy_uj")
    server.show(300, 12, 400, 22)
    result = by_part(meter.take_interval_readings(4))
    assert result["package-1"].problem == "rapl package-1: its counter could not be read"
    assert result["package-1"].joules is None and result["package-0"].joules == pytest.approx(200)
    server.show(310, 13, 500, 23)
    assert joules(meter.take_interval_readings(6))["package-1"] == pytest.approx(100)


def test_stuck_counter_is_not_measured(server: Server) -> None:
    meter = begun(server)
    result = by_part(meter.take_interval_readings(10))
    assert result["package-0"].joules is None and "is stuck" in str(result["package-0"].problem)


def test_reading_above_the_package_limit_is_rejected(server: Server) -> None:
    meter = begun(server)
    server.show(100 + 10 * 205 * 1.5 * 1.2 + 1)
    result = by_part(meter.take_interval_readings(10))
    assert result["package-0"].joules is None
    assert result["package-0"].problem == "rapl package-0: it shows 369 W, and such a part can draw 308 W"


def test_zero_in_a_short_interval_is_not_measured(server: Server) -> None:
    meter = begun(server)
    assert joules(meter.take_interval_readings(1.5))["package-0"] is None


def test_jump_in_zero_time_is_rejected(server: Server) -> None:
    meter = begun(server)
    server.show(100 + 500)
    assert joules(meter.take_interval_readings(0))["package-0"] is None


def test_package_that_is_unreadable_from_the_start_is_reported(server: Server) -> None:
    (server.folder / "intel-rapl:1" / "energy_uj").unlink()
    meter = begun(server)
    server.show(400, 16, 350, 27)
    (server.folder / "intel-rapl:1" / "energy_uj").unlink()
    result = by_part(meter.take_interval_readings(10))
    assert result["package-0"].joules == pytest.approx(300)
    assert result["package-1"].joules is None
    assert result["package-1"].problem == "rapl package-1: its counter could not be read"


def test_zone_with_an_invalid_name_does_not_affect_others(server: Server) -> None:
    (server.folder / "intel-rapl:2" / "name").write_bytes(b"\xff\xfe")
    assert isinstance(rapl_and_cray_meters.find_rapl(server.folder), rapl_and_cray_meters.Rapl)


def test_root_only_counters_are_reported(server: Server) -> None:
    for file in server.folder.glob("*/energy_uj"):
        file.unlink()
    meter = rapl_and_cray_meters.find_rapl(server.folder)
    assert isinstance(meter, UnreadableMeter)
    (reading,) = meter.take_interval_readings(5)
    assert reading.joules is None and reading.problem == "rapl: only root may read its counters on this node"


def test_machine_without_counters_has_no_rapl_meter(tmp_path: Path) -> None:
    assert rapl_and_cray_meters.find_rapl(tmp_path / "none") is None


STARTED_MICROSECONDS = 1_460_038_098_391_936


class Node:
    """A folder of counters in the form of /sys/cray/pm_counters; `joules` sets their values at a second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fresh = 100
        self.show(0, energy=34_283_186, cpu_energy=9_000_000, memory_energy=4_000_000, **self.accelerators(0))

    @staticmethod
    def accelerators(joules: int) -> dict[str, int]:
        return {f"accel{number}_energy": 1_000_000 * (number + 1) + joules for number in range(4)}

    def show(self, second: float, *, fresh: bool = True, **counters: int) -> None:
        self.fresh += round(10 * second) + 1 if fresh else 0
        (self.folder / "freshness").write_text(f"{self.fresh}\n")
        for name, joules in counters.items():
            stamp = STARTED_MICROSECONDS + round(second * 1e6)
            (self.folder / name).write_text(f"{joules} J {stamp} us\n")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def begun_counters(node: Node) -> rapl_and_cray_meters.PmCounters:
    meter = rapl_and_cray_meters.find_pm_counters(node.folder)
    assert meter is not None
    meter.take_interval_readings(0)
    return meter


def counters_by_part(readings: list[Reading]) -> dict[tuple[str, str], Reading]:
    return {(reading.component, reading.part): reading for reading in readings}


def test_node_and_its_parts_are_read(node: Node) -> None:
    meter = begun_counters(node)
    node.show(10, energy=34_304_186, cpu_energy=9_002_000, memory_energy=4_000_500, **node.accelerators(4000))
    readings = {part: reading.joules for part, reading in counters_by_part(meter.take_interval_readings(10)).items()}
    boards = {("board", f"accel{number}"): 4000.0 for number in range(4)}
    assert readings == {("node", ""): 21_000, ("package", "processors"): 2000, ("dram", "memory"): 500} | boards


def test_counters_that_are_not_updated_are_stale(node: Node) -> None:
    meter = begun_counters(node)
    node.show(10, fresh=False, energy=34_284_186)
    reading = counters_by_part(meter.take_interval_readings(10))["node", ""]
    assert reading.joules is None
    assert reading.problem == "pm_counters: the counters are stale, freshness does not rise"
    node.show(20, energy=34_290_000)
    meter.sample(20)
    node.show(22, energy=34_292_000)
    assert (
        counters_by_part(meter.take_interval_readings(22))["node", ""].joules is None
    )  # a part of this interval was stale
    node.show(30, energy=34_300_000)
    assert counters_by_part(meter.take_interval_readings(30))["node", ""].joules == 8000


def test_poll_before_the_next_controller_update_is_not_stale(node: Node) -> None:
    meter = begun_counters(node)
    meter.sample(0.05)
    node.show(1, energy=34_283_986)
    assert counters_by_part(meter.take_interval_readings(1))["node", ""].joules == 800


def test_reset_and_impossible_values_are_reported(node: Node) -> None:
    meter = begun_counters(node)
    node.show(10, energy=12, cpu_energy=9_900_000, memory_energy=4_000_500)
    readings = counters_by_part(meter.take_interval_readings(10))
    assert readings["node", ""].problem == "pm_counters: its counter was reset"
    assert readings["package", "processors"].problem == (
        "pm_counters processors: it shows 90,000 W, and such a part can draw 1,000 W"
    )
    assert readings["node", ""].joules is None and readings["package", "processors"].joules is None
    assert readings["dram", "memory"].joules == 500


def test_truncated_or_missing_file_affects_only_its_part(node: Node) -> None:
    meter = begun_counters(node)
    node.show(10, energy=34_284_186, cpu_energy=9_002_000)
    (node.folder / "memory_energy").write_text("40005")
    (node.folder / "accel2_energy").unlink()
    readings = counters_by_part(meter.take_interval_readings(10))
    assert readings["dram", "memory"].problem == "pm_counters memory: its counter could not be read"
    assert readings["board", "accel2"].joules is None
    assert readings["node", ""].joules == 1000


@pytest.mark.parametrize("stamp", [0.0, -5.0, 86_400.0])
def test_inconsistent_timestamps_do_not_validate_impossible_values(node: Node, stamp: float) -> None:
    meter = begun_counters(node)
    node.show(stamp, energy=934_283_186)
    reading = counters_by_part(meter.take_interval_readings(10))["node", ""]
    assert reading.joules is None
    assert reading.problem == f"pm_counters: its stamps went on by {stamp:,.1f} s in 10.0 s"
    node.show(stamp + 10, energy=934_293_186)
    assert counters_by_part(meter.take_interval_readings(20))["node", ""].joules == 10_000


def test_timestamps_may_start_at_any_epoch(tmp_path: Path) -> None:
    """The first poll is of an HPE Cray EX255a at 724 W, as published with a monitor's tests; the second follows."""
    (tmp_path / "energy").write_text("12044825101 J 7810213855886 us\n")
    (tmp_path / "freshness").write_text("60043284\n")
    meter = rapl_and_cray_meters.find_pm_counters(tmp_path)
    assert meter is not None
    meter.take_interval_readings(0)
    (tmp_path / "energy").write_text("12044832341 J 7810223855886 us\n")
    (tmp_path / "freshness").write_text("60043384\n")
    assert meter.take_interval_readings(10)[0].joules == 7240


def test_part_unreadable_at_the_first_poll_is_reported(node: Node) -> None:
    (node.folder / "cpu_energy").write_text("")
    meter = begun_counters(node)
    node.show(5, energy=34_285_186)
    assert counters_by_part(meter.take_interval_readings(5))["package", "processors"].problem == (
        "pm_counters processors: its counter could not be read"
    )
    node.show(10, cpu_energy=9_001_000)
    meter.take_interval_readings(10)
    node.show(20, cpu_energy=9_002_000)
    assert counters_by_part(meter.take_interval_readings(20))["package", "processors"].joules == 1000


def test_node_without_accelerators_has_no_boards(node: Node) -> None:
    node.show(0, **{f"accel{number}_energy": 0 for number in range(4)})
    meter = begun_counters(node)
    node.show(10, energy=34_287_186, cpu_energy=9_001_000, memory_energy=4_000_500)
    assert {reading.component for reading in meter.take_interval_readings(10)} == {"node", "package", "dram"}


def test_invalid_counter_file_affects_only_its_part(node: Node) -> None:
    meter = begun_counters(node)
    node.show(10, energy=34_287_186)
    (node.folder / "cpu_energy").write_bytes(b"\xff\xfe")
    readings = counters_by_part(meter.take_interval_readings(10))
    assert readings["node", ""].joules == 4000
    assert readings["package", "processors"].problem == "pm_counters processors: its counter could not be read"


def test_pm_counters_replace_other_meters_of_the_same_parts(node: Node, tmp_path: Path) -> None:
    powercap = tmp_path / "powercap/intel-rapl:0"
    powercap.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("max_energy_range_uj", "1000"), ("energy_uj", "5")):
        (powercap / name).write_text(text)
    (meter,) = find_meters(powercap.parent, node.folder, tmp_path / "none")
    assert isinstance(meter, rapl_and_cray_meters.PmCounters)
    (meter,) = find_meters(powercap.parent, tmp_path / "none", tmp_path / "none")
    assert not isinstance(meter, rapl_and_cray_meters.PmCounters)
    assert find_meters(tmp_path / "none", tmp_path / "none", tmp_path / "none") == []


def test_two_dies_of_an_accelerator_share_its_counter(node: Node, tmp_path: Path) -> None:
    devices = tmp_path / "kfd"
    for number, gpu in enumerate(["0", "0", *(str(4000 + die) for die in range(8))]):  # processors have the number 0
        (devices / str(number)).mkdir(parents=True)
        (devices / str(number) / "gpu_id").write_text(f"{gpu}\n")
    meter = rapl_and_cray_meters.find_pm_counters(node.folder, devices)
    assert meter is not None
    assert meter.gpus == [f"accel{number}" for number in range(4) for _ in range(2)]
    alone = rapl_and_cray_meters.find_pm_counters(node.folder, tmp_path / "none")
    assert alone is not None and alone.gpus == [f"accel{number}" for number in range(4)]
