"""Readings of NVML, and of CodeCarbon, next to a second meter; for tests and benchmarks.

GPU_Power_Benchmark (github.com/JimZeyuYang/GPU_Power_Benchmark, MIT, with arXiv 2312.02741) has seconds of NVML's power
next to a meter in the board's supply. ai-energy-validation (github.com/raphischer/ai-energy-validation, no license) has
what CodeCarbon, which adds NVML's counter, RAPL and a constant for memory, says of whole runs, next to a meter at the
socket of the PC.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path, PureWindowsPath
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.energy.attribution.job_energy_attribution import attribute_run
from pipeline.energy.attribution.job_usage_intervals import MeteredJob
from pipeline.energy.attribution.meter_choice import find_accuracy
from pipeline.energy.attribution.node_attribution import EnergyAmount
from pipeline.energy.gpu_meter import GpuMeter
from pipeline.energy.power_model import GENERIC
from pipeline.energy.readings import MeterInterval, Reading

Floats = NDArray[np.float64]

RECORDS = {
    "5050/3090": ("RTX 3090", "ampere", "50 ms pulses"),
    "5050/A100": ("A100-PCIE-40GB", "ampere", "50 ms pulses"),
    "Transient_Response/3090_TR": ("RTX 3090", "ampere", "6 s pulse"),
    "Transient_Response/4090_TR": ("RTX 4090", "ada", "6 s pulse"),
    "Transient_Response/A100_TR": ("A100-PCIE-40GB", "ampere", "6 s pulse"),
    "Transient_Response/A5000_TR": ("RTX A5000", "ampere", "6 s pulse"),
    "Transient_Response/K40m_TR": ("Tesla K40m", "kepler", "6 s pulse"),
}
"""Model, architecture and load of each folder below plotting/data."""
TICKS_PER_SECOND = 2_933_500
VOLTS, AMPERES = 0.007568, 0.0488  # of one step of the meter's converters
METER_DELAY_SECONDS = 0.05  # from the command that starts the meter to its first sample
TIME_ZONE_SECONDS = 3_600  # the driver's readings are stamped in British Summer Time
SHIFT_SECONDS = 2.0  # Polder's samples begin at 41 moments within so many seconds of a record


class PowerRecord(NamedTuple):
    """Seconds of one board: the joules of the meter since its start, and each reading of the driver in watts."""

    model: str
    architecture: str
    load: str
    meter_seconds: Floats
    meter_joules: Floats
    driver_seconds: Floats
    driver_watts: Floats

    def joules(self, started: float, ended: float) -> float:
        """Return the meter's joules between two moments."""
        first, last = np.interp([started, ended], self.meter_seconds, self.meter_joules)
        return float(last - first)

    @property
    def bounds(self) -> tuple[float, float]:
        """The first and the last moment that both have."""
        return (
            float(max(self.meter_seconds[0], self.driver_seconds[0])),
            float(min(self.meter_seconds[-1], self.driver_seconds[-1])),
        )


