"""Node power: fitted to jobs measured by EAR, and uncertain without a measurement."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean

import pytest
from pydantic import ValidationError

from pipeline.config import platforms
from pipeline.core.errors import InputError
from pipeline.energy.power_model import GENERIC, PowerModel
from tests.energy.ear_jobs import LARGE, SMALL, calibrated, model_errors, shared_errors, table
from tests.energy.power_fit import ObservedPower, WattRange, fit_power_model

JOBS = table(Path(__file__).with_name("ear_jobs.csv"))
MODEL = calibrated(JOBS)


def test_platform_power_model_equals_the_calibration() -> None:
    cpu = platforms.load_platform_settings("snellius").partitions["cpu"].power
    assert cpu is not None and "kruuusher13/GPT-NL-Energy-Estimation-" in cpu.source
    assert cpu.idle_watts == pytest.approx(MODEL.idle_watts, abs=0.1)
    assert cpu.relative_error == pytest.approx(MODEL.relative_error, abs=0.001)
    assert (cpu.busy_core_watts, cpu.busy_core_watts_range) == (MODEL.busy_core_watts, MODEL.busy_core_watts_range)
    assert platforms.load_platform_settings("snellius").partitions["gpu"].power is None, "not measured by anybody"


def test_error_on_larger_runs_is_the_stated_one_and_the_interval_covers_them() -> None:
    large = [job for job in JOBS if job.documents in LARGE and job.run in ("size", "amst")]
    error, held = model_errors(MODEL, large)
    assert len(large) == 32 and error == pytest.approx(0.038, abs=0.001) and held == 1
    other = [job for job in JOBS if job.run == "euparl"]
    error, held = model_errors(MODEL, other)
    assert len(other) == 12 and error == pytest.approx(0.118, abs=0.001) and held == 9 / 12


def test_calibrated_power_times_time_beats_node_power_on_a_shared_node() -> None:
    rows = shared_errors(MODEL, JOBS)
    large = [row for row in rows if row[0].documents == 400_000]
    assert len(rows) == 24 and len(large) == 6
    assert fmean(abs(ours) for _, _, ours in large) < 0.054 < 0.3 < fmean(abs(ear) for _, ear, _ in large)
    assert fmean(abs(ours) for _, _, ours in rows) == pytest.approx(0.154, abs=0.001)
    short = {job.documents for job, _, ours in rows if abs(ours) > 0.2}
    assert short <= {100, 1_000}, "the rest is the startup seconds, not power"


def test_one_busy_core_does_not_determine_power_per_core() -> None:
    rows = [ObservedPower(job.busy_cores, job.watts, job.seconds) for job in JOBS if job.run == "size"]
    with pytest.raises(InputError, match=r"^no row has 4 busy cores or more.* from the data sheet$"):
        fit_power_model(rows, source="EAR")
    full = MODEL.watts(192)
    assert full.low < 1000 < full.watts < 1200 < full.high, "a server with two EPYC 9654, ServeTheHome"


def test_many_core_rows_determine_idle_and_core_power() -> None:
    noise = random.Random(1)
    rows = [
        ObservedPower(n, (250 + 4 * n) * noise.gauss(1, 0.02), 600) for n in (1, 8, 24, 48, 96, 192) for _ in range(4)
    ]
    model = fit_power_model(rows, source="simulated", busy_core_watts=WattRange(9, 9, 9))
    assert model.idle_watts == pytest.approx(250, rel=0.05) and model.busy_core_watts == pytest.approx(4, rel=0.05)
    assert model.relative_error == pytest.approx(0.02, rel=0.4) and model.busy_core_watts_range is None


def test_short_row_has_little_weight() -> None:
    rows = [*[ObservedPower(1, 280, 600)] * 3, ObservedPower(1, 140, 2)]
    assert fit_power_model(rows, source="x", busy_core_watts=WattRange(4, 4, 4)).idle_watts == pytest.approx(276, abs=2)


def test_interval_covers_95_percent_of_simulated_nodes() -> None:
    noise = random.Random(2)
    model = PowerModel(idle_watts=280, busy_core_watts=4, relative_error=0.06, source="simulated")
    held = 0
    for _ in range(2000):
        cores = noise.uniform(0, 192)
        power = model.watts(cores)
        held += power.low <= power.watts * noise.gauss(1, 0.06) <= power.high
    assert held / 2000 == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("job", [job for job in JOBS if not job.run.endswith("sh")])
def test_generic_interval_covers_the_old_estimate_and_the_truth(job) -> None:  # type: ignore[no-untyped-def]
    power = GENERIC.watts(job.busy_cores, gigabytes=2)
    assert power.low <= 4 * job.busy_cores + 3 / 8 * 2 <= power.watts <= power.high
    assert power.low <= job.watts <= power.high


def test_share_of_a_node_has_a_share_of_its_idle_power() -> None:
    model = PowerModel(idle_watts=240, busy_core_watts=4, dram_watts_per_gigabyte=0.5, relative_error=0.05, source="x")
    power = model.watts(10, idle_share=0.125, gigabytes=8)
    assert power == pytest.approx((74, 74 * (1 - 1.96 * 0.05), 74 * (1 + 1.96 * 0.05)))


def test_jobs_outside_the_calibration_are_not_used() -> None:
    assert {job.documents for job in JOBS if job.run == "size"} == {*SMALL, *LARGE}
    only_small = [job for job in JOBS if job.run == "size" and job.documents in SMALL]
    assert calibrated(only_small) == MODEL


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([ObservedPower(1, 280, 60)] * 2, r"^2 measured powers are too few .* give 3 or more$"),
        ([ObservedPower(1, 280, 60)] * 2 + [ObservedPower(1, 0, 60)], r"^row 3 .* 0 W in 60 s .*: leave it out$"),
        ([ObservedPower(1, 280, 60), ObservedPower(1, 280, 0)], r"^row 2 .* 280 W in 0 s"),
        ([ObservedPower(8, 280, 60)] * 3, r"^all rows have as many busy cores: measure another"),
        ([], r"^0 measured powers are too few"),
    ],
)
def test_uninformative_rows_are_refused(rows: list[ObservedPower], words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit_power_model(rows, source="x", busy_core_watts=WattRange(4, 3, 5))


def test_range_without_its_value_is_refused() -> None:
    with pytest.raises(ValidationError, match="idle_watts_range is 100 to 200 W, which does not hold idle_watts"):
        PowerModel(idle_watts=90, idle_watts_range=(100, 200), busy_core_watts=4, relative_error=0, source="x")
