"""EAR's tables become books: power × time by hand, and what is wrong in them is named and not counted.

The tables beside this file are rows of github.com/kruuusher13/GPT-NL-Energy-Estimation- (Apache-2.0), data of
"Predicting the Energy of a Complete LLM Data-Curation Pipeline on Shared HPC": `ear_jobs.csv` is what eacct says of
the four jobs of a deduplication on a node that was shared, `ear_table.csv` twelve rows of its other stages.
"""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.energy.external_meters.ear_meter import read_ear, read_ear_rows
from pipeline.energy.readings import ExternalReading

HERE = Path(__file__).parent
JOBS, TABLE = HERE / "ear_jobs.csv", HERE / "ear_table.csv"
HEADER = "JOBID;STEPID;NODENAME;JOB_START_TIME;JOB_END_TIME;TIME_SEC;DC_NODE_POWER_W;DRAM_POWER_W;PCK_POWER_W"
ROW = "7;0;n1;1000;1100;100.0;500.0;20.0;300.0"


def table(*rows: str, more: str = "") -> str:
    """Return a table of EAR's."""
    return "\n".join((HEADER + more, *rows)) + "\n"


def joules(book: ExternalReading, component: str, part: str = "") -> float | None:
    """Return the joules of one part."""
    (found,) = (r for r in book.readings if (r.component, r.part) == (component, part))
    return found.joules


def of_node(books: list[ExternalReading]) -> float:
    """Return the joules of whole nodes."""
    return sum(joules(book, "node") or 0.0 for book in books)


def test_real_jobs_cost_power_times_time() -> None:
    books = {book.job: book for book in read_ear(JOBS)}
    assert [*books] == ["23596396", "23596400", "23596402", "23596447"]
    first = books["23596396"]
    assert joules(first, "node") == pytest.approx(602.011958 * 89.289868) == pytest.approx(53_753.57, abs=0.01)
    assert joules(first, "package") == pytest.approx(439.055220 * 89.289868)
    assert (first.node, first.started, first.ended) == ("tcn975", 1780979925, pytest.approx(1780979925 + 89.289868))
    assert {(r.label, r.method, r.meter, r.plugin) for r in first.readings} == {
        ("measured", "power", "ear", "EAR library")
    }
    assert not [reading for reading in first.readings if reading.component == "board"], "0 W of eight boards: no boards"


def test_memory_that_ear_does_not_read_is_not_measured() -> None:
    (memory,) = (r for r in read_ear(JOBS)[0].readings if r.component == "dram")
    assert memory.joules is None and memory.problem is not None and "not measured" in memory.problem


def test_a_node_that_takes_less_than_its_processors_is_not_measured_and_these_are_kept() -> None:
    books = read_ear(JOBS)
    (short,) = (book for book in books if book.job == "23596447")
    assert joules(short, "node") is None and joules(short, "package") == pytest.approx(363.994673 * 0.839037)
    assert any("line 3: 363.993 W of the node are less than 363.995 W" in problem for problem in books.problems)


def test_a_table_in_small_letters_with_commas_gives_the_same_when_told_when_its_jobs_began() -> None:
    started = {row.job: 1e9 + 1e5 * number for number, row in enumerate(read_ear_rows(TABLE.read_text(), "")[0])}
    books = {book.job: book for book in read_ear(TABLE, started=started)}
    assert books.keys() == started.keys() and len(books) == 12
    filtering = books["23035673"]
    assert joules(filtering, "node") == pytest.approx(297.162252 * 2359.104524)
    assert filtering.started == started["23035673"]
    assert joules(books["23595252"], "node") is None, "174 W of a node whose processors took 193 W"


def test_a_shared_node_has_its_neighbours_in_it() -> None:
    """Filtering of 400,000 documents: 2,348 s on a shared node, 2,376 s on one of its own."""
    rows = {row.job: row for row in read_ear_rows(TABLE.read_text(), "")[0]}
    shared, alone = rows["23595385"], rows["23594653"]
    assert shared.seconds == pytest.approx(alone.seconds, rel=0.02)
    assert shared.node_watts / alone.node_watts == pytest.approx(1.4986, rel=1e-3)
    assert read_ear(JOBS)[0].whole_node is None, "EAR does not know whose a node is"


def test_a_table_without_times_is_refused_where_nobody_tells_them() -> None:
    with pytest.raises(InputError, match=r"JOB_START_TIME or JOB_EARL_START_TIME.*give EAR's own file"):
        read_ear(TABLE)


def test_decimal_commas_are_points() -> None:
    text = JOBS.read_text()
    header, rest = text.split("\n", 1)
    assert of_node(read_ear(f"{header}\n{rest.replace('.', ',')}")) == pytest.approx(of_node(read_ear(text)))


