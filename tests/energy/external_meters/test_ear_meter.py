"""EAR's tables become external readings: power × time by hand, and invalid rows are reported and not counted.

The tables next to this file are rows of github.com/kruuusher13/GPT-NL-Energy-Estimation- (Apache-2.0), data of
"Predicting the Energy of a Complete LLM Data-Curation Pipeline on Shared HPC": `ear_jobs.csv` is the eacct output of
the four jobs of a deduplication on a shared node, `ear_table.csv` twelve rows of its other stages.
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
    """Return an EAR table."""
    return "\n".join((HEADER + more, *rows)) + "\n"


def joules(external_reading: ExternalReading, component: str, part: str = "") -> float | None:
    """Return the joules of one part."""
    (result,) = (r for r in external_reading.readings if (r.component, r.part) == (component, part))
    return result.joules


def of_node(external_readings: list[ExternalReading]) -> float:
    """Return the joules of whole nodes."""
    return sum(joules(external_reading, "node") or 0.0 for external_reading in external_readings)


def test_energy_of_real_jobs_is_power_times_time() -> None:
    external_readings = {external_reading.job: external_reading for external_reading in read_ear(JOBS)}
    assert [*external_readings] == ["23596396", "23596400", "23596402", "23596447"]
    first = external_readings["23596396"]
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


def test_node_power_below_its_processors_is_rejected_and_processors_are_kept() -> None:
    external_readings = read_ear(JOBS)
    (short,) = (external_reading for external_reading in external_readings if external_reading.job == "23596447")
    assert joules(short, "node") is None and joules(short, "package") == pytest.approx(363.994673 * 0.839037)
    assert any(
        "line 3: 363.993 W of the node are less than 363.995 W" in problem for problem in external_readings.problems
    )


def test_lowercase_comma_table_with_job_start_times_gives_equal_readings() -> None:
    started = {row.job: 1e9 + 1e5 * number for number, row in enumerate(read_ear_rows(TABLE.read_text(), "")[0])}
    external_readings = {
        external_reading.job: external_reading for external_reading in read_ear(TABLE, started=started)
    }
    assert external_readings.keys() == started.keys() and len(external_readings) == 12
    filtering = external_readings["23035673"]
    assert joules(filtering, "node") == pytest.approx(297.162252 * 2359.104524)
    assert filtering.started == started["23035673"]
    assert joules(external_readings["23595252"], "node") is None, "174 W of a node whose processors took 193 W"


def test_reading_of_a_shared_node_includes_its_neighbors() -> None:
    """Filtering of 400,000 documents: 2,348 s on a shared node, 2,376 s on an exclusive one."""
    rows = {row.job: row for row in read_ear_rows(TABLE.read_text(), "")[0]}
    shared, alone = rows["23595385"], rows["23594653"]
    assert shared.seconds == pytest.approx(alone.seconds, rel=0.02)
    assert shared.node_watts / alone.node_watts == pytest.approx(1.4986, rel=1e-3)
    assert read_ear(JOBS)[0].whole_node is None, "EAR does not know the owner of a node"


def test_table_without_times_is_refused_if_no_start_times_are_given() -> None:
    with pytest.raises(InputError, match=r"JOB_START_TIME or JOB_EARL_START_TIME.*give EAR's own file"):
        read_ear(TABLE)


def test_decimal_commas_are_points() -> None:
    text = JOBS.read_text()
    header, rest = text.split("\n", 1)
    assert of_node(read_ear(f"{header}\n{rest.replace('.', ',')}")) == pytest.approx(of_node(read_ear(text)))


def test_unknown_column_error_suggests_a_similar_column() -> None:
    with pytest.raises(InputError, match=r"jobs\.csv has no column PCK_POWER_W: is it 'PKG_POWER_W' there\?"):
        read_ear(JOBS.read_text().replace(";PCK_POWER_W;", ";PKG_POWER_W;"), name="jobs.csv")
    with pytest.raises(InputError, match="no column GPU3_POWER_W: is it 'GPU3_POWER'"):
        read_ear(JOBS.read_text().replace(";GPU3_POWER_W;", ";GPU3_POWER;"))
    with pytest.raises(InputError, match="JOB_START_TIME"):
        read_ear(table(ROW).replace("JOB_START_TIME", "JOB_STARTED_TIME"))


def test_file_that_is_not_an_ear_table_is_refused(tmp_path: Path) -> None:
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


def test_truncated_row_is_reported_and_others_are_read() -> None:
    external_readings = read_ear(JOBS.read_text()[:-300], name="jobs.csv")
    assert [external_reading.job for external_reading in external_readings] == ["23596396", "23596400", "23596447"]
    assert any("jobs.csv, line 5: the row is truncated" in problem for problem in external_readings.problems)


def test_non_numeric_cell_skips_only_its_row() -> None:
    external_readings = read_ear(table(ROW, ROW.replace("7;0", "8;0").replace("500.0", "1.500,0"), "9;0" + ROW[3:]))
    assert [external_reading.job for external_reading in external_readings] == ["7", "9"]
    assert "line 3: DC_NODE_POWER_W is '1.500,0', which is no number" in external_readings.problems[0]


@pytest.mark.parametrize(
    ("watts", "message"),
    [
        ("0", "DC_NODE_POWER_W is 0 W, and nothing that runs takes none: not measured"),
        ("-500", "DC_NODE_POWER_W is -500 W, and no power is negative"),
        ("500000", "more than the hardware can take (20,000 W): it would be 500 W if it is in mW"),
    ],
)
def test_impossible_power_is_not_measured(watts: str, message: str) -> None:
    external_readings = read_ear(table(ROW.replace("500.0", watts)))
    assert joules(external_readings[0], "node") is None and joules(external_readings[0], "package") == 30_000
    (problem,) = external_readings.problems
    assert message in problem and "line 2" in problem


def test_duplicate_rows_count_once() -> None:
    external_readings = read_ear(table(ROW, ROW))
    assert of_node(external_readings) == 50_000
    assert external_readings.problems == ["eacct, line 3: the same row as in line 2 (job 7): it counts once"]


def test_overlapping_steps_and_tasks_count_each_moment_once() -> None:
    step = "7;1;n1;1020;1060;40.0;700.0;20.0;300.0"
    later = "7;2;n1;1200;1210;10.0;300.0;20.0;200.0"
    external_readings = read_ear(table(ROW, step, later))
    assert of_node(external_readings) == 50_000 + 3000
    half_out = "7;1;n1;1080;1120;40.0;700.0;20.0;300.0"
    external_readings = read_ear(table(ROW, half_out))
    assert of_node(external_readings) == 50_000 + 20 * 700, "the 20 s that the longer row lacks"
    assert [(external_reading.started, external_reading.ended) for external_reading in external_readings] == [
        (1000, 1100),
        (1100, 1120),
    ]


def test_any_overlapping_rows_count_each_moment_once() -> None:
    chance = random.Random(0)
    for _ in range(200):
        spans = [(start, start + chance.randrange(3, 40)) for start in chance.sample(range(1000, 1100), 6)]
        rows = [f"7;{n};n1;{start};{end};{end - start};100;0;50" for n, (start, end) in enumerate(spans)]
        external_readings = read_ear(table(*rows))
        assert all(first.ended <= second.started for first, second in pairwise(external_readings))
        seconds = len({second for start, end in spans for second in range(start, end)})
        assert seconds <= of_node(external_readings) / 100 <= seconds + len(spans), (
            "a start within a second of an end is later"
        )


def test_whole_second_timestamps_do_not_shorten_the_next_step() -> None:
    first, second = "7;0;n1;1000;1010;10.9;500;20;300", "7;1;n1;1010;1015;5.0;400;20;300"
    assert of_node(read_ear(table(first, second))) == pytest.approx(10.9 * 500 + 5 * 400)


def test_contradicting_tasks_are_reported() -> None:
    header = HEADER.replace("STEPID", "STEPID;APPID")
    rows = ["7;0;1;n1;1000;1100;100;500;20;300", "7;0;2;n1;1000;1100;99.5;600;20;300"]
    external_readings = read_ear("\n".join((header, *rows)))
    assert of_node(external_readings) == 50_000
    assert any(
        "two tasks of job 7 read 500 W and 600 W of n1 at the same time" in text for text in external_readings.problems
    )


def test_mean_power_above_the_maximum_is_rejected_as_a_sum() -> None:
    external_readings = read_ear(table(ROW + ";300", more=";NODEMGR_MAX_DC_POWER_W"))
    assert joules(external_readings[0], "node") is None
    assert "as if powers of several tasks were added" in external_readings.problems[0]


def test_ear_daemon_measures_jobs_without_the_ear_library() -> None:
    more = ";NODEMGR_DC_NODE_POWER_W;NODEMGR_PCK_POWER_W;NODEMGR_DRAM_POWER_W;NODEMGR_TIME_SEC"
    (external_reading,) = read_ear(table("7;0;n1;1000;1100;100;0;0;0;400;250;30;98", more=more))
    assert (
        joules(external_reading, "node") == 400 * 98
        and joules(external_reading, "package") == 250 * 98
        and joules(external_reading, "dram") == 30 * 98
    )
    assert {reading.plugin for reading in external_reading.readings} == {"EAR daemon"}


def test_boards_are_read_separately_and_absent_boards_are_skipped() -> None:
    (external_reading,) = read_ear(table(ROW + ";100;0;90000", more=";GPU0_POWER_W;GPU1_POWER_W;GPU2_POWER_W"))
    assert joules(external_reading, "board", "gpu0") == 10_000 and joules(external_reading, "board", "gpu2") is None
    assert [r.part for r in external_reading.readings if r.component == "board"] == ["gpu0", "gpu2"]


def test_clock_jump_is_reported() -> None:
    external_readings = read_ear(table(ROW.replace("1100", "900"), ROW.replace("7;0", "8;0").replace("1100", "4700")))
    assert [external_reading.job for external_reading in external_readings] == ["8"] and external_readings[
        0
    ].ended == 1100, "TIME_SEC is from a monotonic clock"
    assert "job 7 ends 100 s before it starts: its energy is not counted" in external_readings.problems[0]
    assert "job 8 lasted 3,700 s by its clock and 100 s by TIME_SEC, which counts" in external_readings.problems[1]


def test_unit_of_stated_energy_is_derived_from_power_and_time() -> None:
    rows = [f"7;0;{node};1000;4660;3660;381.51;20;300;" for node in ("n1", "n2")]
    for stated, column in (("2792619", "ENERGY"), ("2792619", "DC_ENERGY_J"), ("0.776", "ENERGY_KWH")):
        external_readings = read_ear(table(*(row + stated for row in rows), more=f";{column}"))
        assert external_readings.problems == [] and of_node(external_readings) == pytest.approx(2_792_653.2)
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


def test_loop_row_covers_the_time_since_the_previous_row() -> None:
    external_readings = read_ear(LOOPS)
    assert [(external_reading.started, external_reading.ended) for external_reading in external_readings] == [
        (999.5, 1000),
        (1000, 1010),
        (1010, 1020),
    ]
    assert of_node(external_readings) == 0.5 * 400 + 10 * 500 + 10 * 600
    back = read_ear(LOOPS + LOOPS.splitlines()[1].replace(";1000", ";1005") + "\n")
    assert "line 5: the clock of n1 goes back from 1020 to 1005" in back.problems[0]
    with pytest.raises(InputError, match="file of loops without the column TIMESTAMP"):
        read_ear(LOOPS.replace("TIMESTAMP", "ITERATIONS"))
