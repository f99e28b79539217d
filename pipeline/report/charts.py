"""Draw charts and the DAG of steps as inline SVG: no script, no font and no color, so that the style sheet decides.

In the DAG a step is a box with its number of jobs, and an arrow leads to a step that read what it wrote. Jobs are
counted and not drawn, so that a run of ten thousand jobs has the same drawing as one of ten.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, pairwise

from markupsafe import Markup

from pipeline.core.display_text import truncate_text
from pipeline.core.job_records import Record
from pipeline.core.markup import format_number, html_element

WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 68, 14, 10, 44
TICK_CHARACTER_WIDTH = 8.5  # as wide is a digit of a tick, and as much is left for half the last one at the right
AXIS_NAME_WIDTH = 36  # the name of the axis, turned, and the space around it
LINE_STYLES = 6  # lines with different colors and dashes in the style sheet
MAXIMUM_POINTS = 400  # a line of more points is averaged down to this many: the screen shows no more


@dataclass(frozen=True)
class Series:
    """One line of a chart: its name in the legend, its points (x, y), and a band around it as (x, low, high)."""

    name: str
    points: list[tuple[float, float]]
    band: list[tuple[float, float, float]] = field(default_factory=list)


def thin_points(points: list[tuple[float, float]], limit: int = MAXIMUM_POINTS) -> list[tuple[float, float]]:
    """Return at most `limit` points, each the mean of as many neighbors; the last point stays as it is."""
    if len(points) <= limit:
        return points
    stride = math.ceil((len(points) - 1) / (limit - 1))
    groups = [points[start : min(start + stride, len(points) - 1)] for start in range(0, len(points) - 1, stride)]
    means = [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]
    return [*means, points[-1]]


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers from `low` to `high`, about `wanted` of them."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * factor for factor in (1, 2, 2.5, 5, 10) if base * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def format_ticks(values: list[float]) -> list[str]:
    """Return the ticks with thousands separators and as few decimals as they need to differ."""
    decimals = next((n for n in range(12) if all(round(value, n) == round(value, 12) for value in values)), 12)
    return [f"{value:,.{decimals}f}" for value in values]


def draw_line_chart(
    title: str,
    x_label: str,
    y_label: str,
    series: list[Series],
    *,
    from_zero: bool = False,
    gettext: Callable[[str], str] = str,
    note: str = "",
) -> Markup:
    """Return a line chart of the finite points of the series, or a sentence where there are none.

    `note` is added to the caption.
    """
    lines = [
        Series(line.name, thin_points([point for point in line.points if all(map(math.isfinite, point))]), line.band)
        for line in series
    ]
    lines = [line for line in lines if line.points]
    if not lines:
        return Markup('<p class="none">{}: {}.</p>').format(title, gettext("no values recorded"))
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [y for line in lines for _, *ends in line.band for y in ends]
    x_low, x_high = min(xs), max(xs)
    y_low, y_high = (0.0 if from_zero else min(ys)), max(ys)
    margin = (y_high - y_low) * 0.05 or abs(y_high) * 0.05 or 1.0
    y_low, y_high = (y_low if from_zero else y_low - margin), y_high + margin
    y_ticks, x_ticks = round_ticks(y_low, y_high), round_ticks(x_low, x_high, 6) if x_high > x_low else [x_low]
    x_high = x_high if x_high > x_low else x_low + 1
    y_texts, x_texts = ([gettext(text) for text in format_ticks(ticks)] for ticks in (y_ticks, x_ticks))
    left = max(LEFT, AXIS_NAME_WIDTH + TICK_CHARACTER_WIDTH * max(map(len, y_texts), default=0))
    right = max(RIGHT, TICK_CHARACTER_WIDTH * len(x_texts[-1]) / 2 if x_texts else 0)
    label_capacity = (WIDTH - left - right) / (TICK_CHARACTER_WIDTH * (max(map(len, x_texts), default=0) + 1))
    every = math.ceil(len(x_texts) / max(label_capacity, 1))

    def scale_to_drawing(x: float, y: float) -> tuple[str, str]:
        across = left + (x - x_low) / (x_high - x_low) * (WIDTH - left - right)
        down = HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f}", f"{down:.1f}"

    summary = "; ".join(
        f"{line.name}: {gettext('first')} {gettext(format_number(line.points[0][1]))}, "
        f"{gettext('last')} {gettext(format_number(line.points[-1][1]))}"
        for line in lines
    )
    description = f"{title}. {summary}"
    parts = list[Markup]()
    for value, text in zip(y_ticks, y_texts, strict=True):
        _, y = scale_to_drawing(x_low, value)
        parts.append(html_element("path", class_="grid", d=f"M{left:.1f} {y}H{WIDTH - right:.1f}"))
        parts.append(html_element("text", text, x=f"{left - 8:.1f}", y=y, dy=4, text_anchor="end"))
    for value, text in [*zip(x_ticks, x_texts, strict=True)][::every]:
        x, _ = scale_to_drawing(value, y_low)
        parts.append(html_element("text", text, x=x, y=HEIGHT - 24, text_anchor="middle"))
    parts.append(html_element("text", x_label, x=f"{(WIDTH + left) / 2:.1f}", y=HEIGHT - 6, text_anchor="middle"))
    turned = f"translate(14 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)"
    parts.append(html_element("text", y_label, transform=turned, text_anchor="middle"))
    for index, line in zip(cycle(range(1, LINE_STYLES + 1)), lines, strict=False):
        if len(line.band) > 1:
            edge = [scale_to_drawing(x, low) for x, low, _ in line.band] + [
                scale_to_drawing(x, high) for x, _, high in reversed(line.band)
            ]
            parts.append(html_element("path", class_=f"band series-{index}", d=join_points(edge) + "Z"))
        positions = [scale_to_drawing(*point) for point in line.points]
        parts.append(html_element("path", class_=f"line series-{index}", d=join_points(positions)))
        if len(positions) <= 20:
            parts += [html_element("circle", class_=f"series-{index}", cx=x, cy=y, r="3.5") for x, y in positions]
    svg = html_element(
        "svg", *parts, class_="chart", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=description
    )
    keys = [
        (f"series-{index}", line.name) for index, line in zip(cycle(range(1, LINE_STYLES + 1)), lines, strict=False)
    ]
    legend = draw_legend(keys) if len(lines) > 1 else ""
    small = Markup(" ") + html_element("small", note) if note else ""
    return wrap_figure(title, svg, Markup("{} {}{}").format(title, legend, small))


def join_points(points: Sequence[tuple[str, str]]) -> str:
    """Return the path through some points."""
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def draw_legend(keys: Sequence[tuple[str, str]]) -> Markup:
    """Return the keys of a drawing, each of the class that it is drawn with and its name."""
    return Markup(" ").join(
        html_element("span", html_element("i", "", class_=kind), name, class_="key") for kind, name in keys
    )


def wrap_figure(label: str, svg: Markup, caption: str) -> Markup:
    """Return a drawing that scrolls where the screen is narrow, with its caption below."""
    scroll = html_element("div", svg, class_="scroll", role="region", tabindex=0, aria_label=label)
    return html_element("figure", scroll, html_element("figcaption", caption))


def draw_stacked_bar(parts: list[tuple[str, str, float]], whole: float, gettext: Callable[[str], str] = str) -> Markup:
    """Return a horizontal bar of segments (class, name, value) out of `whole`; its title has the values.

    `gettext` says a word in the language of the page.
    """
    title = "; ".join(
        f"{name}: {gettext(f'{value:,.0f}')} {gettext('of')} {gettext(f'{whole:,.0f}')}" for _, name, value in parts
    )
    start, segments = 0.0, [html_element("title", title)]
    for kind, _, value in parts:
        width = 100 * value / whole if whole else 0.0
        segments.append(html_element("rect", class_=kind, x=f"{start:.2f}", width=f"{width:.2f}", height=10))
        start += width
    box = {"viewBox": "0 0 100 10", "preserveAspectRatio": "none"}
    return html_element("svg", *segments, class_="bar", **box, role="img", aria_label=title)


Edges = Mapping[str, set[str]]  # from each step to those that read what it wrote
BOX_WIDTH, BOX_HEIGHT, BOX_GAP, ROW_GAP = (
    168,
    38,
    16,
    24,
)  # a box's width and height, and the gaps between boxes and rows
PASSING_WIDTH = 4  # half the width of an arrow that passes between boxes
SWEEPS = 4  # how often the rows are put in order, by the rows above and below them
BOX_CHARACTERS = 22  # that fit in a box


def find_step_dependencies(records: Sequence[Record]) -> dict[str, set[str]]:
    """Return which steps read what each step wrote, by the paths in the records; what is implied is left out."""
    writers_of_paths = [(entry.path, record.step) for record in records for entry in record.outputs]
    writers: dict[str, str] = dict(writers_of_paths)
    edges: dict[str, set[str]] = {record.step: set() for record in records}
    for record in records:
        reader: str = record.step
        for entry in record.inputs:
            writer = writers.get(entry.path, reader)
            if writer != reader and reader not in edges[writer] and not _is_reachable(edges, reader, writer):
                edges[writer].add(reader)
    return {
        step: {
            reader
            for reader in readers
            if not any(_is_reachable(edges, other, reader) for other in readers if other != reader)
        }
        for step, readers in edges.items()
    }


def _is_reachable(graph: Edges, start: str, end: str) -> bool:
    """Return whether a way leads from a step to another; a step reaches itself."""
    seen, waiting = set(), [start]
    while waiting:
        step = waiting.pop()
        if step == end:
            return True
        if step not in seen:
            seen.add(step)
            waiting += graph[step]
    return False


def arrange_steps_in_rows(graph: Edges) -> list[list[str]]:
    """Return the steps row by row, each below all that it reads from; an arrow that passes a row has a place in it.

    A place is named `WRITER>READER`, which is no step.
    """
    depth: dict[str, int] = {}

    def step_depth(step: str) -> int:
        if step not in depth:
            depth[step] = max((step_depth(writer) + 1 for writer in graph if step in graph[writer]), default=0)
        return depth[step]

    rows: list[list[str]] = [[] for _ in range(max(map(step_depth, sorted(graph)), default=-1) + 1)]
    for step in graph:
        rows[depth[step]].append(step)
    for writer, readers in graph.items():
        for reader in sorted(readers):
            for row in range(depth[writer] + 1, depth[reader]):
                rows[row].append(f"{writer}>{reader}")
    return _reduce_crossings(rows, graph)


def _edge_paths(graph: Edges, rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return each arrow as the places that it passes, from its writer to its reader."""
    row_places = [{*row} for row in rows]
    return [
        [writer, *(f"{writer}>{reader}" for row in row_places if f"{writer}>{reader}" in row), reader]
        for writer, readers in graph.items()
        for reader in sorted(readers)
    ]