def test_a_column_with_another_name_is_named_with_what_looks_like_it() -> None:
    with pytest.raises(InputError, match=r"jobs\.csv has no column PCK_POWER_W: is it 'PKG_POWER_W' there\?"):
        read_ear(JOBS.read_text().replace(";PCK_POWER_W;", ";PKG_POWER_W;"), name="jobs.csv")
    with pytest.raises(InputError, match="no column GPU3_POWER_W: is it 'GPU3_POWER'"):
        read_ear(JOBS.read_text().replace(";GPU3_POWER_W;", ";GPU3_POWER;"))
    with pytest.raises(InputError, match="JOB_START_TIME"):
        read_ear(table(ROW).replace("JOB_START_TIME", "JOB_STARTED_TIME"))


def test_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no column JOBID or JOB_ID"):
        read_ear("a,b,c,d,e,f\n1,2,3,4,5,6\n", name="foreign.csv")
    for text in ("", "<html><body>404; not; found; at; all; here</body></html>\n", "slurm_load_jobs error\n"):
        with pytest.raises(InputError, match="has no header"):
            read_ear(text)
    (tmp_path / "binary").write_bytes(b"\x80\xff" * 100)
    with pytest.raises(InputError, match="is no text"):
        read_ear(tmp_path / "binary")
    with pytest.raises(InputError, match="cannot be read"):
        read_ear(tmp_path / "none.csv")


def test_a_row_that_is_cut_is_named_and_the_others_are_read() -> None:
    books = read_ear(JOBS.read_text()[:-300], name="jobs.csv")
    assert [book.job for book in books] == ["23596396", "23596400", "23596447"]
    assert any("jobs.csv, line 5: the row is truncated" in problem for problem in books.problems)


def test_a_cell_that_is_no_number_costs_its_row_alone() -> None:
    books = read_ear(table(ROW, ROW.replace("7;0", "8;0").replace("500.0", "1.500,0"), "9;0" + ROW[3:]))
    assert [book.job for book in books] == ["7", "9"]
    assert "line 3: DC_NODE_POWER_W is '1.500,0', which is no number" in books.problems[0]


@pytest.mark.parametrize(
    ("watts", "said"),
    [
        ("0", "DC_NODE_POWER_W is 0 W, and nothing that runs takes none: not measured"),
        ("-500", "DC_NODE_POWER_W is -500 W, and no power is negative"),
        ("500000", "more than the hardware can take (20,000 W): it would be 500 W if it is in mW"),
    ],
)
def test_a_power_that_cannot_be_is_not_measured(watts: str, said: str) -> None:
    books = read_ear(table(ROW.replace("500.0", watts)))
    assert joules(books[0], "node") is None and joules(books[0], "package") == 30_000
    (problem,) = books.problems
    assert said in problem and "line 2" in problem


def test_two_rows_that_are_the_same_count_once() -> None:
    books = read_ear(table(ROW, ROW))
    assert of_node(books) == 50_000
    assert books.problems == ["eacct, line 3: the same row as in line 2 (job 7): it counts once"]


def test_steps_and_tasks_at_the_same_time_count_each_moment_once() -> None:
    step = "7;1;n1;1020;1060;40.0;700.0;20.0;300.0"
    later = "7;2;n1;1200;1210;10.0;300.0;20.0;200.0"
    books = read_ear(table(ROW, step, later))
    assert of_node(books) == 50_000 + 3000
    half_out = "7;1;n1;1080;1120;40.0;700.0;20.0;300.0"
    books = read_ear(table(ROW, half_out))
    assert of_node(books) == 50_000 + 20 * 700, "the 20 s that the longer row has not"
    assert [(book.started, book.ended) for book in books] == [(1000, 1100), (1100, 1120)]


def test_any_rows_at_the_same_time_count_each_moment_once() -> None:
    chance = random.Random(0)
    for _ in range(200):
        spans = [(start, start + chance.randrange(3, 40)) for start in chance.sample(range(1000, 1100), 6)]
        rows = [f"7;{n};n1;{start};{end};{end - start};100;0;50" for n, (start, end) in enumerate(spans)]
        books = read_ear(table(*rows))
        assert all(first.ended <= second.started for first, second in pairwise(books))
        seconds = len({second for start, end in spans for second in range(start, end)})
        assert seconds <= of_node(books) / 100 <= seconds + len(spans), "a start within a second of an end comes later"


def test_whole_seconds_of_the_clock_take_nothing_from_the_next_step() -> None:
    first, second = "7;0;n1;1000;1010;10.9;500;20;300", "7;1;n1;1010;1015;5.0;400;20;300"
    assert of_node(read_ear(table(first, second))) == pytest.approx(10.9 * 500 + 5 * 400)


def test_two_tasks_that_contradict_each_other_are_told() -> None:
    header = HEADER.replace("STEPID", "STEPID;APPID")
    rows = ["7;0;1;n1;1000;1100;100;500;20;300", "7;0;2;n1;1000;1100;99.5;600;20;300"]
    books = read_ear("\n".join((header, *rows)))
    assert of_node(books) == 50_000
    assert any("two tasks of job 7 read 500 W and 600 W of n1 at the same time" in text for text in books.problems)


