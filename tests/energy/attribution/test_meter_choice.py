"""Meter selection for each part of a node, against hand-computed values."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.energy.attribution.node_attribution import EnergyAmount
from pipeline.energy.power_model import GENERIC
from tests.energy.accounts import external_reading, job, line, made, problem, reading


def test_measured_node_is_the_sum_of_parts_and_rest() -> None:
    readings = (reading("node", 1000), reading("package", 400, "package-0"), reading("dram", 50))
    result = made(job("a", line(0, 10, 20, *readings, reading("board", 300, "U1"), job_boards=("U1",))))
    joules = {name: quantity.joules for name, quantity in result.of_component().items()}
    assert joules == pytest.approx({"package": 400, "dram": 50, "board": 300, "rest": 250})
    assert result.total().measured == pytest.approx(1000) and result.problems == []


def test_errors_of_parts_cancel_out_if_the_node_is_measured() -> None:
    total = made(job("a", line(0, 10, 20, reading("node", 1000), reading("package", 400)))).total()
    assert (total.low, total.high) == pytest.approx((950, 1050)), "only the 5 % of the node's meter"


def test_power_model_estimates_the_rest_without_a_node_meter() -> None:
    result = made(job("a", line(0, 10, 20, reading("package", 400), reading("dram", 50))))
    # the model: (100 W + 2 cores × 10 W) × 10 s
    joules = {name: quantity.joules for name, quantity in result.of_component().items()}
    assert joules == pytest.approx({"package": 400, "dram": 50, "rest": 750})
    total = result.total()
    assert (total.measured, total.estimated, total.stated) == pytest.approx((450, 750, 0))
    assert (total.low, total.high) == pytest.approx((1200 - 1.96 * 120, 1200 + 1.96 * 120))


def test_packages_above_the_node_model_leave_no_rest() -> None:
    result = made(job("a", line(0, 10, 20, reading("package", 2000))))
    assert result.total().measured == result.total().joules == pytest.approx(2000)


def test_energy_without_any_meter_is_fully_estimated() -> None:
    result = made(job("a", line(0, 10, 20)))
    assert result.total().estimated == result.total().joules == pytest.approx(1200)
    assert (result.total().low, result.total().high) == pytest.approx((1200 - 1.96 * 120, 1200 + 1.96 * 120))
    assert (result.seconds, result.seconds_covered) == (10, 0)


def test_meter_priority_is_counter_then_power_then_table_then_stated() -> None:
    stated = reading("node", 1040, meter="slurm", label="stated")
    power = reading("node", 1020, meter="ear", method="power")
    a = line(0, 10, 20, power, stated)
    assert made(job("a", a)).total().measured == pytest.approx(1020)
    a = line(0, 10, 20, stated, power, reading("node", 1000))
    assert made(job("a", a)).total().joules == pytest.approx(1000)


def test_meters_that_differ_by_six_percent_are_reported_with_the_one_used() -> None:
    result = made(job("a", line(0, 10, 20, reading("node", 1000), reading("node", 1060, meter="ear", method="power"))))
    assert result.total().joules == pytest.approx(1000)
    assert problem(result, "n1", "6.0%", "ear", "pm_counters is used", "1,000 J", "1,060 J")
    near = made(job("a", line(0, 10, 20, reading("node", 1000), reading("node", 1040, meter="ear"))))
    assert near.problems == []


def test_errors_of_opposite_signs_do_not_cancel() -> None:
    lines = [
        line(at, at + 400, 20, reading("node", 40_000), reading("node", 40_000 + sign * 4_000, meter="ear"))
        for at, sign in ((0, 1), (400, -1))
    ]
    assert problem(made(job("a", *lines)), "10.0%", "in periods")
    # an hourly mean is not compared by the minute
    ramp = [line(at, at + 60, 60, reading("node", 60 * (100 + at))) for at in range(0, 3600, 60)]
    mean = external_reading(
        0, 3600, reading("node", sum(one.readings[0].joules for one in ramp), meter="ear", method="power")
    )
    assert made(job("a", *ramp, slurm="7"), external_readings=(mean,)).problems == []


def test_mean_power_next_to_a_finer_meter_covers_the_remaining_time() -> None:
    """100 W for half an hour, 300 W for another: both meters are exact, and they do not differ."""
    lines = [line(0, 1800, 10), *(line(at, at + 60, 1, reading("node", 18_000)) for at in range(1800, 3600, 60))]
    mean = external_reading(0, 3600, reading("node", 720_000, meter="ear", method="power"))
    result = made(job("a", *lines, slurm="7"), external_readings=(mean,))
    assert result.total().measured == pytest.approx(720_000) and result.problems == []
    assert result.joules_between(["a"], np.array([0.0]), np.array([1800.0])) == pytest.approx([180_000])


@pytest.mark.parametrize("off", [0.97, 1.03])
def test_remaining_energy_next_to_a_partial_meter_has_only_its_own_error(off: float) -> None:
    fine = line(10, 1000, 10, reading("node", 99_000 * off))
    mean = external_reading(0, 1000, reading("node", 100_000, meter="ear", method="power"))
    result = made(job("a", line(0, 10, 1), fine, slurm="7"), external_readings=(mean,))
    assert result.total().measured == pytest.approx(99_000 * off + 1000), "10 s of 100 W"


def test_total_and_per_package_meters_count_once() -> None:
    parts = (reading("package", 200, "package-0"), reading("package", 210, "package-1"))
    result = made(job("a", line(0, 10, 20, reading("node", 1000), *parts, reading("package", 415, meter="ear"))))
    assert result.of_component()["package"].joules == pytest.approx(410) and result.problems == []


@pytest.mark.parametrize(
    ("architecture", "gain", "error"),
    [("ampere", 1.04, 0.07), ("ada", 1.04, 0.07), ("hopper", 1.0, 0.13), ("", 1.0, 0.13)],
)
def test_board_counts_with_the_gain_and_the_interval_of_its_architecture(
    architecture: str, gain: float, error: float
) -> None:
    board = reading("board", 1000, "U0", architecture=architecture)  # a record of old has no architecture
    parts = (reading("package", 400), board)
    result = made(job("a", line(0, 10, 20, *parts, reading("node", 2000), job_boards=("U0",))))
    assert result.of_component()["board"].joules == pytest.approx(1000 * gain)
    assert result.of_component()["rest"].joules == pytest.approx(2000 - 400 - 1000 * gain), "the node's meter holds"
    amount = result.of_component()["board"]
    assert (amount.high - amount.joules, amount.joules - amount.low) == pytest.approx((error * amount.joules,) * 2)
    (sentence,) = {name for share in result.shares if share.component == "board" for name in share.meters}
    assert sentence.startswith("nvml, measured: counter" + " × 1.04" * (gain != 1))
    assert (f"±{error:.0%} ({architecture} boards: " in sentence) == bool(architecture)


def test_rest_of_an_unknown_machine_grows_with_what_meters_read() -> None:
    parts = reading("package", 400), reading("board", 600, "U0")
    result = made(job("a", line(0, 10, 20, *parts, job_boards=("U0",))), model=GENERIC)
    rest = result.of_component()["rest"]
    assert rest.estimated == rest.joules == pytest.approx(50 * 10 + 0.1 * 1000)
    assert (rest.low, rest.high) == pytest.approx((0.03 * 1000, 150 * 10 + 0.3 * 1000))
    (sentence,) = {name for share in result.shares if share.component == "rest" for name in share.meters}
    assert "50 W and 10% of what meters read" in sentence
    alone = made(job("a", line(0, 10, 20, parts[1], job_boards=("U0",))), model=GENERIC)
    assert alone.of_component()["node"].joules == pytest.approx((140 + 2 * 4) * 10), "no processor was read"
    (sentence,) = {name for share in alone.shares if share.component == "node" for name in share.meters}
    assert sentence == f"power model, estimated: {GENERIC.source}"


def test_boards_named_differently_by_two_meters_count_once() -> None:
    nvml = [reading("board", 700, f"U{number}") for number in range(2)]
    cray = [reading("board", 710, f"accel{number}", meter="pm_counters", method="power") for number in range(2)]
    a = line(0, 10, 20, *nvml, *cray, job_boards=("U0", "U1"))
    assert made(job("a", a)).of_component()["board"].joules == pytest.approx(1400)


def test_boards_with_other_names_are_attributed_to_jobs_that_had_boards() -> None:
    ear = [reading("board", 700, f"gpu{number}", meter="ear", method="power") for number in range(2)]
    a, b = line(0, 10, 10, *ear, job_boards=("U0", "U1")), line(0, 10, 10, job_processors=5, node_cpu_seconds=20)
    result = made(job("a", a), job("b", b))
    assert sum(share.quantity.joules for share in result.shares if share.component == "board") == pytest.approx(1400)
    assert {share.job for share in result.shares if share.component == "board"} == {"a"}


def test_stated_reading_is_measured_only_if_a_second_meter_agrees() -> None:
    def total(ear: float, ended: float = 19.8) -> EnergyAmount:
        slurm = reading("package", 400, meter="slurm", label="stated", plugin="acct_gather_energy/rapl")
        a = job("a", line(0, ended, 2 * ended, reading("package", ear, meter="ear", method="power")), slurm="7")
        return made(a, external_readings=(external_reading(0, 20, slurm),)).total()

    agreed, differs, short = total(405), total(600), total(205, 10)
    # the rest of 20 W for the last 0.2 s
    assert agreed.measured == pytest.approx(405 + 4) and agreed.stated == 0
    assert differs.measured == pytest.approx(600) and differs.stated == pytest.approx(4)
    assert short.measured == pytest.approx(205) and short.stated == pytest.approx(195), "half of its time is not enough"
