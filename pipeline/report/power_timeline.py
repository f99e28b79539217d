"""The run on one axis of time: the power of its nodes and boards, and beneath it which steps were at work.

Inline SVG as in `charts`: no script and no color of its own. Time in which nothing ran is cut out where it is long.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import ceil

from markupsafe import Markup

from pipeline.core.display_text import truncate_text
from pipeline.core.markup import format_number, html_element
from pipeline.energy.attribution.clock_and_name_corrections import merge_spans
from pipeline.energy.run_energy_report_reader import EnergyAccounting, NodePowerPeriod
from pipeline.report.charts import (
    BOX_CHARACTERS,
    MAXIMUM_POINTS,
    draw_legend,
    format_ticks,
    join_points,
    round_ticks,
    wrap_figure,
)
from pipeline.report.energy_accounting import unix_seconds
from pipeline.report.footprint import COMPONENTS
from pipeline.report.run_reader import RunReader, valid_attempts

WIDTH, LEFT, RIGHT, TOP = 1120, 214, 14, 12
PANEL, ROW, SPACE = 150, 20, 26  # heights: of a node's power, of a step, between them
MAXIMUM_PANELS = 4  # of more nodes than this the power is shown together
MAXIMUM_BARS = 400
LABEL_WIDTH = 85  # as wide is a clock time with its date
STACKED_COMPONENTS = ("package", "dram", "rest", "node", "board")  # from below
CUT, CUT_WIDTH = 0.25, 26  # a pause longer than this share of all work is drawn this wide
TICK_SECONDS = (1, 2, 5, 10, 15, 30, *(60 * m for m in (1, 2, 5, 10, 15, 30)), *(3600 * h for h in (1, 2, 3, 6, 12)))
DAY = 86_400.0
Span = tuple[float, float]


@dataclass(frozen=True)
class Bar:
    """A period in which a step ran, and whether its result was lost."""

    step: str
    lost: bool
    started: float
    ended: float


@dataclass(frozen=True)
class Panel:
    """The power of a node, or of all of them: per bin its watts by component, None where nobody looked."""

    name: str
    bins: list[Span]
    watts: list[dict[str, float] | None]

    @property
    def peak(self) -> float:
        """The most power of a bin."""
        return max((sum(watts.values()) for watts in self.watts if watts), default=0.0)


class Axis:
    """Time from left to right, without the long pauses between the spans of work."""

    def __init__(self, spans: Iterable[Span]) -> None:
        work = merge_spans([*spans])
        long = CUT * sum(end - start for start, end in work)
        self.pieces: list[Span] = []
        for start, end in work:
            if self.pieces and start - self.pieces[-1][1] <= long:
                self.pieces[-1] = (self.pieces[-1][0], end)
            else:
                self.pieces.append((start, end))
        cuts = max(len(self.pieces) - 1, 1)
        self.cut = min(CUT_WIDTH, 0.3 * (WIDTH - LEFT - RIGHT) / cuts)
        self.seconds = sum(end - start for start, end in self.pieces)
        self.scale = (WIDTH - LEFT - RIGHT - self.cut * (len(self.pieces) - 1)) / (self.seconds or 1.0)
        self.lefts, left = [], float(LEFT)
        for start, end in self.pieces:
            self.lefts.append(left)
            left += (end - start) * self.scale + self.cut

    def map_time(self, time: float) -> float:
        index = max(bisect_right(self.pieces, (time, float("inf"))) - 1, 0)
        start, end = self.pieces[index]
        return self.lefts[index] + (min(max(time, start), end) - start) * self.scale

    def make_time_bins(self, boundaries: Sequence[float]) -> list[Span]:
        """Return the spans between the boundaries; where they are too many for a screen, as many equal ones."""
        if len(boundaries) <= MAXIMUM_POINTS + 1:
            return [*pairwise(boundaries)]
        spans: list[Span] = []
        free = MAXIMUM_POINTS - len(self.pieces)
        for start, end in self.pieces:
            parts = max(int(free * (end - start) / self.seconds), 1)
            edges = [start + (end - start) * part / parts for part in range(parts + 1)]
            spans += pairwise(edges)
        return spans

    def ticks(self) -> list[tuple[float, str]]:
        """Return about seven places with their clock times, the first of each day with its date."""
        step = next((step for step in TICK_SECONDS if self.seconds / step <= 7), None) or DAY * ceil(
            self.seconds / DAY / 7
        )
        places: list[float] = []
        for number_, (start, end) in enumerate(self.pieces):
            first = ceil(start / step) * step
            times = [first + step * index for index in range(int((end - first) / step) + 1)] if first <= end else []
            if number_:  # where the clock jumps, the time after it comes first
                while places and self.map_time(start) - self.map_time(places[-1]) < LABEL_WIDTH:
                    places.pop()
                times = [start, *times]
            for time in times:
                if not places or self.map_time(time) - self.map_time(places[-1]) >= LABEL_WIDTH:
                    places.append(time)
        labels: list[tuple[float, str]] = []
        day = ""
        for time in places:
            moment = datetime.fromtimestamp(time, UTC)
            clock = f"{moment:%H:%M:%S}" if step < 60 else f"{moment:%H:%M}"
            date = f"{moment:%m-%d}"
            labels.append((self.map_time(time), clock if date == day else f"{date} {clock}"))
            day = date
        return labels


def _average_power(name: str, moments: Sequence[NodePowerPeriod], axis: Axis) -> Panel:
    """Return the mean power of each bin: all joules of the moments are in it, and none twice."""
    edges = sorted({time for moment in moments for time in (moment.started, moment.ended)})
    bins = axis.make_time_bins(edges)
    starts = [start for start, _ in bins]
    joules: list[dict[str, float]] = [{} for _ in bins]
    for moment in moments:
        index = max(bisect_right(starts, moment.started) - 1, 0)
        while index < len(bins) and bins[index][0] < moment.ended:
            start, end = bins[index]
            seconds = min(end, moment.ended) - max(start, moment.started)
            if seconds > 0:
                for component, power in moment.watts.items():
                    joules[index][component] = joules[index].get(component, 0.0) + power * seconds
            index += 1
    watts = [
        {component: amount / (end - start) for component, amount in components.items()} if components else None
        for components, (start, end) in zip(joules, bins, strict=True)
    ]
    return Panel(name, bins, watts)


def build_panels(timeline: Sequence[NodePowerPeriod], axis: Axis) -> list[Panel]:
    """Return the power of each node, or, where they are many, of all of them together."""
    nodes: dict[str, list[NodePowerPeriod]] = {}
    for moment in timeline:
        if moment.ended > moment.started:
            nodes.setdefault(moment.node, []).append(moment)
    if len(nodes) > MAXIMUM_PANELS:
        everything = [moment for moments in nodes.values() for moment in moments]
        return [_average_power(f"all {len(nodes)} nodes", everything, axis)]
    return [_average_power(name, moments, axis) for name, moments in sorted(nodes.items())]


def build_bars(reader: RunReader) -> list[Bar]:
    """Return when the steps were at work, in the order in which they began; what overlaps is one bar."""
    valid = valid_attempts(reader)
    spans: dict[str, dict[bool, list[Span]]] = {}
    for attempt in sorted(reader.attempts, key=lambda attempt: attempt.started):
        span = unix_seconds(attempt.started), unix_seconds(attempt.ended or attempt.last_seen)
        is_lost = f"{attempt.name}.json" not in valid
        spans.setdefault(attempt.step, {}).setdefault(is_lost, []).append(span)
    return [
        Bar(step, lost, start, end)
        for step, fates in spans.items()
        for lost, times in sorted(fates.items())
        for start, end in _merge_spans_to_limit(merge_spans(times), max(MAXIMUM_BARS // len(spans), 1))
    ]


def _merge_spans_to_limit(spans: list[Span], limit: int) -> list[Span]:
    """Return at most so many spans: those with the shortest pauses between them become one."""
    pauses = sorted(following[0] - span[1] for span, following in pairwise(spans))
    if len(spans) <= limit:
        return spans
    shortest = pauses[len(spans) - limit - 1]
    merged = [spans[0]]
    for start, end in spans[1:]:
        if start - merged[-1][1] <= shortest:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def _draw_areas(panel: Panel, components: Sequence[str], axis: Axis, bottom: float, scale: float) -> list[Markup]:
    """Return an area for each component, one on the other; it stops where nobody looked."""
    runs: list[list[int]] = []
    for index, watts in enumerate(panel.watts):
        if watts is None:
            continue
        if runs and runs[-1][-1] == index - 1 and panel.bins[index - 1][1] == panel.bins[index][0]:
            runs[-1].append(index)
        else:
            runs.append([index])
    areas = []
    below = [0.0] * len(panel.bins)
    for number_, component in enumerate(components, start=1):
        above = [base + (watts or {}).get(component, 0.0) for base, watts in zip(below, panel.watts, strict=True)]
        parts = []
        for run in runs:
            edges = [(panel.bins[index], above[index], below[index]) for index in run]
            outline = [(x, y) for span, y, _ in edges for x in span]
            outline += [(x, y) for span, _, y in edges[::-1] for x in span[::-1]]
            parts.append(
                join_points([(f"{axis.map_time(x):.1f}", f"{bottom - y * scale:.1f}") for x, y in outline]) + "Z"
            )
        if above != below:
            areas.append(html_element("path", class_=f"area series-{number_}", d="".join(parts)))
        below = above
    return areas


def _draw_label(x: float, y: float, text: str, anchor: str) -> Markup:
    return html_element("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _draw_grid_line(y: float) -> Markup:
    return html_element("path", class_="grid", d=f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}")


def _draw_panel(panel: Panel, components: Sequence[str], axis: Axis, top: float) -> list[Markup]:
    """Return a panel: its grid, its areas and its name; each has a scale of its own."""
    most = 1.05 * panel.peak
    unit, size = ("kW", 1000.0) if most >= 10_000 else ("W", 1.0)
    scale, bottom = (PANEL - 6) / (most or 1.0), top + PANEL
    values = round_ticks(0.0, most / size, 4)
    parts = []
    for value, text in zip(values, format_ticks(values), strict=True):
        y = bottom - value * size * scale
        parts.append(_draw_grid_line(y))
        parts.append(_draw_label(LEFT - 8, y + 5, f"{text} {unit}", "end"))
    parts += _draw_areas(panel, components, axis, bottom, scale)
    return [*parts, _draw_label(4, top + 14, truncate_text(panel.name, BOX_CHARACTERS), "start")]


def _format_utc_datetime(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"


def _draw_bars(bars: Sequence[Bar], axis: Axis, top: float, gettext: Callable[[str], str]) -> list[Markup]:
    """Return a row per step with its bars, those of lost attempts low."""
    parts = []
    rows = {step: top + ROW * index for index, step in enumerate(dict.fromkeys(bar.step for bar in bars))}
    for step, y in rows.items():
        parts.append(_draw_grid_line(y + ROW - 3))
        parts.append(_draw_label(LEFT - 8, y + 13, truncate_text(step, BOX_CHARACTERS), "end"))
    for bar in bars:
        x, end = axis.map_time(bar.started), axis.map_time(bar.ended)
        fate, to = gettext("lost" if bar.lost else "finished"), gettext("to")
        description = (
            f"{bar.step}, {fate}: {_format_utc_datetime(bar.started)} {to} {_format_utc_datetime(bar.ended)} UTC"
        )
        kind, height = ("gone", 6) if bar.lost else ("kept", 13)
        place = {"x": f"{x:.1f}", "y": f"{rows[bar.step] + 16 - height:.1f}", "width": f"{max(end - x, 1.5):.1f}"}
        parts.append(html_element("rect", html_element("title", description), class_=kind, **place, height=height))
    return parts


def draw_timeline(reader: RunReader, account: EnergyAccounting, gettext: Callable[[str], str] = str) -> Markup:
    """Return the timeline of a run as a figure, or a sentence where no time of any attempt is known.

    `gettext` says a sentence in the language of the page.
    """
    bars = build_bars(reader)
    spans = [(bar.started, bar.ended) for bar in bars]
    spans += [(moment.started, moment.ended) for moment in account.timeline if moment.ended > moment.started]
    if not spans:
        return Markup('<p class="none">{}</p>').format(gettext("Timeline: no attempt was recorded."))
    axis = Axis(spans)
    power = build_panels(account.timeline, axis)
    known = {component for panel in power for watts in panel.watts for component in watts or ()}
    components = [*(name for name in STACKED_COMPONENTS if name in known), *sorted(known - {*STACKED_COMPONENTS})]
    parts, top = [], float(TOP)
    for panel in power:
        parts += _draw_panel(panel, components, axis, top)
        top += PANEL + SPACE
    parts += _draw_bars(bars, axis, top, gettext)
    bottom = top + ROW * len({bar.step for bar in bars})
    for (_, before), (after, _) in pairwise(axis.pieces):
        x = axis.map_time(before) + axis.cut / 2
        times = f"{_format_utc_datetime(before)} {gettext('to')} {_format_utc_datetime(after)}"
        description = f"{gettext('nothing ran from')} {times} UTC"
        parts.append(
            html_element("path", html_element("title", description), class_="cut", d=f"M{x:.1f} {TOP}V{bottom:.1f}")
        )
    parts += [_draw_label(x, bottom + 18, text, "middle") for x, text in axis.ticks()]
    peak = max((panel.peak for panel in power), default=0.0)
    first, last = _format_utc_datetime(axis.pieces[0][0]), _format_utc_datetime(axis.pieces[-1][1])
    description = f"{gettext('Timeline from')} {first} {gettext('to')} {last} UTC; "
    description += (
        f"{gettext('peak power of a node:')} {format_number(float(peak), 3)} W"
        if power
        else gettext("no power was recorded")
    )
    box = f"0 0 {WIDTH} {bottom + 28:.0f}"
    title = html_element("title", description)
    svg = html_element("svg", title, *parts, class_="chart timeline", viewBox=box, role="img", aria_label=description)
    keys = [(f"area series-{index}", gettext(COMPONENTS.get(name, name))) for index, name in enumerate(components, 1)]
    for kind, mark, is_lost in (("kept", "step running", False), ("gone", "lost attempt (low bar)", True)):
        if any(bar.lost is is_lost for bar in bars):
            keys.append((f"area {kind}", gettext(mark)))
    cut = f" {gettext('Dashed line: a time in which nothing ran.')}" if len(axis.pieces) > 1 else ""
    caption = Markup("{}, {}, {}{} {}").format(
        gettext("Power above"),
        gettext(account.total.label),
        gettext("steps below, on one clock (UTC)."),
        cut,
        draw_legend(keys),
    )
    return wrap_figure(gettext("Timeline of power and steps"), svg, caption)
