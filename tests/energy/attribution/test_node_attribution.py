"""Attribution of a node's energy to jobs, against hand-computed values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.energy.accounts import job, line, made, problem, reading


def test_jobs_share_a_node_by_cpu_time() -> None:
    a, b = line(0, 10, 30, reading("node", 1000), node_cpu_seconds=40), line(0, 10, 10, node_cpu_seconds=40)
    result = made(job("a", a), job("b", b))
    assert result.of_job("a").joules == pytest.approx(750) and result.of_job("b").joules == pytest.approx(250)


def test_time_line_is_split_at_interval_boundaries() -> None:
    a, b = line(0, 10, 10, reading("node", 1000)), line(5, 15, 30, reading("node", 2000), node_cpu_seconds=35)
    result = made(job("a", a), job("b", b))
    # a alone 500 J; 5 to 10 s by the meter of a: 500 J, of which a has 1 of 4; b alone the rest of its 2000 J
    assert result.of_job("a").joules == pytest.approx(500 + 125) and result.of_job("b").joules == pytest.approx(
        375 + 1500
    )


def test_two_meters_of_one_machine_count_once() -> None:
    both = [job(name, line(0, 10, 10, reading("node", 1000), node_cpu_seconds=20)) for name in "ab"]
    result = made(*both)
    assert result.total().joules == pytest.approx(1000) and result.of_job("a").joules == pytest.approx(500)
    assert result.seconds == result.seconds_covered == 10


def test_shares_of_three_jobs_on_one_board_sum_to_its_reading() -> None:
    a = line(0, 1, 1, reading("board", 715, "U1"), reading("node", 1000), node_cpu_seconds=3, job_boards=("U1",))
    result = made(*(job(name, a) for name in "abc"))
    assert result.of_component()["board"].joules == pytest.approx(715)
    assert result.of_job("a").joules == pytest.approx(1000 / 3)


def test_board_energy_belongs_to_its_job_or_is_idle() -> None:
    boards = (reading("board", 700, "U1"), reading("board", 60, "U2"))
    a, b = line(0, 10, 90, reading("node", 1860), *boards, job_boards=("U1",)), line(0, 10, 10, node_cpu_seconds=100)
    result = made(job("a", a), job("b", b))
    assert result.of_job("a").joules == pytest.approx(700 + 990) and result.of_job("b").joules == pytest.approx(110)
    assert result.idle().joules == pytest.approx(60)


def test_board_inside_a_node_reading_is_estimated_for_its_job() -> None:
    a, b = line(0, 10, 1, job_boards=("U1",)), line(0, 10, 9, reading("node", 9000))
    result = made(job("a", a), job("b", b))
    # 300 W of a board without any reading; of the other 600 W a has a tenth
    assert result.of_job("a").joules == pytest.approx(3000 + 600) and result.of_job("b").joules == pytest.approx(5400)
    assert result.of_job("a").estimated == pytest.approx(3000) and result.of_job("b").low < 0.1 * 5400
    assert (result.total().joules, result.total().low, result.total().high) == pytest.approx((9000, 8550, 9450))
    assert problem(result, "board U1 was not read", "within the reading of the node")
    seen = line(0, 10, 1, reading("board", 6000, "U1"), job_boards=("U1",))
    later = (line(10, 20, 1, job_boards=("U1",)), line(10, 20, 9, reading("node", 5000)))
    result = made(job("a", seen, later[0]), job("b", b, later[1]))
    assert result.of_component()["board"].estimated == pytest.approx(5000), "no more than the node's"
    two = made(job("a", line(0, 10, 1, job_boards=("U1", "U2"))), job("b", line(0, 10, 9, reading("node", 5000))))
    assert two.of_component()["board"].estimated == pytest.approx(5000), "both together are no more than the node's"
    alone = made(job("a", line(0, 10, 1, reading("node", 9000), job_boards=("U1",))))
    assert alone.of_job("a").measured == pytest.approx(9000), "the board's job makes no difference"


def test_boards_of_other_users_on_a_shared_node_are_excluded() -> None:
    boards = (reading("board", 700, "U1"), reading("board", 700, "U2"))
    a = line(0, 10, 10, reading("node", 2000), *boards, job_boards=("U1",), job_processors=2, node_cpu_seconds=10)
    result = made(job("a", a, slurm="7"))
    assert result.total().joules == pytest.approx(700 + 600)


def test_node_without_working_jobs_is_idle() -> None:
    result = made(job("a", line(0, 10, 0, reading("node", 1000))))
    assert result.idle().joules == pytest.approx(1000) and result.of_job("a").joules == 0


def test_idle_job_that_holds_a_node_is_charged_for_it() -> None:
    result = made(job("a", line(0, 10, 0, reading("node", 1000)), slurm="7"))
    assert result.of_job("a").joules == pytest.approx(1000)


def test_snakemake_energy_is_its_process_tree_without_jobs() -> None:
    snakemake = job("s", line(0, 10, 40, reading("node", 1000)), fate="snakemake")
    result = made(snakemake, job("a", line(0, 10, 30, node_cpu_seconds=40)))
    assert result.of_fate("snakemake").joules == pytest.approx(250) and result.of_job("a").joules == pytest.approx(750)
    more = made(snakemake, job("a", line(0, 10, 45, node_cpu_seconds=45)))
    assert more.of_fate("snakemake").joules == 0


def test_snakemake_alone_gets_its_cpu_share_and_the_rest_is_idle() -> None:
    result = made(job("s", line(0, 10, 5, reading("node", 1000)), fate="snakemake"))
    # 5 of 10 × 10 processor seconds
    assert result.of_fate("snakemake").joules == pytest.approx(50) and result.idle().joules == pytest.approx(950)


def test_job_that_outlives_its_snakemake_is_not_in_the_next_process_tree() -> None:
    """The first one was killed at 10 s; its job is not part of the second one's tree."""
    first = job("s1", line(0, 10, 40, reading("node", 1000)), fate="snakemake")
    second = job("s2", line(12, 22, 10, reading("node", 1000), node_cpu_seconds=40), fate="snakemake")
    orphan = line(0, 22, 66, node_cpu_seconds=77)
    result = made(first, second, replace(job("a", orphan), snakemake="s1"))
    assert result.of_job("s1").joules == pytest.approx(250), "40 CPU s of its tree less 30 of the job"
    assert result.of_job("s2").joules == pytest.approx(250), "10 of 40 CPU s, none of them the job's"


def test_slurm_job_is_not_in_the_process_tree_of_snakemake_on_its_node() -> None:
    snakemake = job("s", line(0, 10, 10, reading("node", 1000), node_cpu_seconds=40), fate="snakemake")
    result = made(snakemake, job("a", line(0, 10, 30, node_cpu_seconds=40), slurm="7"))
    assert result.of_fate("snakemake").joules == pytest.approx(250)


def test_lost_attempts_are_counted() -> None:
    a = job("a1", line(0, 5, 5, reading("node", 400)), fate="lost", step="tokens.make")
    result = made(a, job("a2", line(6, 16, 10, reading("node", 1000)), step="tokens.make"))
    assert result.of_step("tokens.make").joules == pytest.approx(1400)
    assert result.of_fate("lost").joules == pytest.approx(400)
