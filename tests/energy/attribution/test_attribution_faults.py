"""Impossible meter and external readings are excluded, estimated by the model, and reported."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.energy.attribution.job_usage_intervals import read_job_intervals
from pipeline.energy.readings import MeterInterval
from tests.energy.accounts import external_reading, job, line, made, problem, reading


def test_gap_is_estimated_and_reported() -> None:
    a = job("a", line(0, 10, 20, reading("node", 1000)), line(30, 40, 40, reading("node", 1000)))
    result = made(a)
    # 20 s × (100 W + 3 cores × 10 W)
    assert result.total().estimated == pytest.approx(2600) and result.total().measured == pytest.approx(2000)
    assert problem(result, "meter of a was silent", "20.0 s") and (result.seconds, result.seconds_covered) == (40, 20)


def test_unreadable_meter_is_estimated_and_reported() -> None:
    lines = [line(0, 10, 20, reading("node", 1000)), line(10, 20, 20, reading("node", None, problem="it was reset"))]
    result = made(job("a", *lines))
    assert (result.total().measured, result.total().estimated) == pytest.approx((1000, 1200))
    assert problem(result, "pm_counters of node", "it was reset", "10.0 s") and result.seconds_covered == 10


@pytest.mark.parametrize(
    ("joules", "words"), [(0.0, "meter is missing"), (-5.0, "is impossible"), (math.inf, "is impossible")]
)
def test_zero_or_impossible_reading_is_never_a_measurement(joules: float, words: str) -> None:
    result = made(job("a", line(0, 10, 20, reading("node", joules))))
    assert result.total().joules == result.total().estimated == pytest.approx(1200) and problem(result, words)


def test_counter_without_a_new_value_yet_is_measured() -> None:
    lines = [line(0, 0.1, 0.2, reading("node", 0)), line(0.1, 0.2, 0.2, reading("node", 20))]
    assert made(job("a", *lines)).total().measured == pytest.approx(20)


def test_counter_stuck_over_many_short_jobs_is_not_measured() -> None:
    jobs = [job(f"j{at}", line(at, at + 0.9, 2, reading("node", 0 if at < 5 else 90))) for at in range(10)]
    result = made(*jobs)
    assert result.total().measured == pytest.approx(450), "of the last five"
    assert problem(result, "n1: pm_counters of node", "no energy for longer", "4.5 s")
    # 5 × 0.9 s by the model: 100 W, and 2 CPU s of 10 W
    assert result.total().estimated == pytest.approx(5 * (90 + 20))


def test_batch_unit_may_begin_long_after_its_shared_startup() -> None:
    start = [line(0, 2, 0.1, is_shared_start=True) for _ in range(2)]
    units = [line(1.997, 12, 10, reading("node", 900), node_cpu_seconds=10), line(30, 40, 10, reading("node", 900))]
    result = made(*(job(name, *pair) for name, pair in zip("ab", zip(start, units, strict=True), strict=True)))
    assert result.problems == [] and (result.seconds, result.seconds_covered) == (22, pytest.approx(20))
    assert result.total().measured == pytest.approx(1800)
    # 2 s of startup by the model: 100 W, and 0.2 CPU s of 10 W
    assert result.total().estimated == pytest.approx(202)


@pytest.mark.parametrize("others_cpu_seconds", [0, 20])
def test_shared_startup_is_counted_once_and_estimated_on_a_busy_node(others_cpu_seconds: float) -> None:
    share = line(
        0, 2, 0.25, reading("node", 250), is_shared_start=True, node_cpu_seconds=0.5 + others_cpu_seconds, processors=16
    )
    result = made(job("a", share), job("b", share))
    if others_cpu_seconds:
        assert problem(result, "others worked on it during a, b") and result.total().measured == 0
        assert result.total().joules < 250 and (result.seconds, result.seconds_covered) == (2, 0)
    else:
        assert result.problems == [] and result.total().measured == result.total().joules == pytest.approx(250)
        assert result.seconds == result.seconds_covered == 2


def test_jobs_that_end_in_their_shared_startup_are_estimated() -> None:
    share = line(0, 2, 0.25, is_shared_start=True)
    result = made(job("a", share), job("b", share))
    # 2 s of 100 W, and 0.5 CPU s of 10 W
    assert result.total().estimated == result.total().joules == pytest.approx(205)


def test_fault_of_many_jobs_is_one_problem() -> None:
    pairs = [(line(at, at + 1, 1), line(at + 5, at + 6, 1)) for at in range(0, 100, 10)]
    result = made(*(job(f"j{number}", *pair) for number, pair in enumerate(pairs)))
    assert [one for one in result.problems if "silent" in one] == [
        "n1: the meter of j0, j1, j2 and 7 more was silent: not measured, taken as busy as before and after "
        "(10 times, 40.0 s)."
    ]


def test_short_simultaneous_intervals_are_not_a_stuck_counter() -> None:
    jobs = []
    for number in range(12):
        last = line(10, 10 + 0.09 * (1 + number / 1000), 0, reading("node", 0))
        jobs.append(job(f"j{number}", line(0, 10, 0.5, reading("node", 1000), node_cpu_seconds=6), last))
    apart = [job(f"k{at}", line(at, at + 0.09, 0, reading("node", 0))) for at in range(20, 200, 10)]
    assert made(*jobs, *apart).problems == []


def test_node_with_a_dead_meter_is_attributed_until_the_job_ends() -> None:
    lines = [
        line(at, at + 50, 50, reading("node", 15_000), node=name) for name in ("n1", "n2") for at in range(0, 400, 50)
    ]
    died = [one for one in lines if one.node == "n1" or one.ended <= 100]
    result = made(job("a", *died, slurm="7"))
    assert result.seconds == 800 and problem(result, "n2", "was lost", "300.0 s")
    assert result.total().estimated == pytest.approx(300 * 110)


def test_time_after_the_last_reading_of_a_killed_job_is_estimated() -> None:
    lines = [line(0, 10, 20, reading("node", 1000)), line(0, 12, 20, reading("node", 1000), node="n2")]
    result = made(replace(job("a", *lines, fate="lost"), last_seen=32))
    # 20 s × (100 W + 20/12 cores × 10 W), on the node seen last
    assert result.total().estimated == pytest.approx(20 * (100 + 200 / 12))
    assert (result.seconds, result.seconds_covered) == (10 + 32, 22) and problem(result, "n2", "lost", "20.0 s")


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
def test_invalid_lines_are_skipped_and_reported(lines: tuple[MeterInterval, ...], words: str) -> None:
    result = made(job("a", *lines))
    assert result.total().joules == pytest.approx(1000) and problem(result, "n1", words)


def test_duplicate_reading_in_a_line_counts_once() -> None:
    result = made(job("a", line(0, 10, 20, reading("node", 1000), reading("node", 1000))))
    assert result.total().joules == pytest.approx(1000) and problem(result, "occurs twice in an interval")


def test_duplicate_or_reversed_external_reading_is_reported() -> None:
    once = external_reading(0, 10, reading("node", 1000, meter="ear", method="power"))
    result = made(job("a", line(0, 10, 20), slurm="7"), external_readings=(once, once, external_reading(9, 3)))
    assert result.total().joules == pytest.approx(1000)
    assert problem(result, "external reading", "twice") and problem(result, "external reading", "ends before it starts")


def test_node_reading_below_its_parts_is_reported_and_the_parts_are_used() -> None:
    a = line(0, 10, 20, reading("node", 500), reading("package", 400), reading("board", 700, "U1"), job_boards=("U1",))
    result = made(job("a", a))
    assert result.total().joules == pytest.approx(1100) and problem(
        result, "pm_counters", "less than its parts", "500 J"
    )


def test_unreadable_board_gets_its_mean_power() -> None:
    lines = [line(0, 10, 0, reading("board", 7000, "U1"), job_boards=("U1",)), line(10, 20, 0, job_boards=("U1",))]
    boards = made(job("a", *lines)).of_component()["board"]
    assert (boards.measured, boards.estimated) == pytest.approx((7000, 7000)) and boards.low < 0.9 * 14000


def test_board_without_any_reading_is_not_zero() -> None:
    result = made(job("a", line(0, 10, 0, job_boards=("U1",))))
    board = result.of_component()["board"]
    assert (board.estimated, board.low, board.high) == pytest.approx((3000, 400, 14000))
    assert problem(result, "board U1 was not read")


def test_invalid_file_is_one_problem_and_other_files_are_read(tmp_path: Path) -> None:
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


def test_physically_impossible_reading_is_not_measured() -> None:
    result = made(job("a", line(0, 10, 20, reading("node", 1e12))))
    assert result.total().measured == 0 and problem(result, "100,000,000,000 W", "more than any node draws")
    absurd = external_reading(0, 10, reading("node", 1e10, meter="ear", method="power"))
    result = made(job("a", line(0, 10, 20), slurm="7"), external_readings=(absurd,))
    assert result.total().measured == 0 and problem(result, "more than any node draws")
    result = made(job("a", line(0, 10, 20, reading("node", 1000), reading("package", 1e10, part="package-0"))))
    assert result.total().measured == pytest.approx(1000)


def test_line_with_an_invalid_clock_is_skipped_alone() -> None:
    good = [line(start, start + 10, 20, reading("node", 100)) for start in (0, 10, 20)]
    result = made(job("a", *good, line(-1.7e9, -5, 20, reading("node", 100))))
    assert result.total().joules == pytest.approx(300) and problem(result, "as if the clock had been wrong")
    result = made(job("a", line(math.nan, 5, 20, reading("node", 100)), *reversed(good)))
    assert result.total().joules == pytest.approx(300) and problem(result, "has no time")
    result = made(job("a", *good[:2], line(20, 30, 1e6, reading("node", 100))))
    assert result.total().measured == pytest.approx(200) and problem(result, "impossible CPU time")


def test_two_stated_readings_do_not_count_as_measured() -> None:
    stated = [reading("node", 1000, meter=name, label="stated", method="table") for name in ("slurm", "ear")]
    assert made(job("a", line(0, 10, 20, *stated))).total().measured == 0


def test_external_reading_of_a_foreign_job_is_ignored() -> None:
    foreign = external_reading(0, 10, reading("node", 90_000, meter="ear", method="power"), slurm="999")
    result = made(job("a", line(0, 10, 8), slurm="1"), external_readings=(foreign,))
    assert result.total().measured == 0 and problem(result, "999", "left out")


def test_smart_meter_table_has_the_error_of_its_accuracy_class() -> None:
    pdu = reading("node", 1000, meter="smart_meter", method="power", plugin="pdu.csv")
    total = made(job("a", line(0, 10, 20, pdu))).total()
    assert (total.low, total.high) == (pytest.approx(980), pytest.approx(1020))
