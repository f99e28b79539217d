"""A Cray node tells its parts by stamps of its own; what is stale, reset or absurd is not measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.energy import meters
from pipeline.energy.node_meter import find_meters
from pipeline.energy.readings import Reading

STARTED_MICROSECONDS = 1_460_038_098_391_936


class Node:
    """A folder of counters in the form of /sys/cray/pm_counters; `joules` sets what they show at a second."""

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


def begun(node: Node) -> meters.PmCounters:
    meter = meters.find_pm_counters(node.folder)
    assert meter is not None
    meter.take(0)
    return meter


def by_part(readings: list[Reading]) -> dict[tuple[str, str], Reading]:
    return {(reading.component, reading.part): reading for reading in readings}


def test_the_node_and_each_of_its_parts_are_read(node: Node) -> None:
    meter = begun(node)
    node.show(10, energy=34_304_186, cpu_energy=9_002_000, memory_energy=4_000_500, **node.accelerators(4000))
    told = {part: reading.joules for part, reading in by_part(meter.take(10)).items()}
    boards = {("board", f"accel{number}"): 4000.0 for number in range(4)}
    assert told == {("node", ""): 21_000, ("package", "processors"): 2000, ("dram", "memory"): 500} | boards


def test_counters_that_nobody_renews_are_stale(node: Node) -> None:
    meter = begun(node)
    node.show(10, fresh=False, energy=34_284_186)
    reading = by_part(meter.take(10))["node", ""]
    assert reading.joules is None
    assert reading.problem == "pm_counters: the counters are stale, freshness does not go up"
    node.show(20, energy=34_290_000)
    meter.read(20)
    node.show(22, energy=34_292_000)
    assert by_part(meter.take(22))["node", ""].joules is None  # a part of this interval was stale
    node.show(30, energy=34_300_000)
    assert by_part(meter.take(30))["node", ""].joules == 8000


def test_a_look_sooner_than_the_controller_s_next_one_is_not_stale(node: Node) -> None:
    meter = begun(node)
    meter.read(0.05)
    node.show(1, energy=34_283_986)
    assert by_part(meter.take(1))["node", ""].joules == 800


def test_a_reset_and_an_absurd_value_are_named(node: Node) -> None:
    meter = begun(node)
    node.show(10, energy=12, cpu_energy=9_900_000, memory_energy=4_000_500)
    told = by_part(meter.take(10))
    assert told["node", ""].problem == "pm_counters: its counter was reset"
    assert told["package", "processors"].problem == (
        "pm_counters processors: it shows 90,000 W, and such a part can draw 1,000 W"
    )
    assert told["node", ""].joules is None and told["package", "processors"].joules is None
    assert told["dram", "memory"].joules == 500


def test_a_file_that_is_cut_or_gone_loses_its_part_alone(node: Node) -> None:
    meter = begun(node)
    node.show(10, energy=34_284_186, cpu_energy=9_002_000)
    (node.folder / "memory_energy").write_text("40005")
    (node.folder / "accel2_energy").unlink()
    told = by_part(meter.take(10))
    assert told["dram", "memory"].problem == "pm_counters memory: its counter could not be read"
    assert told["board", "accel2"].joules is None
    assert told["node", ""].joules == 1000


@pytest.mark.parametrize("stamp", [0.0, -5.0, 86_400.0])
def test_stamps_that_do_not_follow_the_clock_make_no_absurd_value_true(node: Node, stamp: float) -> None:
    meter = begun(node)
    node.show(stamp, energy=934_283_186)
    reading = by_part(meter.take(10))["node", ""]
    assert reading.joules is None
    assert reading.problem == f"pm_counters: its stamps went on by {stamp:,.1f} s in 10.0 s"
    node.show(stamp + 10, energy=934_293_186)
    assert by_part(meter.take(20))["node", ""].joules == 10_000


def test_stamps_may_count_from_any_moment(tmp_path: Path) -> None:
    """The first look is one of an HPE Cray EX255a at 724 W, as published with a monitor's tests; the second follows."""
    (tmp_path / "energy").write_text("12044825101 J 7810213855886 us\n")
    (tmp_path / "freshness").write_text("60043284\n")
    meter = meters.find_pm_counters(tmp_path)
    assert meter is not None
    meter.take(0)
    (tmp_path / "energy").write_text("12044832341 J 7810223855886 us\n")
    (tmp_path / "freshness").write_text("60043384\n")
    assert meter.take(10)[0].joules == 7240


def test_a_part_that_cannot_be_read_at_the_first_look_is_told_of(node: Node) -> None:
    (node.folder / "cpu_energy").write_text("")
    meter = begun(node)
    node.show(5, energy=34_285_186)
    assert by_part(meter.take(5))["package", "processors"].problem == (
        "pm_counters processors: its counter could not be read"
    )
    node.show(10, cpu_energy=9_001_000)
    meter.take(10)
    node.show(20, cpu_energy=9_002_000)
    assert by_part(meter.take(20))["package", "processors"].joules == 1000


def test_a_node_without_accelerators_has_no_boards(node: Node) -> None:
    node.show(0, **{f"accel{number}_energy": 0 for number in range(4)})
    meter = begun(node)
    node.show(10, energy=34_287_186, cpu_energy=9_001_000, memory_energy=4_000_500)
    assert {reading.component for reading in meter.take(10)} == {"node", "package", "dram"}


def test_a_file_of_rubbish_loses_its_part_alone(node: Node) -> None:
    meter = begun(node)
    node.show(10, energy=34_287_186)
    (node.folder / "cpu_energy").write_bytes(b"\xff\xfe")
    told = by_part(meter.take(10))
    assert told["node", ""].joules == 4000
    assert told["package", "processors"].problem == "pm_counters processors: its counter could not be read"


def test_beside_them_no_other_meter_of_the_same_parts_is_read(node: Node, tmp_path: Path) -> None:
    powercap = tmp_path / "powercap/intel-rapl:0"
    powercap.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("max_energy_range_uj", "1000"), ("energy_uj", "5")):
        (powercap / name).write_text(text)
    (meter,) = find_meters(powercap.parent, node.folder, tmp_path / "none")
    assert isinstance(meter, meters.PmCounters)
    (meter,) = find_meters(powercap.parent, tmp_path / "none", tmp_path / "none")
    assert not isinstance(meter, meters.PmCounters)
    assert find_meters(tmp_path / "none", tmp_path / "none", tmp_path / "none") == []


def test_two_dies_of_an_accelerator_are_told_by_its_one_counter(node: Node, tmp_path: Path) -> None:
    devices = tmp_path / "kfd"
    for number, gpu in enumerate(["0", "0", *(str(4000 + die) for die in range(8))]):  # processors have the number 0
        (devices / str(number)).mkdir(parents=True)
        (devices / str(number) / "gpu_id").write_text(f"{gpu}\n")
    meter = meters.find_pm_counters(node.folder, devices)
    assert meter is not None
    assert meter.gpus == [f"accel{number}" for number in range(4) for _ in range(2)]
    alone = meters.find_pm_counters(node.folder, tmp_path / "none")
    assert alone is not None and alone.gpus == [f"accel{number}" for number in range(4)]