def _reduce_crossings(rows: list[list[str]], graph: Edges) -> list[list[str]]:
    """Return the rows with each place near the mean of those that it is joined to, so that few arrows cross."""
    joined: dict[tuple[int, str], list[tuple[int, str]]] = {}
    row_of = {step: index for index, row in enumerate(rows) for step in row if step in graph}
    for way in _edge_paths(graph, rows):
        placed = [(row_of[way[0]] + index, place) for index, place in enumerate(way)]
        for above, below in pairwise(placed):
            joined.setdefault(above, []).append(below)
            joined.setdefault(below, []).append(above)
    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        order = range(1, len(rows)) if down else range(len(rows) - 2, -1, -1)
        for index in order:
            other = index - 1 if down else index + 1
            at = {name: place for place, name in enumerate(rows[other])}
            width = max(len(rows[other]), 1)

            def mean_neighbor_position(
                name: str, index: int = index, other: int = other, width: int = width, at: Mapping[str, int] = at
            ) -> float:
                near = [(at[place] + 0.5) / width for row, place in joined.get((index, name), []) if row == other]
                return sum(near) / len(near) if near else 0.5

            rows[index].sort(key=mean_neighbor_position)
    return rows


def draw_step_graph(records: Sequence[Record], count_jobs: Callable[[int], str], label: str, caption: str) -> Markup:
    """Return the DAG as a figure, nothing where there is no record; `count_jobs` says a number of jobs in words."""
    graph = find_step_dependencies(records)
    if not graph:
        return Markup("")
    jobs = Counter(record.step for record in records)
    rows = arrange_steps_in_rows(graph)
    widths = [
        sum((BOX_WIDTH if name in graph else 2 * PASSING_WIDTH) + BOX_GAP for name in row) - BOX_GAP for row in rows
    ]
    width, height = max(widths) + 8, len(rows) * (BOX_HEIGHT + ROW_GAP) - ROW_GAP + 8
    middle: dict[tuple[int, str], float] = {}
    top = {step: 4 + index * (BOX_HEIGHT + ROW_GAP) for index, row in enumerate(rows) for step in row if step in graph}
    for index, row in enumerate(rows):
        x = (width - widths[index]) / 2
        for name in row:
            wide = BOX_WIDTH if name in graph else 2 * PASSING_WIDTH
            middle[index, name] = x + wide / 2
            x += wide + BOX_GAP
    parts = []
    for way in _edge_paths(graph, rows):
        first = top[way[0]] // (BOX_HEIGHT + ROW_GAP)
        xs = [middle[first + index, place] for index, place in enumerate(way)]
        path = ""
        for index, (start, end) in enumerate(pairwise(xs)):
            y = top[way[0]] + BOX_HEIGHT + index * (BOX_HEIGHT + ROW_GAP)
            path += (
                f"M{start:.1f} {y}C{start:.1f} {y + ROW_GAP / 2} {end:.1f} {y + ROW_GAP / 2} {end:.1f} {y + ROW_GAP}"
            )
            path += f"V{y + ROW_GAP + BOX_HEIGHT}" if index < len(xs) - 2 else ""
        parts.append(html_element("path", class_="arrow", d=path))
        parts.append(html_element("path", class_="head", d=f"M{xs[-1]:.1f} {top[way[-1]]}l-4 -6h8z"))
    for step, y in top.items():
        x = middle[y // (BOX_HEIGHT + ROW_GAP), step]
        name, count = truncate_text(step, BOX_CHARACTERS), count_jobs(jobs[step])
        parts.append(
            html_element(
                "rect", class_="box", x=f"{x - BOX_WIDTH / 2:.1f}", y=y, width=BOX_WIDTH, height=BOX_HEIGHT, rx=4
            )
        )
        parts.append(html_element("text", name, class_="name", x=f"{x:.1f}", y=y + 16, text_anchor="middle"))
        parts.append(html_element("text", count, x=f"{x:.1f}", y=y + 31, text_anchor="middle"))
    box, description = (
        {"viewBox": f"0 0 {width:.0f} {height}", "width": f"{width:.0f}"},
        _describe_graph(graph, jobs, label),
    )
    return wrap_figure(
        label, html_element("svg", *parts, class_="chart dag", **box, role="img", aria_label=description), caption
    )


def _describe_graph(graph: Edges, jobs: Mapping[str, int], label: str) -> str:
    """Return the drawing as a person hears it: each step, its number of jobs, and who reads what it wrote."""
    descriptions = [
        f"{step} ({jobs[step]:,})" + (f" → {', '.join(sorted(readers))}" if readers else "")
        for step, readers in graph.items()
    ]
    return f"{label}. {'; '.join(descriptions)}"
