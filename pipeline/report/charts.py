"""Charts as inline SVG: no script, no font and no colour of their own, so that the page's style sheet decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle

from markupsafe import Markup, escape

from pipeline.core.markup import number

WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 68, 14, 10, 44
LETTER = 8.5  # as wide is a digit of a tick, and as much is left for half the last one at the right
BESIDE = 36  # the name of the axis, turned, and the space around it
STYLES = 6  # lines that the style sheet tells apart by colour and dashes
POINTS = 400  # a line of more points is averaged down to this many: the screen shows no more


@dataclass(frozen=True)
class Series:
    """One line of a chart: its name in the legend, its points (x, y), and a band around it as (x, low, high)."""

    name: str
    points: list[tuple[float, float]]
    band: list[tuple[float, float, float]] = field(default_factory=list)


def thinned(points: list[tuple[float, float]], limit: int = POINTS) -> list[tuple[float, float]]:
    """Return at most `limit` points, each the mean of as many neighbours; the last point stays as it is."""
    if len(points) <= limit:
        return points
    stride = math.ceil((len(points) - 1) / (limit - 1))
    groups = [points[start : min(start + stride, len(points) - 1)] for start in range(0, len(points) - 1, stride)]
    means = [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]
    return [*means, points[-1]]


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return round numbers from `low` to `high`, about `wanted` of them."""
    if high <= low:
        return [low]
    raw = (high - low) / wanted
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * factor for factor in (1, 2, 2.5, 5, 10) if base * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_texts(values: list[float]) -> list[str]:
    """Return the ticks with thousands separators and as few decimals as tell them apart exactly."""
    decimals = next((n for n in range(12) if all(round(value, n) == round(value, 12) for value in values)), 12)
    return [f"{value:,.{decimals}f}" for value in values]


def lines(
    title: str,
    x_label: str,
    y_label: str,
    series: list[Series],
    *,
    from_zero: bool = False,
    told: Callable[[str], str] = str,
) -> Markup:
    """Return a line chart of the finite points of the series, or a sentence where there are none."""
    drawn = [
        Series(line.name, thinned([point for point in line.points if all(map(math.isfinite, point))]), line.band)
        for line in series
    ]
    drawn = [line for line in drawn if line.points]
    if not drawn:
        return Markup('<p class="none">{}: {}.</p>').format(title, told("no values recorded"))
    xs = [x for line in drawn for x, _ in line.points]
    ys = [y for line in drawn for _, y in line.points] + [y for line in drawn for _, *ends in line.band for y in ends]
    x_low, x_high = min(xs), max(xs)
    y_low, y_high = (0.0 if from_zero else min(ys)), max(ys)
    margin = (y_high - y_low) * 0.05 or abs(y_high) * 0.05 or 1.0
    y_low, y_high = (y_low if from_zero else y_low - margin), y_high + margin
    y_ticks, x_ticks = ticks(y_low, y_high), ticks(x_low, x_high, 6) if x_high > x_low else [x_low]
    x_high = x_high if x_high > x_low else x_low + 1
    y_texts, x_texts = tick_texts(y_ticks), tick_texts(x_ticks)
    left = max(LEFT, BESIDE + LETTER * max(map(len, y_texts), default=0))
    right = max(RIGHT, LETTER * len(x_texts[-1]) / 2 if x_texts else 0)
    room = (WIDTH - left - right) / (LETTER * (max(map(len, x_texts), default=0) + 1))
    every = math.ceil(len(x_texts) / max(room, 1))

    def place(x: float, y: float) -> tuple[str, str]:
        across = left + (x - x_low) / (x_high - x_low) * (WIDTH - left - right)
        down = HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f}", f"{down:.1f}"

    summary = "; ".join(
        f"{line.name}: {told('first')} {number(line.points[0][1])}, {told('last')} {number(line.points[-1][1])}"
        for line in drawn
    )
    parts = [
        Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            WIDTH, HEIGHT, f"{title}. {summary}"
        ),
        Markup("<title>{}</title>").format(f"{title}. {summary}"),
    ]
    for value, text in zip(y_ticks, y_texts, strict=True):
        _, y = place(x_low, value)
        parts.append(Markup('<path class="grid" d="M{:.1f} {}H{:.1f}"/>').format(left, y, WIDTH - right))
        parts.append(
            Markup('<text x="{}" y="{}" dy="4" text-anchor="end">{}</text>').format(f"{left - 8:.1f}", y, text)
        )
    for value, text in [*zip(x_ticks, x_texts, strict=True)][::every]:
        x, _ = place(value, y_low)
        parts.append(Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(x, HEIGHT - 24, text))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
            f"{(WIDTH + left) / 2:.1f}", HEIGHT - 6, x_label
        )
    )
    parts.append(
        Markup('<text transform="translate(14 {}) rotate(-90)" text-anchor="middle">{}</text>').format(middle, y_label)
    )
    for index, line in zip(cycle(range(1, STYLES + 1)), drawn, strict=False):
        if len(line.band) > 1:
            edge = [place(x, low) for x, low, _ in line.band] + [place(x, high) for x, _, high in reversed(line.band)]
            area = "M" + "L".join(f"{x} {y}" for x, y in edge) + "Z"
            parts.append(Markup('<path class="band series-{}" d="{}"/>').format(index, area))
        placed = [place(*point) for point in line.points]
        path = "M" + "L".join(f"{x} {y}" for x, y in placed)
        parts.append(Markup('<path class="line series-{}" d="{}"/>').format(index, path))
        if len(placed) <= 20:
            parts += [
                Markup('<circle class="series-{}" cx="{}" cy="{}" r="3.5"/>').format(index, x, y) for x, y in placed
            ]
    parts.append(Markup("</svg>"))
    legend = Markup(" ").join(
        Markup('<span class="key"><i class="series-{}"></i>{}</span>').format(index, line.name)
        for index, line in zip(cycle(range(1, STYLES + 1)), drawn, strict=False)
    )
    caption = Markup("<figcaption>{} {}</figcaption>").format(title, legend if len(drawn) > 1 else "")
    scroll = Markup('<div class="scroll" role="region" tabindex="0" aria-label="{}">{}</div>')
    return Markup("<figure>{}{}</figure>").format(scroll.format(title, Markup("").join(parts)), caption)


def bar(parts: list[tuple[str, str, float]], whole: float, told: Callable[[str], str] = str) -> Markup:
    """Return a horizontal bar of segments (class, name, value) out of `whole`; its title tells the values.

    `told` says a word in the language of the page.
    """
    title = "; ".join(f"{name}: {value:,.0f} {told('of')} {whole:,.0f}" for _, name, value in parts)
    start, segments = 0.0, []
    for kind, _, value in parts:
        width = 100 * value / whole if whole else 0.0
        segments.append(f'<rect class="{escape(kind)}" x="{start:.2f}" width="{width:.2f}" height="10"/>')
        start += width
    return Markup(
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{title}">'
        "<title>{title}</title>{segments}</svg>"
    ).format(title=title, segments=Markup("".join(segments)))