def decode_meter(raw: bytes, started: float) -> tuple[Floats, Floats]:
    """Return the times in Unix seconds and the watts of the meter.

    A sample is nine 16-bit numbers: a clock that overflows, then voltage and current of four inputs of the board, each
    signed and in its upper twelve bits.
    """
    samples = np.frombuffer(raw[: len(raw) // 18 * 18], dtype="<u2").reshape(-1, 9)
    ticks = np.cumsum(np.diff(samples[:, 0].astype(np.int64), prepend=samples[0, 0]) % 2**16)
    values = np.maximum(samples[:, 1:].astype(np.int16) >> 4, 0).astype(np.float64)
    watts = (values[:, 0::2] * VOLTS * values[:, 1::2] * AMPERES).sum(axis=1)
    return started + ticks / TICKS_PER_SECOND, watts


def read_record(folder: Path, kind: tuple[str, str, str]) -> PowerRecord:
    """Return a record of GPU_Power_Benchmark; the power of now where the driver has it, as Polder reads it."""
    started = int((folder / "PMD_start_ts.txt").read_text()) / 1e6 - METER_DELAY_SECONDS
    seconds, watts = decode_meter((folder / "PMD_data.bin").read_bytes(), started)
    with (folder / "gpudata.csv").open(encoding="utf-8", newline="") as stream:
        rows = [*csv.DictReader(stream, skipinitialspace=True)]
    column = "power.draw.instant [W]" if "power.draw.instant [W]" in rows[0] else "power.draw [W]"
    stamps = [datetime.strptime(row["timestamp"], "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC) for row in rows]
    return make_record(
        kind,
        seconds,
        watts,
        np.array([stamp.timestamp() for stamp in stamps]) - TIME_ZONE_SECONDS,
        np.array([float(row[column]) for row in rows]),
    )


def make_record(
    kind: tuple[str, str, str], seconds: Floats, watts: Floats, driver_seconds: Floats, driver_watts: Floats
) -> PowerRecord:
    """Return a record whose times begin at 0."""
    joules = np.append(0.0, np.cumsum((watts[1:] + watts[:-1]) / 2 * np.diff(seconds)))
    return PowerRecord(*kind, seconds - seconds[0], joules, driver_seconds - seconds[0], driver_watts)


def read_extract(path: Path) -> dict[str, PowerRecord]:
    """Read gpu_power_records.csv: the meter's joules each 0.1 s, and the driver's readings where they change."""
    columns: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            pair = float(row["seconds"]), float(row["value"])
            columns.setdefault((row["record"], row["source"]), []).append(pair)
    names = dict.fromkeys(name for name, _ in columns)
    return {
        name: PowerRecord(
            *RECORDS[name],
            *np.array(columns[name, "meter joules"]).T,
            *np.array(columns[name, "driver watts"]).T,
        )
        for name in names
    }


class ReplayedBoard:
    """A GPU of zeus whose driver gives the readings of a record; its counter adds up these readings."""

    handle = None

    def __init__(self, record: PowerRecord, *, has_counter: bool) -> None:
        self.record, self.has_counter, self.now = record, has_counter, 0.0
        seconds, watts = record.driver_seconds, record.driver_watts
        self._joules = np.append(0.0, np.cumsum(watts[:-1] * np.diff(seconds)))

    def get_name(self) -> str:
        return self.record.model

    def _last(self) -> int:
        return max(int(np.searchsorted(self.record.driver_seconds, self.now, side="right")) - 1, 0)

    def supports_get_total_energy_consumption(self) -> bool:
        return self.has_counter

    def get_total_energy_consumption(self) -> int:
        last = self._last()
        since = self.now - float(self.record.driver_seconds[last])
        return round(float(self._joules[last] + self.record.driver_watts[last] * since) * 1e3)

    def get_instant_power_usage(self) -> int:
        return round(float(self.record.driver_watts[self._last()]) * 1e3)

    def get_average_power_usage(self) -> int:
        raise NotImplementedError

    def get_power_management_limit(self) -> int:
        raise NotImplementedError


def measure(record: PowerRecord, started: float, ended: float, step: float | None) -> float:
    """Return the joules that Polder's meter reads: by samples every `step` seconds, None by the counter."""
    board = ReplayedBoard(record, has_counter=step is None)
    meter = GpuMeter("nvml", [("GPU-0", board)])
    for moment in [started] if step is None else np.arange(started, ended, step):
        board.now = float(moment)
        if moment == started:
            meter.take_interval_readings(board.now)
        else:
            meter.sample(board.now)
    board.now = ended
    (reading,) = meter.take_interval_readings(ended)
    assert reading.joules is not None, reading.problem
    return reading.joules


def record_errors(record: PowerRecord, step: float | None, gain: float = 1.0) -> list[float]:
    """Return the relative errors of Polder's meter against the second one, from each shifted start."""
    first, last = record.bounds
    errors = []
    for shift in np.linspace(0, SHIFT_SECONDS, 41):
        started, ended = first + float(shift), last - SHIFT_SECONDS + float(shift)
        errors.append(gain * measure(record, started, ended, step) / record.joules(started, ended) - 1)
    return errors


class SensorError(NamedTuple):
    """The published error of a board's sensor: at steady loads, and of energies under pulses (None: not published)."""

    model: str
    architecture: str
    steady: float
    energy: float | None

    @property
    def tested(self) -> float:
        return self.steady if self.energy is None else self.energy


def read_sensor_errors(path: Path) -> list[SensorError]:
    """Read the published errors of all boards, without the one whose power is not measured but computed (K620)."""
    with path.open(encoding="utf-8", newline="") as stream:
        return [
            SensorError(
                row["model"],
                row["architecture"],
                float(row["steady_percent"]) / 100,
                float(row["energy_percent"]) / 100 if row["energy_percent"] else None,
            )
            for row in csv.DictReader(stream)
            if row["model"] != "Quadro K620"
        ]


def fit_gain(boards: Sequence[SensorError]) -> float:
    """Return what readings of these boards must be multiplied by: of the steady errors, each model counts once."""
    models = {board.model for board in boards}
    return 1 / (1 + fmean(fmean(board.steady for board in boards if board.model == model) for model in models))


def held_out_errors(boards: Sequence[SensorError]) -> list[float]:
    """Return the error of each board after the gain that the other models of its class have; none for one model."""
    return [
        fit_gain(others) * (1 + board.tested) - 1
        for board in boards
        if (others := [other for other in boards if other.model != board.model])
    ]


class PcRun(NamedTuple):
    """A run on a PC: the joules of CodeCarbon and of the meter at the socket.

    Attributes:
        group: the application, and whether it ran on the GPU.
    """

    group: str
    seconds: float
    parts_joules: float
    socket_joules: float


def read_pc_runs(folder: Path) -> list[PcRun]:
    """Read the runs of ai-energy-validation, whose meter was photographed before and after each."""
    runs = []
    for path in sorted(folder.glob("*_image_analysis.csv")):
        with path.open(encoding="utf-8", newline="") as stream:
            kwh = {PureWindowsPath(row[""]).stem: float(row["value"]) for row in csv.DictReader(stream)}
        with path.with_name(path.name.replace("_image_analysis", "")).open(encoding="utf-8", newline="") as stream:
            rows = [*csv.DictReader(stream)]
        for row in rows:
            began, ended = (kwh.get(f"{row['run_id']}_capture_{at}") for at in ("start", "stop"))
            if began is None or ended is None or not row["metrics.power_draw_total"]:
                continue
            device = "GPU" if "NVIDIA" in row["params.architecture"] else "CPU"
            group = f"{device}, {path.name.split('_')[0]}"
            joules = float(row["metrics.power_draw_total"])
            runs.append(PcRun(group, float(row["metrics.running_time_total"]), joules, (ended - began) * 3.6e6))
    return runs


def attribute_pc_run(run: PcRun, package_watts: float) -> EnergyAmount:
    """Return Polder's energy of the PC.

    CodeCarbon's sum is not published by part: of a run on the GPU the processor is taken to draw `package_watts`, and
    the rest is the board's.
    """
    package = min(package_watts * run.seconds, run.parts_joules) if run.group.startswith("GPU") else run.parts_joules
    parts = {"package": (package, "rapl", ""), "board": (run.parts_joules - package, "nvml", "ada")}
    readings = tuple(
        Reading(
            component=component,  # type: ignore[arg-type]
            part=component,
            joules=joules,
            label="measured",
            method="counter",
            meter=meter,
            architecture=architecture,
        )
        for component, (joules, meter, architecture) in parts.items()
        if joules
    )
    boards = tuple(reading.part for reading in readings if reading.component == "board")
    line = MeterInterval(
        node="pc",
        started=0.0,
        ended=run.seconds,
        job_cpu_seconds=run.seconds,
        node_cpu_seconds=run.seconds,
        processors=32,
        job_processors=32,
        job_memory_bytes=0,
        job_boards=boards,
        readings=readings,
    )
    account = attribute_run([MeteredJob("run", "step", {}, "finished", None, [line])], [], GENERIC)
    return EnergyAmount.sum(share.quantity for share in account.shares)


def fit_pc(runs: Sequence[PcRun]) -> tuple[float, float]:
    """Return watts and factor of the line from CodeCarbon's power to the socket's, by least squares."""
    parts = np.array([[1.0, run.parts_joules / run.seconds] for run in runs])
    socket = np.array([run.socket_joules / run.seconds for run in runs])
    watts, factor = np.linalg.lstsq(parts, socket, rcond=None)[0]
    return float(watts), float(factor)


def gain_of(architecture: str) -> float:
    """Return what Polder multiplies readings of NVML by."""
    return find_accuracy("nvml", component="board", architecture=architecture, label="measured", plugin=None).gain
