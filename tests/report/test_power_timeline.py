"""The timeline of a run: each joule is drawn once, pauses are cut, and points and bars are thinned."""

from __future__ import annotations

import re
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.energy.run_energy_report_reader import NodePowerPeriod
from pipeline.report.charts import MAXIMUM_POINTS
from pipeline.report.power_timeline import LABEL_WIDTH, LEFT, RIGHT, WIDTH, Axis, Panel, build_panels
from tests.report.example import HOSTILE, Run
from tests.report.test_page import made, outline


def moment(started: float, ended: float, node: str = "a", **watts: float) -> NodePowerPeriod:
    return NodePowerPeriod(node=node, started=started, ended=ended, watts=watts)


def joules(results: list[Panel]) -> float:
    return sum(
        sum((watts or {}).values()) * (end - start)
        for panel in results
        for (start, end), watts in zip(panel.bins, panel.watts, strict=True)
    )


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.5, 20), st.floats(0, 900)), min_size=1, max_size=900))
def test_all_joules_are_drawn_once_in_few_points(parts: list[tuple[float, float, float]]) -> None:
    moments, time, truth = [], 1.77e9, 0.0
    for pause, seconds, watts in parts:
        moments.append(moment(time + pause, time + pause + seconds, package=watts, rest=10.0))
        time += pause + seconds
        truth += (watts + 10.0) * (moments[-1].ended - moments[-1].started)
    panels = build_panels(moments, Axis((m.started, m.ended) for m in moments))
    assert joules(panels) == pytest.approx(truth, rel=1e-6)
    assert len(panels[0].bins) <= MAXIMUM_POINTS + 1


def test_thinned_timeline_of_many_nodes_keeps_the_joules() -> None:
    random = Random(7)
    moments, truth = [], 0.0
    for node in range(6):
        time = 1.77e9 + 100 * node
        for _ in range(400):
            seconds, watts = random.uniform(1, 30), random.uniform(100, 900)
            moments.append(moment(time, time + seconds, f"n{node}", package=watts))
            truth += watts * (moments[-1].ended - moments[-1].started)
            time += seconds
    (result,) = build_panels(moments, Axis((m.started, m.ended) for m in moments))
    assert len(result.bins) <= MAXIMUM_POINTS and joules([result]) == pytest.approx(truth, rel=1e-9)


def test_nodes_have_separate_panels_and_many_nodes_a_joint_one() -> None:
    two = [moment(0, 10, "a", package=100.0), moment(0, 10, "b", package=50.0, board=700.0)]
    assert [(panel.name, panel.peak) for panel in build_panels(two, Axis([(0, 10)]))] == [("a", 100.0), ("b", 750.0)]
    many = [moment(0, 10, f"n{number}", package=100.0) for number in range(5)]
    (together,) = build_panels(many, Axis([(0, 10)]))
    assert (together.name, together.peak) == ("all 5 nodes", 500.0)


def test_unmeasured_time_is_not_zero() -> None:
    (panel,) = build_panels([moment(0, 10, package=5.0), moment(20, 30, package=7.0)], Axis([(0, 30)]))
    assert panel.watts == [{"package": 5.0}, None, {"package": 7.0}]


def test_long_pause_is_cut_from_the_axis() -> None:
    axis = Axis([(0, 3600), (90_000, 93_600)])
    width = WIDTH - LEFT - RIGHT - axis.cut
    assert axis.map_time(0) == LEFT and axis.map_time(3600) == pytest.approx(LEFT + width / 2)
    assert axis.map_time(40_000) == axis.map_time(3600) and axis.map_time(93_600) == pytest.approx(WIDTH - RIGHT)
    assert len(Axis([(0, 3600), (3700, 7200)]).pieces) == 1, "a short one is drawn"


@pytest.mark.parametrize("hours", [0.01, 0.5, 3, 30, 900])
def test_ticks_are_clock_times_without_overlap(hours: float) -> None:
    axis = Axis([(1.7723e9, 1.7723e9 + 3600 * hours)])
    result = axis.ticks()
    assert 1 <= len(result) <= 9
    assert all(after - before >= LABEL_WIDTH for (before, _), (after, _) in pairwise(result))
    assert re.fullmatch(r"\d\d-\d\d \d\d:\d\d(:\d\d)?", result[0][1])


def test_clock_after_a_pause_has_its_date() -> None:
    axis = Axis([(1772323200.0, 1772330400.0), (1772409700.0, 1772410000.0)])  # two hours, and five minutes a day later
    assert [text for _, text in axis.ticks()] == ["03-01 00:00", "00:30", "01:00", "01:30", "03-02 00:01"]


def test_page_draws_nodes_and_steps_including_lost_ones(run_folder: Run) -> None:
    page = made(run_folder)["page"]
    text = page.read_text(encoding="utf-8")
    drawn = text[text.index('<svg class="chart timeline"') : text.index("Power above, 89 % measured")]
    # on node1 the package, on node2 package, rest and boards; node1 has a rest too
    assert drawn.count('<path class="area ') == 5
    assert "corpus.filter, lost: 2026-03-01 04:30:00 to 2026-03-01 04:50:30 UTC" in drawn
    assert "pretrain.segment, finished: 2026-03-01 07:00:00 to 2026-03-01 07:20:30 UTC" in drawn
    assert drawn.count('<rect class="gone"') == 2 and "lost attempt (low bar)" in text
    # 1,000,000 J in 1,230 s, a tenth more alternately
    assert "peak power of a node: 894 W" in drawn


def test_hostile_step_names_are_escaped_and_bars_are_few(run_folder: Run) -> None:
    for number in range(450):
        stamp = f"2026-03-01T{10 + number // 50:02d}:{number % 50:02d}:00.000+00:00"
        run_folder.record(HOSTILE, {"unit": str(number)}, 9, started=stamp, ended=stamp[:17] + "20.000+00:00")
    page = made(run_folder)["page"]
    text = page.read_text(encoding="utf-8")
    drawn = text[text.index('<svg class="chart timeline"') : text.index("Power above, 89 % measured")]
    assert "<script" not in drawn and drawn.count("<rect") < 100
    outline(page)
