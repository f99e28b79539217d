"""RAPL's packages and memory are counted once; what the counters cannot tell is not measured, and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.energy import meters
from pipeline.energy.meters import UnreadableMeter
from pipeline.energy.readings import Reading

# Zones as the kernel shows them on a server of two packages (Documentation/power/powercap): name and range.
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
    """A powercap folder whose counters a test sets, in joules."""

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


def begun(server: Server, now: float = 0.0) -> meters.Rapl:
    meter = meters.find_rapl(server.folder)
    assert isinstance(meter, meters.Rapl)
    meter.take(now)
    return meter


def by_part(readings: list[Reading]) -> dict[str, Reading]:
    assert len({reading.part for reading in readings}) == len(readings)
    return {reading.part: reading for reading in readings}


def joules(readings: list[Reading]) -> dict[str, float | None]:
    return {part: reading.joules for part, reading in by_part(readings).items()}


def test_packages_and_memory_are_counted_and_nothing_twice(server: Server) -> None:
    meter = begun(server)
    server.show(400, 16, 350, 27)
    readings = meter.take(10)
    assert joules(readings) == pytest.approx({"package-0": 300, "dram-0": 6, "package-1": 150, "dram-1": 7})
    assert {reading.component for reading in readings} == {"package", "dram"}
    assert all(reading.label == "measured" and reading.method == "counter" for reading in readings)


def test_looks_between_two_takes_lose_nothing(server: Server) -> None:
    meter = begun(server)
    for second in range(1, 10):
        server.show(100 + 20 * second, 10 + second)
        meter.read(second)
    assert joules(meter.take(9))["package-0"] == pytest.approx(180)
    server.show(290, 21)
    assert joules(meter.take(10))["package-0"] == pytest.approx(10)


def test_a_counter_that_wraps_around_goes_on(server: Server) -> None:
    server.show(package_0=RANGE_MICROJOULES / 1e6 - 50)
    meter = begun(server)
    server.show(package_0=70)
    assert joules(meter.take(2))["package-0"] == pytest.approx(120)


def test_a_counter_that_is_reset_is_not_measured_and_the_others_are(server: Server) -> None:
    server.show(package_0=127_160)
    meter = begun(server)
    server.show(package_0=5, package_1=300, dram_0=11, dram_1=21)
    found = by_part(meter.take(10))
    assert found["package-0"].joules is None
    assert found["package-0"].problem == "rapl package-0: its counter was reset"
    assert found["package-1"].joules == pytest.approx(100) and found["package-1"].problem is None
    server.show(package_0=905, package_1=301, dram_0=12, dram_1=22)
    assert joules(meter.take(20))["package-0"] == pytest.approx(900)


def test_a_counter_that_cannot_be_read_for_a_moment_is_a_gap(server: Server) -> None:
    meter = begun(server)
    (server.folder / "intel-rapl:1" / "energy_uj").rename(server.folder / "away")
    meter.read(2)
    (server.folder / "away").rename(server.folder / "intel-rapl:1" / "energy_uj")
    server.show(300, 12, 400, 22)
    found = by_part(meter.take(4))
    assert found["package-1"].problem == "rapl package-1: its counter could not be read"
    assert found["package-1"].joules is None and found["package-0"].joules == pytest.approx(200)
    server.show(310, 13, 500, 23)
    assert joules(meter.take(6))["package-1"] == pytest.approx(100)


def test_a_counter_that_stands_still_is_no_measurement(server: Server) -> None:
    meter = begun(server)
    found = by_part(meter.take(10))
    assert found["package-0"].joules is None and "stands still" in str(found["package-0"].problem)


def test_more_than_a_package_can_draw_is_not_believed(server: Server) -> None:
    meter = begun(server)
    server.show(100 + 10 * 205 * 1.5 * 1.2 + 1)
    found = by_part(meter.take(10))
    assert found["package-0"].joules is None
    assert found["package-0"].problem == "rapl package-0: it shows 369 W, and such a part can draw 308 W"


def test_zero_of_a_short_interval_is_no_measurement_either(server: Server) -> None:
    meter = begun(server)
    assert joules(meter.take(1.5))["package-0"] is None


def test_a_leap_in_no_time_is_not_believed(server: Server) -> None:
    meter = begun(server)
    server.show(100 + 500)
    assert joules(meter.take(0))["package-0"] is None


def test_a_package_that_cannot_be_read_from_the_start_is_not_left_out(server: Server) -> None:
    (server.folder / "intel-rapl:1" / "energy_uj").unlink()
    meter = begun(server)
    server.show(400, 16, 350, 27)
    (server.folder / "intel-rapl:1" / "energy_uj").unlink()
    found = by_part(meter.take(10))
    assert found["package-0"].joules == pytest.approx(300)
    assert found["package-1"].joules is None
    assert found["package-1"].problem == "rapl package-1: its counter could not be read"


def test_a_zone_whose_name_is_rubbish_stops_no_other(server: Server) -> None:
    (server.folder / "intel-rapl:2" / "name").write_bytes(b"\xff\xfe")
    assert isinstance(meters.find_rapl(server.folder), meters.Rapl)


def test_counters_that_only_root_may_read_are_said_to_be_so(server: Server) -> None:
    for file in server.folder.glob("*/energy_uj"):
        file.unlink()
    meter = meters.find_rapl(server.folder)
    assert isinstance(meter, UnreadableMeter)
    (reading,) = meter.take(5)
    assert reading.joules is None and reading.problem == "rapl: only root may read its counters on this node"


def test_a_machine_without_counters_has_no_such_meter(tmp_path: Path) -> None:
    assert meters.find_rapl(tmp_path / "none") is None
