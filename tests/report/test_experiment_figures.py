"""Figures of an experiment are drawn over its numeric factor, with a line for each other combination."""

from __future__ import annotations

import re
from typing import Any

from pipeline.report.experiment_page_content import CHARTED_FIGURES, draw_figure_charts

SIZE, STRATEGY = "training.micro_batch_size", "training.strategy"


def cell(size: Any, strategy: str, speed: float | None, outcome: str = "finished", **known: float) -> dict[str, Any]:
    unknown: dict[str, Any] = dict.fromkeys(CHARTED_FIGURES)
    values = {STRATEGY: strategy, SIZE: size}
    return {**unknown, **known, "values": values, "outcome": outcome, "tokens_per_second_per_device": speed}


def points(chart: str) -> dict[str, list[float]]:
    """Return the first and last value of each line in a chart's label."""
    (label,) = re.findall(r'aria-label="([^"]*: first [^"]*)"', chart)
    result = re.findall(r"([^;.]+): first ([\d.,]+), last ([\d.,]+)", label)
    return {name.strip(): [float(first.replace(",", "")), float(last.replace(",", ""))] for name, first, last in result}


def test_each_strategy_has_a_line_over_the_micro_batch_size() -> None:
    cells = [cell(size, name, speed) for name, speed in (("zero2", 10.0), ("zero3", 7.0)) for size in (16, 4)]
    cells[0]["tokens_per_second_per_device"] = 30.0
    (chart,) = draw_figure_charts(cells, str)
    assert points(chart) == {"strategy zero2": [10, 30], "strategy zero3": [7, 7]}
    assert "micro_batch_size" in chart and "tokens per second of a device" in chart


def test_seeds_are_one_line_and_unfinished_cells_have_no_point() -> None:
    cells = [cell(4, "zero2", speed) for speed in (10.0, 20.0)]
    cells += [cell(8, "zero2", 40.0), cell(16, "zero2", 90.0, outcome="out_of_memory"), cell(24, "zero2", None)]
    (chart,) = draw_figure_charts(cells, str)
    assert points(chart) == {"strategy zero2": [15, 40]}
    (band,) = re.findall(r'class="band[^"]*" (?:points|d)="([^"]*)"', chart)
    places = {tuple(map(float, place)) for place in re.findall(r"([\d.]+)[ ,]([\d.]+)", band)}
    heights = [{y for x, y in places if x == at} for at in sorted({x for x, _ in places})]
    assert [len(some) for some in heights] == [2, 1], "from 10 to 20, and 40 alone"


def test_each_known_figure_has_its_chart_with_a_unit() -> None:
    known = {"model_flops_utilization": 0.41, "memory_bytes": 3e9, "step_joules": 250.0}
    charts = draw_figure_charts([cell(size, "zero2", 10.0, **known) for size in (4, 8)], str)
    assert [points(chart)["strategy zero2"] for chart in charts] == [[10, 10], [41, 41], [3, 3], [250, 250]]


def test_seven_lines_are_split_into_two_charts() -> None:
    charts = draw_figure_charts([cell(size, f"s{number}", 1.0) for number in range(7) for size in (1, 2)], str)
    assert [len(points(chart)) for chart in charts] == [6, 1]


def test_experiment_without_a_numeric_factor_has_no_chart() -> None:
    assert draw_figure_charts([cell(True, "zero2", 1.0), cell(False, "zero2", 2.0)], str) == []
    assert draw_figure_charts([cell("4", "zero2", 1.0), cell(8, "zero2", 2.0)], str) == []
    assert draw_figure_charts([cell(4, "zero2", 1.0)], str) == [] == draw_figure_charts([], str)
