"""Each board is read under its own name, once, by counter or power; a lost board affects only itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.energy.gpu_meter import Gpu, GpuMeter, find_gpu_driver, find_gpu_meter
from pipeline.energy.rapl_and_cray_meters import UnreadableMeter
from pipeline.energy.readings import Reading


class Board:
    """A GPU in zeus: millijoules since the driver was loaded, current milliwatts, limits in milliwatts."""

    def __init__(
        self, joules: float | None = 127_160.0, watts: float = 65.0, limit_watts: float | None = 700.0
    ) -> None:
        self.joules, self.watts, self.limit_watts = joules, watts, limit_watts
        self.lost, self.handle = False, None
        self.name = "NVIDIA H100 80GB HBM3"

    def get_name(self) -> str:
        return self.name

    def _answer(self, value: float | None) -> int:
        if self.lost or value is None:
            raise RuntimeError("GPU is lost")
        return round(value * 1e3)

    def supports_get_total_energy_consumption(self) -> bool:
        return self.joules is not None

    def get_total_energy_consumption(self) -> int:
        return self._answer(self.joules)

    def get_instant_power_usage(self) -> int:
        return self._answer(self.watts)

    def get_average_power_usage(self) -> int:
        return self._answer(self.watts)

    def get_power_management_limit(self) -> int:
        return self._answer(self.limit_watts)


def meter_of(*gpus: Board, kind: str = "nvml") -> GpuMeter:
    meter = find_gpu_meter(kind, lambda _: [(f"GPU-{number}", gpu) for number, gpu in enumerate(gpus)])
    assert isinstance(meter, GpuMeter)
    meter.take_interval_readings(0)
    return meter


def by_part(readings: list[Reading]) -> dict[str, Reading]:
    return {reading.part: reading for reading in readings}


def test_each_board_is_read_by_its_counter(tmp_path: Path) -> None:
    first, second = Board(), Board(joules=5.0)
    meter = meter_of(first, second)
    first.joules, second.joules = 127_160 + 3000.0, 5 + 650.0
    readings = by_part(meter.take_interval_readings(10))
    assert {part: reading.joules for part, reading in readings.items()} == {"GPU-0": 3000, "GPU-1": 650}
    assert not meter.reads_power and meter_of(first, Board(joules=None)).reads_power
    assert all(reading.component == "board" and reading.method == "counter" for reading in readings.values())


def test_board_without_a_counter_is_integrated_from_power() -> None:
    board = Board(joules=None)
    meter = meter_of(board)

    def watts(second: float) -> float:
        return 300 + 200 * math.sin(second / 5)

    board.watts = watts(0)
    meter.take_interval_readings(0)  # begins at the current power
    for second in range(1, 61):
        board.watts = watts(second)
        meter.sample(second)
    (reading,) = meter.take_interval_readings(60)
    integral = 300 * 60 - 200 * 5 * (math.cos(60 / 5) - 1)
    assert reading.method == "power" and reading.joules == pytest.approx(integral, rel=0.01)


def test_counter_reset_by_the_driver_is_not_measured() -> None:
    board = Board()
    meter = meter_of(board)
    board.joules = 12.0
    (reading,) = meter.take_interval_readings(10)
    assert reading.joules is None and reading.problem == "nvml GPU-0: its counter was reset"


def test_board_that_falls_off_the_bus_affects_only_itself() -> None:
    first, second = Board(), Board()
    meter = meter_of(first, second)
    first.joules, second.lost = 127_260.0, True
    readings = by_part(meter.take_interval_readings(10))
    assert readings["GPU-0"].joules == 100
    assert readings["GPU-1"].joules is None
    assert readings["GPU-1"].problem == "nvml GPU-1: it could not be read (GPU is lost)"
    first.joules, second.joules, second.lost = 127_300.0, 127_500.0, False
    assert by_part(meter.take_interval_readings(20))["GPU-1"].joules is None  # the time of its return is unknown
    first.joules, second.joules = 127_400.0, 127_600.0
    assert by_part(meter.take_interval_readings(30))["GPU-1"].joules == 100


def test_board_lost_before_startup_affects_only_itself() -> None:
    class NeverThere(Board):
        def supports_get_total_energy_consumption(self) -> bool:
            return bool(self._answer(1.0))

    first, second = Board(), NeverThere()
    second.lost = True
    meter = meter_of(first, second)
    first.joules = 127_260.0
    readings = by_part(meter.take_interval_readings(10))
    assert readings["GPU-0"].joules == 100
    assert readings["GPU-1"].problem == "nvml GPU-1: it could not be read (GPU is lost)"


def test_reading_above_the_board_limit_is_rejected() -> None:
    board = Board(limit_watts=700)
    meter = meter_of(board)
    board.joules = 127_160 + 10 * 700 * 1.2 + 1
    (reading,) = meter.take_interval_readings(10)
    assert reading.problem == "nvml GPU-0: it shows 840 W, and such a part can draw 700 W" and reading.joules is None


def test_board_without_a_power_limit_gets_the_hardware_maximum() -> None:
    board = Board(limit_watts=None)
    meter = meter_of(board)
    board.joules = 127_160 + 10 * 1500.0
    assert meter.take_interval_readings(10)[0].joules == 15_000


@pytest.mark.parametrize("answers", [True, False])
def test_second_die_of_a_card_is_not_a_board(answers: bool) -> None:
    """AMD SMI reports an MI250X's energy under the first of its two dies; under the second it is 0, or an error."""
    dies = [Board(1000.0, 90.0), Board(0.0, 0.0), Board(2000.0, 95.0), Board(0.0, 0.0)]
    for die in dies:
        die.name = "AMD Instinct MI250X"
    dies[1].lost = dies[3].lost = not answers
    meter = meter_of(*dies, kind="amd_smi")
    dies[0].joules, dies[2].joules = 6000.0, 7000.0
    readings = by_part(meter.take_interval_readings(10))
    assert {part: reading.joules for part, reading in readings.items()} == {"GPU-0": 5000, "GPU-2": 5000}
    assert {reading.meter for reading in readings.values()} == {"amd_smi"}
    assert meter.gpus == ["GPU-0", "GPU-0", "GPU-2", "GPU-2"]


