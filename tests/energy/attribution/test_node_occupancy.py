"""Attribution on nodes shared with other users, against hand-computed values."""

from __future__ import annotations

import pytest

from tests.energy.accounts import external_reading, job, line, made, problem, reading


def test_foreign_work_limits_the_run_to_a_time_share_at_calibrated_power() -> None:
    a = line(0, 10, 20, reading("node", 6000), node_cpu_seconds=80, job_processors=5)
    result = made(job("a", a, slurm="7"))
    # (half of 100 W + 2 cores × 10 W) × 10 s
    assert result.total().joules == result.total().estimated == pytest.approx(700)
    assert (result.total().low, result.total().high) == pytest.approx((700 - 1.96 * 70, 700 + 1.96 * 70))
    assert problem(result, "n1", "others worked", "a", "estimate") and result.seconds_covered == 0


def test_unread_board_on_a_shared_node_is_estimated() -> None:
    a = line(0, 10, 20, reading("node", 6000), node_cpu_seconds=80, job_processors=5, job_boards=("U1",))
    assert made(job("a", a, slurm="7")).of_component()["board"].estimated == pytest.approx(3000)


def test_share_of_a_shared_node_is_at_most_its_measured_energy() -> None:
    a = line(0, 10, 20, reading("node", 300), node_cpu_seconds=80, job_processors=5)
    assert made(job("a", a, slurm="7")).total().joules == pytest.approx(300)


def test_two_jobs_of_the_run_are_not_foreign_to_each_other() -> None:
    a = line(0, 10, 20, reading("node", 1000), node_cpu_seconds=50, job_processors=5)
    b = line(0, 10, 30, node_cpu_seconds=50, job_processors=5)
    result = made(job("a", a, slurm="7"), job("b", b, slurm="8"))
    assert result.total().measured == pytest.approx(1000) and result.problems == []


def test_load_up_to_two_percent_of_the_processors_is_system_load() -> None:
    a = line(0, 10, 20, reading("node", 1000), node_cpu_seconds=21.9, job_processors=5)
    assert made(job("a", a, slurm="7")).total().measured == pytest.approx(1000)
    a = line(0, 10, 20, reading("node", 1000), node_cpu_seconds=22.1, job_processors=5)
    assert made(job("a", a, slurm="7")).total().measured == 0


def test_load_above_one_processor_on_a_large_node_is_foreign() -> None:
    large = {"processors": 256, "job_processors": 16}
    a = line(0, 10, 100, reading("node", 5000), node_cpu_seconds=109, **large)
    assert made(job("a", a, slurm="7")).total().measured == pytest.approx(5000)
    a = line(0, 10, 100, reading("node", 5000), node_cpu_seconds=111, **large)
    assert made(job("a", a, slurm="7")).total().measured == 0


def test_exclusive_node_belongs_to_the_run_despite_system_load() -> None:
    a = line(0, 10, 20, reading("node", 1000), node_cpu_seconds=80)
    assert made(job("a", a, slurm="7")).total().measured == pytest.approx(1000)
    assert made(job("a", a)).total().measured == 0, "a machine without Slurm is not exclusive"


def test_jobs_that_begin_inside_another_interval_are_not_foreign() -> None:
    # b did 50 of its 80 CPU seconds in its first 5 s, which a's meter measured as well
    a = line(0, 60, 60, reading("node", 6000), node_cpu_seconds=110, job_processors=5)
    b = line(55, 75, 80, node_cpu_seconds=85, job_processors=5)
    result = made(job("a", a, slurm="7"), job("b", b, slurm="8"))
    assert result.problems == []


def test_whole_node_reading_of_a_partial_node_job_is_contaminated() -> None:
    a = job("a", line(10, 20, 20, node_cpu_seconds=80, job_processors=5), slurm="7")
    result = made(
        a, external_readings=(external_reading(5, 20, reading("node", 9000, meter="ear", method="power"), whole=False),)
    )
    assert result.total().joules == result.total().estimated == pytest.approx(15 * 70)


def test_duplicated_ear_row_of_a_second_job_is_not_doubled() -> None:
    row = reading("node", 1000, meter="ear", method="power")
    jobs = [job(name, line(0, 10, 10, node_cpu_seconds=20), slurm=slurm) for name, slurm in (("a", "7"), ("b", "8"))]
    result = made(*jobs, external_readings=(external_reading(0, 10, row), external_reading(0, 10, row, slurm="8")))
    assert result.total().joules == pytest.approx(1000) and result.of_job("b").joules == pytest.approx(500)