def test_a_mean_above_the_greatest_power_that_was_seen_was_added_up() -> None:
    books = read_ear(table(ROW + ";300", more=";NODEMGR_MAX_DC_POWER_W"))
    assert joules(books[0], "node") is None
    assert "as if powers of several tasks were added" in books.problems[0]


def test_ears_daemon_measures_where_its_library_was_not_loaded() -> None:
    more = ";NODEMGR_DC_NODE_POWER_W;NODEMGR_PCK_POWER_W;NODEMGR_DRAM_POWER_W;NODEMGR_TIME_SEC"
    (book,) = read_ear(table("7;0;n1;1000;1100;100;0;0;0;400;250;30;98", more=more))
    assert joules(book, "node") == 400 * 98 and joules(book, "package") == 250 * 98 and joules(book, "dram") == 30 * 98
    assert {reading.plugin for reading in book.readings} == {"EAR daemon"}


def test_boards_are_told_apart_and_those_that_are_not_there_are_left_out() -> None:
    (book,) = read_ear(table(ROW + ";100;0;90000", more=";GPU0_POWER_W;GPU1_POWER_W;GPU2_POWER_W"))
    assert joules(book, "board", "gpu0") == 10_000 and joules(book, "board", "gpu2") is None
    assert [r.part for r in book.readings if r.component == "board"] == ["gpu0", "gpu2"]


def test_a_clock_that_jumps_is_named() -> None:
    books = read_ear(table(ROW.replace("1100", "900"), ROW.replace("7;0", "8;0").replace("1100", "4700")))
    assert [book.job for book in books] == ["8"] and books[0].ended == 1100, "TIME_SEC is of a clock that cannot jump"
    assert "job 7 ends 100 s before it starts: its energy is not counted" in books.problems[0]
    assert "job 8 lasted 3,700 s by its clock and 100 s by TIME_SEC, which counts" in books.problems[1]


def test_the_unit_of_a_stated_energy_is_what_power_times_time_says() -> None:
    rows = [f"7;0;{node};1000;4660;3660;381.51;20;300;" for node in ("n1", "n2")]
    for stated, column in (("2792619", "ENERGY"), ("2792619", "DC_ENERGY_J"), ("0.776", "ENERGY_KWH")):
        books = read_ear(table(*(row + stated for row in rows), more=f";{column}"))
        assert books.problems == [] and of_node(books) == pytest.approx(2_792_653.2)
    wrong = read_ear(table(*(row + "279" for row in rows), more=";ENERGY_KWH"))
    assert of_node(wrong) == pytest.approx(2_792_653.2), "power × time counts"
    assert wrong.problems[0] == (
        "eacct, line 2, job 7: the stated energy of 279 kWh is wrong in every unit (J, kJ, Wh, kWh, mJ, MJ): 381.51 W "
        "× 3660 s × 2 nodes = 2,793,000 J = 0.7757 kWh; power × time counts"
    )
    joules_as_kwh = read_ear(table(*(row + "2792619" for row in rows), more=";ENERGY_KWH"))
    assert "must be in J" in joules_as_kwh.problems[0]
    kilo = read_ear(table(*(row + "2792.6" for row in rows), more=";ENERGY_J"))
    assert "of 2,793 J must be in kJ" in kilo.problems[0]


LOOPS = """JOBID;STEPID;NODENAME;AVG_CPUFREQ_KHZ;AVG_IMCFREQ_KHZ;DEF_FREQ_KHZ;ITER_TIME_SEC;CPI;TPI;MEM_GBS;IO_MBS;\
PERC_MPI;DC_NODE_POWER_W;DRAM_POWER_W;PCK_POWER_W;CYCLES;INSTRUCTIONS;GFLOPS;LOOPID;LOOP_NEST_LEVEL;LOOP_SIZE;TIMESTAMP
7;0;n1;1;1;1;0.5;1;1;1;1;0;400;20;300;1;1;0;1;0;1;1000
7;0;n1;1;1;1;0.5;1;1;1;1;0;500;20;300;1;1;0;1;0;1;1010
7;0;n1;1;1;1;0.5;1;1;1;1;0;600;20;300;1;1;0;1;0;1;1020
"""


def test_a_file_of_loops_says_the_power_since_the_row_before() -> None:
    books = read_ear(LOOPS)
    assert [(book.started, book.ended) for book in books] == [(999.5, 1000), (1000, 1010), (1010, 1020)]
    assert of_node(books) == 0.5 * 400 + 10 * 500 + 10 * 600
    back = read_ear(LOOPS + LOOPS.splitlines()[1].replace(";1000", ";1005") + "\n")
    assert "line 5: the clock of n1 goes back from 1020 to 1005" in back.problems[0]
    with pytest.raises(InputError, match="file of loops without the column TIMESTAMP"):
        read_ear(LOOPS.replace("TIMESTAMP", "ITERATIONS"))