def test_unresponsive_single_die_board_is_still_a_board() -> None:
    dies = [Board(), Board()]
    for die in dies:
        die.name = "AMD Instinct MI300A"
    dies[1].lost = True
    meter = meter_of(*dies, kind="amd_smi")
    dies[0].joules = 127_260.0
    readings = by_part(meter.take_interval_readings(10))
    assert readings["GPU-0"].joules == 100 and readings["GPU-1"].joules is None and meter.gpus == ["GPU-0", "GPU-1"]


def test_unresponsive_driver_is_reported_in_each_interval() -> None:
    def broken(_: str) -> list[tuple[str, Gpu]]:
        raise RuntimeError("driver/library version mismatch")

    meter = find_gpu_meter("nvml", broken)
    assert isinstance(meter, UnreadableMeter)
    (reading,) = meter.take_interval_readings(10)
    assert reading.joules is None and reading.component == "board"
    assert reading.problem == (
        "nvml: there are GPUs, but their energy cannot be read (driver/library version mismatch)"
    )


@pytest.mark.parametrize(
    ("names", "hidden", "kind"),
    [
        (["nvidia0", "nvidiactl"], None, "nvml"),
        (["nvidia0"], "", None),
        (["kfd"], None, "amd_smi"),
        (["nvidiactl"], None, None),
    ],
)
def test_nothing_heavy_is_imported_without_boards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], hidden: str | None, kind: str | None
) -> None:
    touch: Callable[[str], None] = lambda name: (tmp_path / name).touch()  # noqa: E731
    for name in names:
        touch(name)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert find_gpu_driver(tmp_path) == kind
    assert find_gpu_meter(None) is None
