"""Charts of a data set as inline SVG without scripts, fonts or colors: the style sheet of the page sets them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

WIDTH, HEIGHT = 400, 190
LEFT, RIGHT, TOP, BOTTOM = 56, 18, 8, 38


def _axis_ticks(high: float) -> list[float]:
    """Return about four round numbers from 0 to at most `high`, which is above 0."""
    raw = high / 4
    base = 10.0 ** math.floor(math.log10(raw))
    step = max(1.0, next(base * factor for factor in (1, 2, 5, 10) if base * factor >= raw * 0.999))
    return [step * number for number in range(int(high / step) + 1)]


def histogram(
    title: str,
    x_label: str,
    bars: list[tuple[int, int]],
    ticks: Sequence[tuple[float, str]],
    *,
    logarithmic: bool = False,
) -> Markup:
    """Return a histogram with its title as caption.

    Args:
        bars: pairs of bin number and documents, for consecutive bins.
        ticks: pairs of position on the axis and label; those outside the bars are skipped.
        logarithmic: whether heights are logarithmic, so that small bins are visible.
    """
    start, end, most = bars[0][0], bars[-1][0] + 1, max(number for _, number in bars)
    scale = math.log10(most) + 0.5 if logarithmic else most * 1.05

    def across(place: float) -> float:
        return LEFT + (place - start) / (end - start) * (WIDTH - LEFT - RIGHT)

    def down(number: float) -> float:
        height = math.log10(number) + 0.5 if logarithmic else number
        return HEIGHT - BOTTOM - min(height / scale, 1.0) * (HEIGHT - TOP - BOTTOM)

    total = sum(number for _, number in bars)
    summary = f"{title}: {total:,} documents, at most {most:,} in one bar"
    drawn = Markup('<svg class="chart" viewBox="0 0 {0} {1}" role="img" aria-label="{2}"><title>{2}</title>')
    drawn = drawn.format(WIDTH, HEIGHT, summary)
    numbers = [10.0**power for power in range(int(math.log10(most)) + 1)] if logarithmic else _axis_ticks(most)
    grid = Markup('<path class="grid" d="M{} {:.1f}H{}"/><text x="{}" y="{:.1f}" dy="4" text-anchor="end">{}</text>')
    for number in numbers:
        y = down(number)
        drawn += grid.format(LEFT, y, WIDTH - RIGHT, LEFT - 6, y, f"{number:,.0f}")
    bar = Markup('<rect class="kept" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>')
    for place, number in bars:
        if number:
            left, top = across(place), down(number)
            width = max(across(place + 1) - left - 1, 0.5)
            drawn += bar.format(left, top, width, HEIGHT - BOTTOM - top, f"{number:,} documents")
    text = Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>')
    for at, label in ticks:
        if start <= at <= end:
            drawn += text.format(f"{across(at):.1f}", HEIGHT - 22, label)
    drawn += text.format((WIDTH + LEFT - RIGHT) / 2, HEIGHT - 5, x_label) + Markup("</svg>")
    return Markup("<figure><figcaption>{}</figcaption>{}</figure>").format(title, drawn)


def length_histogram(language: str, bins: list[list[int]], per_doubling: int) -> Markup:
    """Return a histogram of document lengths; `per_doubling` logarithmic bins cover a factor of 2."""
    decades = [(10**power, f"{10**power:,}") for power in range(8)]
    if (bins[-1][0] - bins[0][0]) / per_doubling < 7:  # less than two decades and more: finer labels
        decades = [(factor * size, f"{factor * size:,}") for size, _ in decades for factor in (1, 2, 5)]
    ticks = [(math.log2(value) * per_doubling, label) for value, label in decades]
    return histogram(language, "characters per document", [(place, number) for place, number in bins], ticks)


def language_score_histogram(language: str, bins: list[list[int]], whole: int) -> Markup:
    """Return a histogram of language scores; `whole` bins cover 0 to 1."""
    numbers = {place: number for place, number in bins}
    first = min([*numbers, whole - 10])
    bars = [(place, numbers.get(place, 0)) for place in range(first, whole)]
    step = 2 if whole - first <= 12 else 5
    ticks = [(place, f"{place / whole:.2f}") for place in range(whole, -1, -step)]
    label = "probability of the language (documents: logarithmic)"
    return histogram(language, label, bars, ticks, logarithmic=True)


def _bar(title: str, widths: list[tuple[str, float]]) -> Markup:
    """Return a horizontal bar of segments (class, width in per cent)."""
    start, segments = 0.0, Markup("")
    for kind, width in widths:
        segment = Markup('<rect class="{}" x="{}" width="{}" height="10"/>')
        segments += segment.format(kind, f"{start:.2f}", f"{width:.2f}")
        start += width
    return Markup(
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{0}">'
        "<title>{0}</title>{1}</svg>"
    ).format(title, segments)


def funnel_bar(before: int, removed: int, start: int) -> Markup:
    """Return one step of a funnel as a bar: the remaining and the removed share of `start`."""
    left, removed_share = (100 * value / start if start else 0.0 for value in (before - removed, removed))
    return _bar(f"{removed:,} of {before:,} removed", [("kept", left), ("gone", removed_share)])


def fraction_bar(number: int, whole: int) -> Markup:
    """Return a bar for `number` out of `whole`."""
    return _bar(f"{number:,} of {whole:,}", [("kept", 100 * number / whole if whole else 0.0)])
