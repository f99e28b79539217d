"""A machine counts once under all its names, and has one clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.energy.accounts import book, job, line, made, problem, reading


def test_a_machine_of_two_names_counts_once_by_the_name_that_slurm_calls_it() -> None:
    a = line(0, 10, 30, reading("node", 1000), node="node1", node_cpu_seconds=40, boot_id="b")
    b = line(0, 10, 10, reading("node", 1000), node="a-host", node_cpu_seconds=40, boot_id="b")
    found = made(job("a", a, slurm="7"), job("b", b))
    assert found.total().joules == pytest.approx(1000) and found.of_job("b").joules == pytest.approx(250)
    assert [*found.as_json()["nodes"]] == ["node1"] and problem(found, "node1 and a-host", "one machine")


def test_ranks_of_one_job_under_two_names_of_a_machine_are_both_there() -> None:
    lines = [line(0, 10, 20, reading("node", 1000), node=name, node_cpu_seconds=40, boot_id="b") for name in "xy"]
    found = made(job("a", *lines))
    assert found.of_job("a").measured == pytest.approx(1000) and not problem(found, "left out")


def test_machines_that_say_no_boot_id_and_one_that_was_switched_on_twice() -> None:
    assert made(*(job(name, line(0, 10, 20, node=name)) for name in ("n1", "n2"))).seconds == 20
    again = [line(at, at + 10, 20, node=name, boot_id=boot) for at, name, boot in ((0, "x", "b"), (100, "x", "c"))]
    other = line(100, 110, 20, node="y", boot_id="c")
    found = made(job("a", again[0]), job("a2", again[1]), job("b", other))
    assert found.seconds == 20 and problem(found, "x and y")


def test_books_of_a_machine_s_other_name_are_the_machine_s() -> None:
    a = line(0, 10, 20, node="m1", boot_id="b")
    lines = (job("a", a, slurm="7"), job("b", line(0, 10, 0, node="n1", boot_id="b")))
    found = made(*lines, books=(book(0, 10, reading("node", 1500, meter="ear", method="power")),))
    assert found.total().measured == pytest.approx(1500) and [*found.as_json()["nodes"]] == ["m1"]


def test_a_clock_that_was_set_between_two_jobs_moves_the_times_of_one() -> None:
    """Both ran in the same ten seconds; before the second one began, the clock was set back by an hour."""
    a = [
        line(1e6 + at, 1e6 + at + 10, 30, reading("node", 1000), node_cpu_seconds=40, boot_id="b", booted=5e5)
        for at in (0, 10)
    ]
    b = line(1e6 - 3600, 1e6 - 3590, 10, node_cpu_seconds=40, boot_id="b", booted=5e5 - 3600)
    found = made(job("a", *a), job("b", b))
    assert found.seconds == 20 and found.of_job("b").joules == pytest.approx(250)
    assert problem(found, "clock was set by 3,600.0 s", "times of b")
    killed = replace(job("b", b, fate="lost"), last_seen=1e6 - 3590 + 5)
    assert made(job("a", *a), killed).seconds == 20, "its last heartbeat is moved with it"
    near = b.model_copy(update={"started": 1e6, "ended": 1e6 + 10, "booted": 5e5 + 0.5})
    assert made(job("a", *a), job("b", near)).of_job("b").joules == pytest.approx(250)


def test_a_clock_that_is_kept_in_step_was_not_set() -> None:
    """Twelve jobs an hour apart, the clock a fifth of a second off each time."""
    hours = range(0, 12 * 3600, 3600)
    jobs = [job(f"j{at}", line(at, at + 20, 20, boot_id="b", booted=5e5 + 0.2 * at / 3600)) for at in hours]
    assert made(*jobs).problems == []


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
    assert found.seconds == 10 and problem(found, "Slurm job 9", "left out")


def test_an_attempt_of_which_nothing_is_known_is_named_and_is_not_zero() -> None:
    found = made(job("a", line(0, 10, 20)), job("b"))
    assert problem(found, "The energy of b is unknown")
    assert found.as_json()["jobs"]["b"]["meters"] == []
