"""What a number that is varied does to speed, memory and energy: a chart of each, a line for each other combination."""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import fmean

from markupsafe import Markup

from pipeline.experiment.settings import Values
from pipeline.report.charts import STYLES, Series, lines
from pipeline.report.read import Json

# By the key of a cell: the title of the chart, its unit, and what the figure is multiplied by.
FIGURES = {
    "tokens_per_second_per_device": ("Speed", "tokens per second of a device", 1.0),
    "model_flops_utilization": ("Model FLOPs utilisation (MFU)", "%", 100.0),
    "memory_bytes": ("Memory of the fullest process", "GB", 1e-9),
    "step_joules": ("Electricity of a step", "J per step", 1.0),
}


def named(values: Values) -> str:
    """Return a combination in words: the last word of each key with its value."""
    told = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in told.items())


def figures(cells: list[Json], told: Callable[[str], str]) -> list[Markup]:
    """Return the charts over the first key that has numbers, of the finished cells; none where there is no such key.

    A chart has as many lines as the style sheet tells apart; what no cell knows has none.
    """
    key = _axis(cells)
    if key is None:
        return []
    charts = []
    for figure, (title, unit, factor) in FIGURES.items():
        drawn = _lines(cells, key, figure, factor)
        for start in range(0, len(drawn), STYLES):
            some = drawn[start : start + STYLES]
            charts.append(lines(told(title), key.rpartition(".")[2], told(unit), some, from_zero=True, told=told))
    return charts


def _axis(cells: list[Json]) -> str | None:
    """Return the first key of which all values are numbers, two of them or more."""
    for key in cells[0]["values"] if cells else ():
        found = {cell["values"][key] for cell in cells if isinstance(cell["values"][key], int | float)}
        if len(found) > 1 and all(type(cell["values"][key]) in (int, float) for cell in cells):
            return str(key)
    return None


def _lines(cells: list[Json], key: str, figure: str, factor: float) -> list[Series]:
    """Return a line for each combination of the other keys: the mean of its seeds, and their band."""
    found: dict[str, dict[float, list[float]]] = {}
    for cell in cells:
        if cell["outcome"] == "finished" and cell[figure] is not None:
            others = {name: value for name, value in cell["values"].items() if name != key}
            points = found.setdefault(named(others), {})
            points.setdefault(cell["values"][key], []).append(factor * cell[figure])
    return [
        Series(
            name,
            [(x, fmean(values)) for x, values in sorted(points.items())],
            [(x, min(values), max(values)) for x, values in sorted(points.items())]
            if any(len(values) > 1 for values in points.values())
            else [],
        )
        for name, points in found.items()
    ]
