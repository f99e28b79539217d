"""Polder's readings of NVIDIA boards against a second meter, on records of real boards (SOURCES.md)."""

from __future__ import annotations

import struct
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import pytest

from pipeline.energy.attribution.meter_choice import find_accuracy
from pipeline.energy.meter_recorder import POWER_SAMPLE_SECONDS, SAMPLE_SECONDS
from tests.energy.second_meters import (
    AMPERES,
    TICKS_PER_SECOND,
    VOLTS,
    PcRun,
    attribute_pc_run,
    decode_meter,
    fit_gain,
    fit_pc,
    gain_of,
    held_out_errors,
    measure,
    read_extract,
    read_pc_runs,
    read_sensor_errors,
    record_errors,
)

FOLDER = Path(__file__).parent
RECORDED = read_extract(FOLDER / "gpu_power_records.csv")
BOARDS = read_sensor_errors(FOLDER / "gpu_sensor_errors.csv")


@pytest.mark.parametrize("name", RECORDED)
def test_readings_are_within_the_stated_interval_of_the_second_meter(name: str) -> None:
    record = RECORDED[name]
    step = POWER_SAMPLE_SECONDS if record.architecture == "kepler" else None  # which has no counter
    known = find_accuracy("nvml", component="board", architecture=record.architecture, label="measured", plugin=None)
    assert max(map(abs, record_errors(record, step, known.gain))) <= known.above <= 0.13


def test_gain_takes_a_third_of_the_error() -> None:
    """Of both records together: where a quarter of 50 ms pulses is sampled, the mean error alone gets smaller."""
    records = [record for record in RECORDED.values() if gain_of(record.architecture) > 1]
    plain, corrected = (
        [error for record in records for error in record_errors(record, None, gain)] for gain in (1.0, gain_of("ada"))
    )
    assert len(records) == 2 and fmean(map(abs, corrected)) < 2 / 3 * fmean(map(abs, plain))


ANOTHER = {"5050/A100": -0.0069, "Transient_Response/4090_TR": -0.0578, "Transient_Response/K40m_TR": 0.0305}
"""Errors of the whole records, summed from the published bytes by code without numpy that is not in this repository."""


@pytest.mark.parametrize("name", RECORDED)
def test_error_of_a_whole_record_is_that_of_another_computation(name: str) -> None:
    record = RECORDED[name]
    error = measure(record, *record.bounds, 0.01) / record.joules(*record.bounds) - 1
    assert error == pytest.approx(ANOTHER[name], abs=0.002)


@pytest.mark.parametrize("name", RECORDED)
def test_power_read_twice_a_second_scatters_less_than_every_two_seconds(name: str) -> None:
    often, seldom = (record_errors(RECORDED[name], step) for step in (POWER_SAMPLE_SECONDS, SAMPLE_SECONDS))
    assert pstdev(often) < pstdev(seldom) / 2


def test_gain_of_ampere_and_ada_holds_for_models_that_were_left_out() -> None:
    some = [board for board in BOARDS if board.architecture in ("ampere", "ada")]
    left = held_out_errors(some)
    assert (len(some), len(left)) == (9, 9)
    assert fmean(map(abs, left)) < 2 / 3 * fmean(abs(board.tested) for board in some)
    assert round(fit_gain(some), 2) == gain_of("ampere") == gain_of("ada")


@pytest.mark.parametrize("architecture", ["kepler", "maxwell", "turing"])
def test_gain_of_older_boards_makes_left_out_models_worse(architecture: str) -> None:
    some = [board for board in BOARDS if board.architecture == architecture]
    assert fmean(map(abs, held_out_errors(some))) > fmean(abs(board.tested) for board in some)
    assert gain_of(architecture) == 1


def test_stated_intervals_hold_all_published_errors() -> None:
    assert len(BOARDS) == 19
    for board in BOARDS:
        known = find_accuracy("nvml", component="board", architecture=board.architecture, label="measured", plugin=None)
        for error in (board.steady, board.tested):
            assert known.gain * (1 + error) * (1 - known.below) <= 1 <= known.gain * (1 + error) * (1 + known.above)


def test_samples_of_the_meter_are_decoded() -> None:
    """The clock overflows after the first sample; a negative current counts as none."""
    values = [(65_000, 12, 100), (35_464, 12, 200), (36_464, 12, -5)]
    raw = b"".join(struct.pack("<H8h", clock, volts << 4, amperes << 4, *[0] * 6) for clock, volts, amperes in values)
    seconds, watts = decode_meter(raw + b"\0", 5.0)
    assert seconds == pytest.approx(5 + np.array([0, 36_000, 37_000]) / TICKS_PER_SECOND)
    assert watts == pytest.approx(np.array([1_200, 2_400, 0]) * VOLTS * AMPERES)


def test_runs_of_a_pc_are_read_from_photographs_of_its_meter(tmp_path: Path) -> None:
    (tmp_path / "vision_1_image_analysis.csv").write_text(
        ",ocr,value\nd:\\x\\aa_capture_start.jpg,,1.000\nd:\\x\\aa_capture_stop.jpg,,1.010\n/x/bb_capture_start.jpg,,1.01\n"
    )
    (tmp_path / "vision_1.csv").write_text(
        "run_id,metrics.running_time_total,metrics.power_draw_total,params.architecture\n"
        "aa,100,25000,NVIDIA GeForce RTX 4090\nbb,100,25000,a processor\n"
    )
    (run,) = read_pc_runs(tmp_path)
    assert run == PcRun("GPU, vision", 100, 25_000, pytest.approx(36_000))


def test_pc_is_what_meters_read_and_an_estimated_rest() -> None:
    run = PcRun("GPU, vision", 100, 30_000, 0)
    amount = attribute_pc_run(run, 50)
    read = 5_000 + 1.04 * 25_000
    assert amount.measured == pytest.approx(read) and amount.estimated == pytest.approx(50 * 100 + 0.1 * read)
    runs = [PcRun("", 10, 10 * watts, 10 * (40 + 1.2 * watts)) for watts in (100, 200, 350)]
    assert fit_pc(runs) == pytest.approx((40, 1.2))
