"""What meters and books cannot have seen is no measurement: it is left out, told by the model, and named."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.energy.attribution.job_usage_intervals import read_job_intervals
from pipeline.energy.readings import MeterInterval
from tests.energy.accounts import book, job, line, made, problem, reading


def test_a_gap_is_filled_by_the_model_and_named() -> None:
    a = job("a", line(0, 10, 20, reading("node", 1000)), line(30, 40, 40, reading("node", 1000)))
    found = made(a)
    # 20 s × (100 W + 3 cores × 10 W)
    assert found.total().estimated == pytest.approx(2600) and found.total().measured == pytest.approx(2000)
    assert problem(found, "meter of a was silent", "20.0 s") and (found.seconds, found.seconds_covered) == (40, 20)


def test_what_could_not_be_read_is_estimated_and_named() -> None:
    lines = [line(0, 10, 20, reading("node", 1000)), line(10, 20, 20, reading("node", None, problem="it was reset"))]
    found = made(job("a", *lines))
    assert (found.total().measured, found.total().estimated) == pytest.approx((1000, 1200))
    assert problem(found, "pm_counters of node", "it was reset", "10.0 s") and found.seconds_covered == 10


@pytest.mark.parametrize(
    ("joules", "words"), [(0.0, "meter is missing"), (-5.0, "is impossible"), (math.inf, "is impossible")]
)
def test_a_zero_or_a_number_that_cannot_be_is_never_a_measurement(joules: float, words: str) -> None:
    found = made(job("a", line(0, 10, 20, reading("node", joules))))
    assert found.total().joules == found.total().estimated == pytest.approx(1200) and problem(found, words)


def test_a_counter_that_has_not_moved_on_yet_was_read() -> None:
    lines = [line(0, 0.1, 0.2, reading("node", 0)), line(0.1, 0.2, 0.2, reading("node", 20))]
    assert made(job("a", *lines)).total().measured == pytest.approx(20)


def test_a_counter_that_stands_still_over_many_short_jobs_was_not_read() -> None:
    jobs = [job(f"j{at}", line(at, at + 0.9, 2, reading("node", 0 if at < 5 else 90))) for at in range(10)]
    found = made(*jobs)
    assert found.total().measured == pytest.approx(450), "of the last five"
    assert problem(found, "n1: pm_counters of node", "no energy for longer", "4.5 s")
    # 5 × 0.9 s by the model: 100 W, and 2 CPU s of 10 W
    assert found.total().estimated == pytest.approx(5 * (90 + 20))


def test_a_unit_of_a_batch_begins_long_after_the_start_that_it_shares() -> None:
    start = [line(0, 2, 0.1, is_shared_start=True) for _ in range(2)]
    units = [line(1.997, 12, 10, reading("node", 900), node_cpu_seconds=10), line(30, 40, 10, reading("node", 900))]
    found = made(*(job(name, *pair) for name, pair in zip("ab", zip(start, units, strict=True), strict=True)))
    assert found.problems == [] and (found.seconds, found.seconds_covered) == (22, pytest.approx(20))
    assert found.total().measured == pytest.approx(1800)
    # 2 s of the start by the model: 100 W, and 0.2 CPU s of 10 W
    assert found.total().estimated == pytest.approx(202)


@pytest.mark.parametrize("others_cpu_seconds", [0, 20])
def test_a_start_that_units_share_is_counted_once_and_on_a_busy_node_estimated(others_cpu_seconds: float) -> None:
    share = line(
        0, 2, 0.25, reading("node", 250), is_shared_start=True, node_cpu_seconds=0.5 + others_cpu_seconds, processors=16
    )
    found = made(job("a", share), job("b", share))
    if others_cpu_seconds:
        assert problem(found, "others worked on it during a, b") and found.total().measured == 0
        assert found.total().joules < 250 and (found.seconds, found.seconds_covered) == (2, 0)
    else:
        assert found.problems == [] and found.total().measured == found.total().joules == pytest.approx(250)
        assert found.seconds == found.seconds_covered == 2


def test_jobs_that_ended_in_the_start_that_they_share_are_estimated() -> None:
    share = line(0, 2, 0.25, is_shared_start=True)
    found = made(job("a", share), job("b", share))
    # 2 s of 100 W, and 0.5 CPU s of 10 W
    assert found.total().estimated == found.total().joules == pytest.approx(205)


def test_a_fault_of_many_jobs_is_one_sentence() -> None:
    pairs = [(line(at, at + 1, 1), line(at + 5, at + 6, 1)) for at in range(0, 100, 10)]
    found = made(*(job(f"j{number}", *pair) for number, pair in enumerate(pairs)))
    assert [one for one in found.problems if "silent" in one] == [
        "n1: the meter of j0, j1, j2 and 7 more was silent: not measured, taken as busy as before and after "
        "(10 times, 40.0 s)."
    ]


def test_short_intervals_of_many_jobs_in_the_same_moment_are_no_standstill() -> None:
    jobs = []
    for number in range(12):
        last = line(10, 10 + 0.09 * (1 + number / 1000), 0, reading("node", 0))
        jobs.append(job(f"j{number}", line(0, 10, 0.5, reading("node", 1000), node_cpu_seconds=6), last))
    apart = [job(f"k{at}", line(at, at + 0.09, 0, reading("node", 0))) for at in range(20, 200, 10)]
    assert made(*jobs, *apart).problems == []


def test_a_node_of_slurm_whose_meter_died_is_held_until_the_job_ends() -> None:
    lines = [
        line(at, at + 50, 50, reading("node", 15_000), node=name) for name in ("n1", "n2") for at in range(0, 400, 50)
    ]
    died = [one for one in lines if one.node == "n1" or one.ended <= 100]
    found = made(job("a", *died, slurm="7"))
    assert found.seconds == 800 and problem(found, "n2", "was lost", "300.0 s")
    assert found.total().estimated == pytest.approx(300 * 110)


def test_what_a_meter_saw_last_before_a_kill_is_told_by_the_model() -> None:
    lines = [line(0, 10, 20, reading("node", 1000)), line(0, 12, 20, reading("node", 1000), node="n2")]
    found = made(replace(job("a", *lines, fate="lost"), last_seen=32))
    # 20 s × (100 W + 20/12 cores × 10 W), on the node that was seen last
    assert found.total().estimated == pytest.approx(20 * (100 + 200 / 12))
    assert (found.seconds, found.seconds_covered) == (10 + 32, 22) and problem(found, "n2", "lost", "20.0 s")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((line(0, 10, 20, reading("node", 1000)), line(10, 5, 20, reading("node", 9))), "ends before it starts"),
        ((line(0, 10, 20, reading("node", 1000)), line(5, 9, 20, reading("node", 400))), "overlaps the one before"),
        ((line(0, 10, 20, reading("node", 1000)), line(0, 10, 20, reading("node", 1000))), "occurs twice"),
        ((line(0, 10, 20, reading("node", 1000)), line(10, 20, -1)), "impossible CPU time"),
        ((line(0, 10, 20, reading("node", 1000)), line(10, 20, 1, job_memory_bytes=10**18)), "impossible memory"),
    ],
)
def test_lines_that_cannot_be_are_left_out_and_named(lines: tuple[MeterInterval, ...], words: str) -> None:
    found = made(job("a", *lines))
    assert found.total().joules == pytest.approx(1000) and problem(found, "n1", words)


def test_a_reading_that_stands_twice_in_a_line_counts_once() -> None:
    found = made(job("a", line(0, 10, 20, reading("node", 1000), reading("node", 1000))))
    assert found.total().joules == pytest.approx(1000) and problem(found, "occurs twice in an interval")


def test_a_book_that_stands_twice_or_ends_before_it_starts_is_named() -> None:
    once = book(0, 10, reading("node", 1000, meter="ear", method="power"))
    found = made(job("a", line(0, 10, 20), slurm="7"), books=(once, once, book(9, 3)))
    assert found.total().joules == pytest.approx(1000)
    assert problem(found, "external reading", "twice") and problem(found, "external reading", "ends before it starts")


def test_a_node_that_says_less_than_its_parts_is_named_and_the_parts_count() -> None:
    a = line(0, 10, 20, reading("node", 500), reading("package", 400), reading("board", 700, "U1"), job_boards=("U1",))
    found = made(job("a", a))
    assert found.total().joules == pytest.approx(1100) and problem(found, "pm_counters", "less than its parts", "500 J")


def test_a_board_that_could_not_be_read_has_its_mean_power() -> None:
    lines = [line(0, 10, 0, reading("board", 7000, "U1"), job_boards=("U1",)), line(10, 20, 0, job_boards=("U1",))]
    boards = made(job("a", *lines)).of_component()["board"]
    assert (boards.measured, boards.estimated) == pytest.approx((7000, 7000)) and boards.low < 0.9 * 14000


def test_a_board_that_nothing_is_known_of_is_not_zero() -> None:
    found = made(job("a", line(0, 10, 0, job_boards=("U1",))))
    board = found.of_component()["board"]
    assert (board.estimated, board.low, board.high) == pytest.approx((3000, 400, 14000))
    assert problem(found, "board U1 was not read")


def test_a_broken_file_is_a_sentence_and_the_rest_is_kept(tmp_path: Path) -> None:
    good = line(0, 10, 20, reading("node", 1000)).model_dump_json()
    (tmp_path / "a@n1.jsonl").write_text(f"{good}\n")
    (tmp_path / "a@n2.jsonl").write_text(f"{good}\n" * 2)
    (tmp_path / "b@n1.jsonl").write_text(f'{good}\n{{"node": 1}}\n{good}\n')
    problems: list[str] = []
    uses = read_job_intervals(sorted(tmp_path.glob("*.jsonl")), problems)
    assert {name: len(lines) for name, lines in uses.items()} == {"a": 3, "b": 2}
    assert len(problems) == 1 and "b@n1.jsonl, line 2" in problems[0]
    (tmp_path / "b@n1.jsonl").write_text(f"{good}\n" + "{}\n" * 1000)
    problems.clear()
    assert len(read_job_intervals([tmp_path / "b@n1.jsonl"], problems)["b"]) == 1
    assert len(problems) == 4 and problems[-1].endswith(
        "997 more lines are no intervals: energy accounting ignores them."
    )


def test_what_no_hardware_can_is_not_measured_and_named() -> None:
    found = made(job("a", line(0, 10, 20, reading("node", 1e12))))
    assert found.total().measured == 0 and problem(found, "100,000,000,000 W", "more than any node draws")
    absurd = book(0, 10, reading("node", 1e10, meter="ear", method="power"))
    found = made(job("a", line(0, 10, 20), slurm="7"), books=(absurd,))
    assert found.total().measured == 0 and problem(found, "more than any node draws")
    found = made(job("a", line(0, 10, 20, reading("node", 1000), reading("package", 1e10, part="package-0"))))
    assert found.total().measured == pytest.approx(1000)


def test_a_clock_of_1970_or_no_time_at_all_takes_its_line_alone() -> None:
    good = [line(start, start + 10, 20, reading("node", 100)) for start in (0, 10, 20)]
    found = made(job("a", *good, line(-1.7e9, -5, 20, reading("node", 100))))
    assert found.total().joules == pytest.approx(300) and problem(found, "as if the clock had been wrong")
    found = made(job("a", line(math.nan, 5, 20, reading("node", 100)), *reversed(good)))
    assert found.total().joules == pytest.approx(300) and problem(found, "has no time")
    found = made(job("a", *good[:2], line(20, 30, 1e6, reading("node", 100))))
    assert found.total().measured == pytest.approx(200) and problem(found, "impossible CPU time")


def test_two_stated_figures_do_not_make_each_other_measured() -> None:
    stated = [reading("node", 1000, meter=name, label="stated", method="table") for name in ("slurm", "ear")]
    assert made(job("a", line(0, 10, 20, *stated))).total().measured == 0


def test_a_book_of_a_job_that_is_not_the_run_s_is_left_out() -> None:
    foreign = book(0, 10, reading("node", 90_000, meter="ear", method="power"), slurm="999")
    found = made(job("a", line(0, 10, 8), slurm="1"), books=(foreign,))
    assert found.total().measured == 0 and problem(found, "999", "left out")


def test_the_table_of_a_smart_meter_has_the_error_of_its_class() -> None:
    pdu = reading("node", 1000, meter="smart_meter", method="power", plugin="pdu.csv")
    total = made(job("a", line(0, 10, 20, pdu))).total()
    assert (total.low, total.high) == (pytest.approx(980), pytest.approx(1020))
