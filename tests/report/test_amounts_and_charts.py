"""Readable numbers, safe links, and charts that show their values."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.display_text import format_duration
from pipeline.core.markup import escape_markdown, format_bytes, format_number, format_percent, safe_url
from pipeline.report.amount_formatting import format_kwh, format_mass, format_period
from pipeline.report.charts import (
    BOTTOM,
    HEIGHT,
    TOP,
    WIDTH,
    Series,
    draw_line_chart,
    draw_stacked_bar,
    format_ticks,
    round_ticks,
    thin_points,
)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_number(1_234_567), "1,234,567"),
        (format_number(0.00123456), "0.001235"),
        (format_number(1234567.8), "1,234,568"),
        (format_number(None), "–"),
        (format_number(float("nan")), "nan"),
        (format_percent(1, 3), "33.33 %"),
        (format_percent(0, 0), "–"),
        (format_bytes(999), "999 B"),
        (format_bytes(1_500_000), "1.50 MB"),
        (format_duration(59.94), "59.9 s"),
        (format_duration(3_660), "1 h 01 min"),
        (format_kwh(381.51 * 3660 * 2), "0.776 kWh"),
        (format_kwh(None), "not measured"),
        (format_mass(30_000_000.0), "30.0 t"),
        (format_period(1_772_323_200, 1_772_326_800), "2026-03-01 00:00 to 01:00 UTC"),
        (format_period(1_772_323_200, 1_772_409_660), "2026-03-01 00:00 to 2026-03-02 00:01 UTC"),
        (format_mass(None), "not computed"),
    ],
)
def test_numbers_are_formatted(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize("text", ["javascript:alert(1)", "https://a b", 'https://a"onclick=', "//a", None, "data:x"])
def test_only_plain_web_urls_become_links(text: str | None) -> None:
    assert safe_url(text) is None


def test_web_url_becomes_a_link() -> None:
    assert safe_url("https://example.org/a?b=c&d#e") == "https://example.org/a?b=c&d#e"


@given(st.text())
def test_markdown_text_contains_no_tag_cell_or_line_end(text: str) -> None:
    shown = str(escape_markdown(text))
    assert not set("<>\n\r") & set(shown)
    assert all(shown[place - 1] == "\\" for place, letter in enumerate(shown) if letter == "|")


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3000), st.integers(2, 500))
def test_thinning_keeps_the_last_point_and_the_range(values: list[float], limit: int) -> None:
    points = [(float(step), value) for step, value in enumerate(values)]
    kept = thin_points(points, limit)
    assert len(kept) <= max(limit, 2) and kept[-1] == points[-1]
    slack = 1e-6
    assert min(values) - slack <= min(y for _, y in kept) <= max(y for _, y in kept) <= max(values) + slack


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9))
def test_ticks_are_few_and_inside_the_range(low: float, width: float) -> None:
    result = round_ticks(low, low + width)
    assert len(result) <= 7
    assert all(low - width * 1e-3 <= tick <= low + width * 1.001 for tick in result)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (6.29, 6.41, ["6.300", "6.325", "6.350", "6.375", "6.400"]),
        (0, 5000, ["0", "1,000", "2,000", "3,000", "4,000", "5,000"]),
        (3, 3, ["3"]),
    ],
)
def test_tick_labels_are_exact(low: float, high: float, expected: list[str]) -> None:
    assert format_ticks(round_ticks(low, high)) == expected


def test_chart_skips_non_finite_values_and_labels_an_empty_series() -> None:
    chart = draw_line_chart(
        "Loss", "step", "nats", [Series("a", [(1, 2.0), (2, float("nan")), (3, 1.0)]), Series("<b>", [])]
    )
    assert "nan" not in chart and "<b>" not in chart and chart.count("<circle") == 2
    assert "first 2.000, last 1.000" in chart
    assert "no values" in draw_line_chart("Loss", "step", "nats", [Series("a", [])])


def test_band_is_inside_the_chart_and_absent_for_one_point() -> None:
    points = [(1.0, 2.0), (2.0, 3.0)]
    chart = str(draw_line_chart("Score", "tokens", "acc", [Series("a", points, [(1.0, 0.0, 4.0), (2.0, 1.0, 9.0)])]))
    (band,) = re.findall(r'<path class="band series-1" d="M([^"]*)Z"', chart)
    corners = [tuple(map(float, corner.split())) for corner in band.split("L")]
    assert len(corners) == 4 and all(0 < x < WIDTH and TOP <= y <= HEIGHT - BOTTOM for x, y in corners)
    (first, low), (last, low_last), (again, high_last), (back, high) = corners
    assert first == back < last == again and low > high > high_last < low_last < low, "there below, and back above"
    assert "band" not in draw_line_chart("Score", "tokens", "acc", [Series("a", points[:1], [(1.0, 0.0, 4.0)])])


def test_segments_of_a_bar_add_up_to_its_width() -> None:
    drawn = draw_stacked_bar([("kept", "kept", 3), ("gone", "<x>", 1)], 4)
    assert 'x="0.00" width="75.00"' in drawn and 'x="75.00" width="25.00"' in drawn and "<x>" not in drawn


def test_chart_of_one_point_has_one_tick() -> None:
    chart = str(
        draw_line_chart("loss", "tokens", "nats", [Series("a", [(1_228_800, 4.8)]), Series("b", [(1_228_800, 4.9)])])
    )
    assert re.findall(r">1,228,800[^<]*<", chart) == [">1,228,800<"]
