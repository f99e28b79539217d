"""A machine counts once under all its names, and has one clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.energy.accounts import external_reading, job, line, made, problem, reading


def test_machine_with_two_names_counts_once_under_its_slurm_name() -> None:
    a = line(0, 10, 30, reading("node", 1000), node="node1", node_cpu_seconds=40, boot_id="b")
    b = line(0, 10, 10, reading("node", 1000), node="a-host", node_cpu_seconds=40, boot_id="b")
    result = made(job("a", a, slurm="7"), job("b", b))
    assert result.total().joules == pytest.approx(1000) and result.of_job("b").joules == pytest.approx(250)
    assert [*result.as_json()["nodes"]] == ["node1"] and problem(result, "node1 and a-host", "one machine")


def test_ranks_of_one_job_under_two_host_names_are_both_counted() -> None:
    lines = [line(0, 10, 20, reading("node", 1000), node=name, node_cpu_seconds=40, boot_id="b") for name in "xy"]
    result = made(job("a", *lines))
    assert result.of_job("a").measured == pytest.approx(1000) and not problem(result, "left out")


def test_hosts_without_boot_id_are_separate_and_a_rebooted_host_is_matched() -> None:
    assert made(*(job(name, line(0, 10, 20, node=name)) for name in ("n1", "n2"))).seconds == 20
    again = [line(at, at + 10, 20, node=name, boot_id=boot) for at, name, boot in ((0, "x", "b"), (100, "x", "c"))]
    other = line(100, 110, 20, node="y", boot_id="c")
    result = made(job("a", again[0]), job("a2", again[1]), job("b", other))
    assert result.seconds == 20 and problem(result, "x and y")


def test_external_readings_under_a_machine_alias_belong_to_the_machine() -> None:
    a = line(0, 10, 20, node="m1", boot_id="b")
    lines = (job("a", a, slurm="7"), job("b", line(0, 10, 0, node="n1", boot_id="b")))
    result = made(
        *lines, external_readings=(external_reading(0, 10, reading("node", 1500, meter="ear", method="power")),)
    )
    assert result.total().measured == pytest.approx(1500) and [*result.as_json()["nodes"]] == ["m1"]


def test_clock_change_between_two_jobs_shifts_the_times_of_one() -> None:
    """Both ran in the same ten seconds; before the second one began, the clock was set back by an hour."""
    a = [
        line(1e6 + at, 1e6 + at + 10, 30, reading("node", 1000), node_cpu_seconds=40, boot_id="b", booted=5e5)
        for at in (0, 10)
    ]
    b = line(1e6 - 3600, 1e6 - 3590, 10, node_cpu_seconds=40, boot_id="b", booted=5e5 - 3600)
    result = made(job("a", *a), job("b", b))
    assert result.seconds == 20 and result.of_job("b").joules == pytest.approx(250)
    assert problem(result, "clock was set by 3,600.0 s", "times of b")
    killed = replace(job("b", b, fate="lost"), last_seen=1e6 - 3590 + 5)
    assert made(job("a", *a), killed).seconds == 20, "its last heartbeat is shifted too"
    near = b.model_copy(update={"started": 1e6, "ended": 1e6 + 10, "booted": 5e5 + 0.5})
    assert made(job("a", *a), job("b", near)).of_job("b").joules == pytest.approx(250)


def test_synchronized_clock_drift_is_not_a_clock_change() -> None:
    """Twelve jobs an hour apart, the clock a fifth of a second off each time."""
    hours = range(0, 12 * 3600, 3600)
    jobs = [job(f"j{at}", line(at, at + 20, 20, boot_id="b", booted=5e5 + 0.2 * at / 3600)) for at in hours]
    assert made(*jobs).problems == []


def test_job_startup_seen_only_by_external_meters_belongs_to_the_job() -> None:
    a = job("a", line(10, 20, 20, reading("node", 1000)), slurm="7")
    result = made(a, external_readings=(external_reading(4, 20, reading("node", 1600, meter="ear", method="power")),))
    assert result.of_job("a").measured == pytest.approx(1600) and result.seconds == 16


def test_attempt_requeued_before_its_first_line_has_its_external_reading() -> None:
    ear = [reading("node", joules, meter="ear", method="power") for joules in (300, 1000)]
    jobs = (job("a1", fate="lost", slurm="7"), job("a2", line(100, 110, 20), slurm="7"))
    result = made(*jobs, external_readings=(external_reading(0, 3, ear[0]), external_reading(100, 110, ear[1])))
    assert result.of_job("a1").joules == pytest.approx(300) and result.of_job("a2").joules == pytest.approx(1000)


def test_meter_without_job_ids_counts_during_the_run() -> None:
    pdu = reading("node", 100_000, meter="pdu", method="power")
    result = made(
        job("a", line(100, 110, 20), slurm="7"),
        external_readings=(external_reading(0, 1000, pdu, slurm=None, whole=None),),
    )
    assert result.total().measured == pytest.approx(1000) and result.seconds == 10


def test_external_readings_of_foreign_jobs_are_ignored_and_reported() -> None:
    result = made(
        job("a", line(0, 10, 20), slurm="7"),
        external_readings=(external_reading(20, 30, reading("node", 5), slurm="9"),),
    )
    assert result.seconds == 10 and problem(result, "Slurm job 9", "left out")


def test_attempt_without_any_reading_is_reported_as_unknown() -> None:
    result = made(job("a", line(0, 10, 20)), job("b"))
    assert problem(result, "The energy of b is unknown")
    assert result.as_json()["jobs"]["b"]["meters"] == []
