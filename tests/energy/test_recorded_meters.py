"""Recorded readings of real nodes and boards, replayed through the meters; SOURCES.md has their origin.

Boards are read through the real zeus: only the vendor's library below it is a stand-in with recorded answers.
If one moment was recorded, the second poll follows from the recorded power.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from zeus.device.gpu import amd, nvidia

from pipeline.energy import gpu_meter, rapl_and_cray_meters
from pipeline.energy.readings import Reading

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("recorded_meters.json").read_text())
AMD: dict[str, Any] = RECORDED["amd_smi"]
COMPONENTS = {"energy": ("node", ""), "cpu_energy": ("package", "processors"), "memory_energy": ("dram", "memory")}


@pytest.mark.parametrize("node", RECORDED["pm_counters"], ids=lambda node: node["node"].split(",")[0])
def test_each_counter_of_a_real_node_is_read_once(node: dict[str, Any], tmp_path: Path) -> None:
    def show(second: int) -> None:
        stamp = (node["microseconds"] or 1_751_400_000_000_000) + second * 1_000_000
        for name, joules in node["joules"].items():
            (tmp_path / name).write_text(f"{joules + second * node['watts'][name]} J {stamp} us\n")
            power = f"{node['watts'][name]} W {stamp} us\n"
            (tmp_path / name.replace("energy", "power")).write_text(power)
        (tmp_path / "freshness").write_text(f"{60043284 + 10 * second}\n")

    for name, text in node["others"].items():
        (tmp_path / name).write_text(f"{text}\n")
    show(0)
    meter = rapl_and_cray_meters.find_pm_counters(tmp_path, tmp_path / "none")
    assert meter is not None
    meter.take_interval_readings(0)
    show(10)
    readings = {(reading.component, reading.part): reading.joules for reading in meter.take_interval_readings(10)}
    parts = {name: COMPONENTS.get(name, ("board", name.removesuffix("_energy"))) for name in node["watts"]}
    assert readings == {parts[name]: 10 * watts for name, watts in node["watts"].items()}


def test_single_accelerator_file_of_hpe_has_no_number(tmp_path: Path) -> None:
    for name in ("energy", "accel_energy"):
        (tmp_path / name).write_text("1000 J 1460038098391936 us\n")
    meter = rapl_and_cray_meters.find_pm_counters(tmp_path, tmp_path / "none")
    assert meter is not None and list(meter.gpus) == ["accel"]


class Amdsmi:
    """AMD's library: name, energy counter and powers of each GPU, at a second set by a test."""

    AmdSmiInitFlags = SimpleNamespace(INIT_AMD_GPUS=0)

    class AmdSmiException(Exception):
        pass

    class AmdSmiLibraryException(AmdSmiException):
        pass

    def __init__(self, names: list[str], **powers: list[int | str]) -> None:
        self.second, self.names, self.powers = 0.0, names, powers
        self.resolution = float(AMD["MI100"]["counter_resolution"])  # in microjoules, as of all boards
        self.key = "energy_accumulator"  # it was `power` until ROCm 6.2
        self.limit_watts = int(AMD["MI250"]["limit_watts"])

    def microjoules(self, gpu: int) -> float:
        return float(AMD["MI250"]["microjoules"]) + 1e6 * self.second * int(self.powers["average"][gpu])

    def amdsmi_init(self, flags: int) -> None: ...
    def amdsmi_shut_down(self) -> None: ...

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(len(self.names)))

    def amdsmi_get_gpu_enumeration_info(self, gpu: int) -> dict[str, int]:
        return {"hip_id": gpu}

    def amdsmi_get_gpu_asic_info(self, gpu: int) -> dict[str, str]:
        return {"market_name": self.names[gpu]}

    def amdsmi_get_power_info(self, gpu: int) -> dict[str, int | str]:
        return {f"{kind}_socket_power": watts[gpu] for kind, watts in self.powers.items()}

    def amdsmi_get_power_cap_info(self, gpu: int) -> dict[str, int]:
        return {"power_cap": self.limit_watts * 1_000_000}

    def amdsmi_get_energy_count(self, gpu: int) -> dict[str, float]:
        counter = 0 if self.powers["average"][gpu] == 0 else round(self.microjoules(gpu) / self.resolution)
        return {self.key: counter, "counter_resolution": self.resolution, "timestamp": 0}

    def wait(self, seconds: float) -> None:
        self.second += seconds


