"""What is told of nodes that the run shares with others, with numbers done by hand."""

from __future__ import annotations

import pytest

from tests.energy.accounts import book, job, line, made, problem, reading


def test_work_of_others_leaves_a_share_by_time_and_the_calibrated_power() -> None:
    a = line(0, 10, 20, reading("node", 6000), node_cpu_seconds=80, job_processors=5)
    found = made(job("a", a, slurm="7"))
    # (half of 100 W + 2 cores × 10 W) × 10 s
    assert found.total().joules == found.total().estimated == pytest.approx(700)
    assert (found.total().low, found.total().high) == pytest.approx((700 - 1.96 * 70, 700 + 1.96 * 70))
    assert problem(found, "n1", "others worked", "a", "estimate") and found.seconds_covered == 0


def test_a_board_that_was_not_read_beside_strangers_is_estimated() -> None:
    a = line(0, 10, 20, reading("node", 6000), node_cpu_seconds=80, job_processors=5, job_boards=("U1",))
    assert made(job("a", a, slurm="7")).of_component()["board"].estimated == pytest.approx(3000)


def test_the_share_of_a_shared_node_is_never_more_than_what_was_measured() -> None:
    a = line(0, 10, 20, reading("node", 300), node_cpu_seconds=80, job_processors=5)
    assert made(job("a", a, slurm="7")).total().joules == pytest.approx(300)


def test_two_jobs_of_the_run_are_not_foreign_to_each_other() -> None:
    a = line(0, 10, 20, reading("node", 1000), node_cpu_seconds=50, job_processors=5)
    b = line(0, 10, 30, node_cpu_seconds=50, job_processors=5)
    found = made(job("a", a, slurm="7"), job("b", b, slurm="8"))
    assert found.total().measured == pytest.approx(1000) and found.problems == []


def test_work_up_to_two_per_cent_of_the_processors_is_the_systems() -> None:
    a = line(0, 10, 20, reading("node", 1000), node_cpu_seconds=21.9, job_processors=5)
    assert made(job("a", a, slurm="7")).total().measured == pytest.approx(1000)
    a = line(0, 10, 20, reading("node", 1000), node_cpu_seconds=22.1, job_processors=5)
    assert made(job("a", a, slurm="7")).total().measured == 0


def test_on_a_large_node_more_than_one_processor_is_somebody_s() -> None:
    large = {"processors": 256, "job_processors": 16}
    a = line(0, 10, 100, reading("node", 5000), node_cpu_seconds=109, **large)
    assert made(job("a", a, slurm="7")).total().measured == pytest.approx(5000)
    a = line(0, 10, 100, reading("node", 5000), node_cpu_seconds=111, **large)
    assert made(job("a", a, slurm="7")).total().measured == 0


def test_a_node_held_whole_is_the_runs_whatever_the_system_does() -> None:
    a = line(0, 10, 20, reading("node", 1000), node_cpu_seconds=80)
    assert made(job("a", a, slurm="7")).total().measured == pytest.approx(1000)
    assert made(job("a", a)).total().measured == 0, "a machine without Slurm is nobody's alone"


def test_jobs_that_begin_in_the_middle_of_anothers_interval_are_no_strangers() -> None:
    # b did 50 of its 80 CPU seconds in its first 5 s, which a's meter saw as well
    a = line(0, 60, 60, reading("node", 6000), node_cpu_seconds=110, job_processors=5)
    b = line(55, 75, 80, node_cpu_seconds=85, job_processors=5)
    found = made(job("a", a, slurm="7"), job("b", b, slurm="8"))
    assert found.problems == []


def test_a_book_of_a_whole_node_for_a_job_that_had_a_part_of_it_is_contaminated() -> None:
    a = job("a", line(10, 20, 20, node_cpu_seconds=80, job_processors=5), slurm="7")
    found = made(a, books=(book(5, 20, reading("node", 9000, meter="ear", method="power"), whole=False),))
    assert found.total().joules == found.total().estimated == pytest.approx(15 * 70)


def test_a_row_of_ear_copied_as_a_second_job_does_not_double() -> None:
    row = reading("node", 1000, meter="ear", method="power")
    jobs = [job(name, line(0, 10, 10, node_cpu_seconds=20), slurm=slurm) for name, slurm in (("a", "7"), ("b", "8"))]
    found = made(*jobs, books=(book(0, 10, row), book(0, 10, row, slurm="8")))
    assert found.total().joules == pytest.approx(1000) and found.of_job("b").joules == pytest.approx(500)
