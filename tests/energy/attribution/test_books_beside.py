"""What no meter of ours saw and the books of Slurm did, with numbers done by hand."""

from __future__ import annotations

import pytest

from tests.energy.accounts import book, job, line, made, problem, reading


def test_the_start_of_a_job_that_only_the_books_saw_is_the_jobs() -> None:
    a = job("a", line(10, 20, 20, reading("node", 1000)), slurm="7")
    found = made(a, books=(book(4, 20, reading("node", 1600, meter="ear", method="power")),))
    assert found.of_job("a").measured == pytest.approx(1600) and found.seconds == 16


def test_an_attempt_put_back_into_the_queue_before_its_first_line_has_its_book() -> None:
    ear = [reading("node", joules, meter="ear", method="power") for joules in (300, 1000)]
    jobs = (job("a1", fate="lost", slurm="7"), job("a2", line(100, 110, 20), slurm="7"))
    found = made(*jobs, books=(book(0, 3, ear[0]), book(100, 110, ear[1])))
    assert found.of_job("a1").joules == pytest.approx(300) and found.of_job("a2").joules == pytest.approx(1000)


def test_a_meter_that_knows_no_jobs_counts_while_the_run_is_there() -> None:
    pdu = reading("node", 100_000, meter="pdu", method="power")
    found = made(job("a", line(100, 110, 20), slurm="7"), books=(book(0, 1000, pdu, slurm=None, whole=None),))
    assert found.total().measured == pytest.approx(1000) and found.seconds == 10


def test_books_of_a_job_that_is_not_the_runs_are_left_out_and_named() -> None:
    found = made(job("a", line(0, 10, 20), slurm="7"), books=(book(20, 30, reading("node", 5), slurm="9"),))
    assert found.seconds == 10 and problem(found, "Slurm's job 9", "left out")


def test_an_attempt_of_which_nothing_is_known_is_named_and_is_not_zero() -> None:
    found = made(job("a", line(0, 10, 20)), job("b"))
    assert problem(found, "No energy is known of b")
    assert found.as_json()["jobs"]["b"]["meters"] == []