def begun(monkeypatch: pytest.MonkeyPatch, library: Amdsmi) -> gpu_meter.GpuMeter:
    """Return the meter of AMD's boards after its first poll."""
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(amd, "amdsmi", library)
    monkeypatch.setattr(amd, "time", SimpleNamespace(sleep=library.wait))
    amd._hip_to_amdsmi_handle.cache_clear()
    meter = gpu_meter.find_gpu_meter("amd_smi", lambda _: [(f"GPU-{gpu.gpu_index}", gpu) for gpu in amd.AMDGPUs().gpus])
    amd._hip_to_amdsmi_handle.cache_clear()
    assert isinstance(meter, gpu_meter.GpuMeter)
    meter.take_interval_readings(library.second)
    return meter


def after(meter: gpu_meter.GpuMeter, library: Amdsmi, seconds: int) -> dict[str, Reading]:
    """Return the readings after some seconds, with a poll at each, as the sampler does."""
    for _ in range(seconds):
        library.wait(1)
        meter.sample(library.second)
    return {reading.part: reading for reading in meter.take_interval_readings(library.second)}


@pytest.mark.parametrize("key", ["power", "energy_accumulator"])
@pytest.mark.parametrize("name", AMD["MI250X"]["names"])
def test_four_cards_of_two_dies_are_four_boards(monkeypatch: pytest.MonkeyPatch, name: str, key: str) -> None:
    watts = AMD["MI250X"]["average_watts"]
    library = Amdsmi([name] * 8, average=watts, current=["N/A"] * 8)
    library.key = key
    meter = begun(monkeypatch, library)
    readings = after(meter, library, 10)
    assert {part: reading.method for part, reading in readings.items()} == dict.fromkeys(
        [f"GPU-{gpu}" for gpu in (0, 2, 4, 6)], "counter"
    )
    assert [reading.joules for reading in readings.values()] == pytest.approx(
        [10 * one for one in watts[::2]], rel=1e-3
    )
    assert meter.gpus == [f"GPU-{gpu // 2 * 2}" for gpu in range(8)]


