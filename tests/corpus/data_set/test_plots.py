"""Histogram bars have the heights of their numbers, and labels are at their positions."""

from __future__ import annotations

import re

import pytest

from pipeline.corpus.data_set import plots

FULL = plots.HEIGHT - plots.TOP - plots.BOTTOM
FLOOR = plots.HEIGHT - plots.BOTTOM


def heights(drawn: str) -> list[float]:
    """Return the heights of the bars; each begins at the baseline."""
    result = re.findall(r'<rect class="kept" x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', drawn)
    assert all(float(top) + float(height) == pytest.approx(FLOOR, abs=0.11) for top, height in result)
    return [float(height) for _, height in result]


def labels(drawn: str) -> list[str]:
    """Return the labels below the bars."""
    return re.findall(rf'y="{plots.HEIGHT - 22}" text-anchor="middle">([^<]*)<', drawn)


def test_bar_height_is_proportional_to_its_number() -> None:
    full, half = heights(plots.histogram("nl", "x", [(0, 100), (1, 0), (2, 50)], []))
    assert full == pytest.approx(FULL / 1.05, abs=0.1) and half == pytest.approx(full / 2, abs=0.1)


def test_logarithmic_bar_grows_equally_per_factor_of_ten() -> None:
    one, ten, hundred = heights(plots.histogram("nl", "x", [(0, 1), (1, 10), (2, 0), (3, 100)], [], logarithmic=True))
    assert hundred == pytest.approx(FULL, abs=0.1), "the highest bar fills the chart"
    assert hundred - ten == pytest.approx(ten - one, abs=0.15) and one == pytest.approx((ten - one) / 2, abs=0.15)


@pytest.mark.parametrize(
    ("lowest", "expected"),
    [
        (95, ["1.00", "0.98", "0.96", "0.94", "0.92", "0.90"]),  # ten bars at least
        (88, ["1.00", "0.98", "0.96", "0.94", "0.92", "0.90", "0.88"]),  # twelve of them
        (87, ["1.00", "0.95", "0.90"]),
        (50, ["1.00", "0.95", "0.90", "0.85", "0.80", "0.75", "0.70", "0.65", "0.60", "0.55", "0.50"]),
    ],
)
def test_language_score_histogram_has_readable_labels(lowest: int, expected: list[str]) -> None:
    drawn = plots.language_score_histogram("nl", [[lowest, 3], [99, 5]], 100)
    assert labels(drawn) == expected
    (width, _) = re.findall(r'<rect class="kept".*? width="([\d.]+)"', drawn)
    across = plots.WIDTH - plots.LEFT - plots.RIGHT
    assert float(width) == pytest.approx(across / (100 - min(lowest, 90)) - 1, abs=0.1)


def test_length_histogram_has_finer_labels_for_a_narrow_range() -> None:
    assert labels(plots.length_histogram("nl", [[20, 1], [47, 1]], 4)) == ["50", "100", "200", "500", "1,000", "2,000"]
    assert labels(plots.length_histogram("nl", [[20, 1], [48, 1]], 4)) == ["100", "1,000"]