@pytest.mark.parametrize("kind", ["MI200 power", "MI300 power"])
def test_board_with_a_stuck_counter_is_read_by_power(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """MI200 reports only average power, MI300 only current power; the counter is a stuck one of an MI100."""
    powers = {name.split("_")[0]: watts for name, watts in AMD[kind].items() if name != "source"}
    library = Amdsmi(["AMD Instinct"], **{name: [watts] for name, watts in powers.items()})
    library.microjoules = lambda gpu: AMD["MI100"]["energy_counter"] * library.resolution  # type: ignore[method-assign]
    library.limit_watts = 750
    meter = begun(monkeypatch, library)
    (reading,) = after(meter, library, 10).values()
    (watts,) = (watts for watts in powers.values() if watts != "N/A")
    assert (reading.method, reading.joules, reading.problem) == ("power", 10 * watts, None)


def test_counters_of_two_mi210_give_43_watts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = AMD["MI210"]["joules_each_second"]
    library = Amdsmi([AMD["MI210"]["name"]] * 2, average=[43, 43], current=["N/A"] * 2)
    # zeus polls them half a second apart at startup.
    library.microjoules = lambda gpu: (  # type: ignore[method-assign]
        1e6 * (seen[gpu][int(library.second)] + (43 * (library.second % 1) if library.second < 1 else 0))
    )
    monkeypatch.setattr(library, "wait", lambda seconds: setattr(library, "second", library.second + seconds))
    meter = begun(monkeypatch, library)
    library.second = 0.0
    meter.take_interval_readings(0.0)
    library.second = 3.0
    readings = meter.take_interval_readings(3.0)
    assert [reading.method for reading in readings] == ["counter", "counter"]
    assert [(reading.joules or 0) / 3 for reading in readings] == pytest.approx([42.69, 43.17], abs=0.01)


def test_decreasing_counter_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = AMD["backwards"]["energy_counters"]
    library = Amdsmi(["AMD Instinct"], average=[90], current=[90])
    meter = begun(monkeypatch, library)
    counters = iter([first, second])
    library.microjoules = lambda gpu: next(counters) * library.resolution  # type: ignore[method-assign]
    meter.sample(library.second)
    (reading,) = after(meter, library, 0).values()
    assert reading.joules is None and reading.problem is not None and reading.problem.endswith("its counter was reset")


class Nvml:
    """NVIDIA's library for one Turing board; `refused` are the unsupported queries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *refused: str) -> None:
        self.millijoules, self.milliwatts = 0, 0
        value = SimpleNamespace(nvmlReturn=pynvml.NVML_SUCCESS, value=SimpleNamespace())
        if "power" in refused:
            value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
        self._field = value

        def not_known(*_: object) -> None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

        answers = {
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetC2cModeInfoV": not_known,
            "nvmlDeviceGetName": lambda handle: "NVIDIA TITAN RTX",
            "nvmlDeviceGetArchitecture": lambda handle: pynvml.NVML_DEVICE_ARCH_TURING,
            "nvmlDeviceGetPowerManagementLimit": lambda handle: 280_000,
            "nvmlDeviceGetTotalEnergyConsumption": not_known if "energy" in refused else lambda _: self.millijoules,
            "nvmlDeviceGetFieldValues": self._fields,
            "nvmlDeviceGetPowerUsage": not_known if "draw" in refused else lambda _: self.milliwatts,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, answer)
        result = gpu_meter.find_gpu_meter("nvml", lambda _: [("GPU-0", nvidia.NVIDIAGPU(0))])
        assert isinstance(result, gpu_meter.GpuMeter)
        self.meter = result
        self.meter.take_interval_readings(0)

    def _fields(self, handle: object, fields: object) -> list[SimpleNamespace]:
        self._field.value.uiVal = self.milliwatts
        return [self._field]


@pytest.mark.parametrize("seen", RECORDED["nvml"], ids=lambda seen: seen["board"])
def test_nvml_counter_is_in_millijoules(monkeypatch: pytest.MonkeyPatch, seen: dict[str, Any]) -> None:
    nvml = Nvml(monkeypatch)
    nvml.millijoules = seen["millijoules"]
    (reading,) = nvml.meter.take_interval_readings(seen["seconds"])
    assert reading.method == "counter" and reading.joules == seen["millijoules"] / 1e3
    assert reading.joules / seen["seconds"] == pytest.approx(seen["watts_about"], rel=0.05)


def test_driver_with_power_but_no_energy_is_read_by_power(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(monkeypatch, "energy")
    nvml.milliwatts = 16_000
    nvml.meter.take_interval_readings(10)
    (reading,) = nvml.meter.take_interval_readings(20)
    assert (reading.method, reading.joules) == ("power", 160)


def test_driver_with_power_draw_alone_is_read_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a Tesla K40m, and of each driver before 530: there is no current and no average power."""
    nvml = Nvml(monkeypatch, "energy", "power")
    nvml.milliwatts = 60_160
    nvml.meter.take_interval_readings(10)
    (reading,) = nvml.meter.take_interval_readings(20)
    assert reading.joules == pytest.approx(601.6) and reading.architecture == "turing"


def test_board_without_power_and_energy_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Jetson Orin: NVML initializes, and every query is Not Supported."""
    nvml = Nvml(monkeypatch, "energy", "power", "draw")
    (reading,) = nvml.meter.take_interval_readings(10)
    assert reading.joules is None and reading.problem == "nvml GPU-0: it could not be read (Not Supported)"
