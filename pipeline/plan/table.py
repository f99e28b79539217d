"""A plan as a table for a person."""

from __future__ import annotations

from typing import Any

from pipeline.core.formatting import aligned, in_blocks
from pipeline.plan.forecast import NO_RUNS
from pipeline.plan.published_laws import SCOPE
from pipeline.plan.run_time import FORMULAS as RUN_TIME

# Suffix of a key: the units from large to small, each with its size in the key's own unit.
UNITS: dict[str, tuple[tuple[str, float], ...]] = {
    "seconds": (("days", 86_400), ("hours", 3600), ("minutes", 60), ("s", 1)),
    "hours": (("h", 1),),
    "bytes": (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)),
    "joules": (("GWh", 3.6e12), ("MWh", 3.6e9), ("kWh", 3.6e6), ("Wh", 3600), ("J", 1)),
    "grams": (("t", 1e6), ("kg", 1e3), ("g", 1)),
    "liters": (("m³", 1000), ("l", 1)),
    "flops": (("FLOP", 1),),
    "euros": (("EUR", 1),),
}


def readable(key: str, value: Any) -> str:
    """Return a value with three significant digits in the unit that the key's name tells."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "no"
    words = key.split("_")
    unit = next((word for word in reversed(words) if word in UNITS), None)
    if unit is not None:
        symbol, size = next((entry for entry in UNITS[unit] if value >= entry[1]), UNITS[unit][-1])
        return f"{_number(value / size)} {symbol}"
    if "share" in words:
        return f"{100 * value:.3g} %"
    return _number(value)


def _label(key: str) -> str:
    """Return the words of a key without its unit, which the value carries."""
    units = ("bytes", "joules", "grams", "liters", "euros")
    words = ["time" if word == "seconds" else word for word in key.split("_") if word not in units]
    return " ".join(words)


def _number(value: float) -> str:
    """Return a number with its thousands separated, a large one with a power of ten."""
    if value >= 1e6:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"


def table(plan: dict[str, Any]) -> str:
    """Return the plan in lines of text: a column for each model and one for all of them, then the assumptions."""
    columns = {**plan["models"], "total": plan["totals"]} if len(plan["models"]) > 1 else plan["models"]
    keys = [key for key in plan["formulas"] if any(key in column for column in columns.values())]
    # Of a time, which the platform may not state figures for.
    parts = {*RUN_TIME, "low_seconds", "high_seconds"} - {"seconds"}
    keys = [key for key in keys if key not in parts or any(column.get(key) is not None for column in columns.values())]
    rows = [["estimated", *columns]]
    rows += [
        [_label(key), *(readable(key, column[key]) if key in column else "" for column in columns.values())]
        for key in keys
    ]
    lines = in_blocks(rows)
    assumed = {**plan["platform"], **plan["energy"]}
    stated = [f"{key} {value:g}" for key, value in assumed.items() if isinstance(value, int | float)]
    missing = [key for key, value in assumed.items() if value is None]
    lines += ["", SCOPE, "", f"platform {plan['platform']['name']}: {', '.join(stated)}"]
    if missing:
        lines.append(f"unknown, so what depends on it is left out: {', '.join(missing)}")
    lines += [f"{cell} fits nowhere and is not run: {reason}" for cell, reason in plan.get("not_run", {}).items()]
    return "\n".join([*lines, "", *forecast_lines(plan.get("forecast"))])


def forecast_lines(forecast: dict[str, Any] | None) -> list[str]:
    """Return the forecast by calibration runs in lines of text: energy and time of each step with 95 % intervals."""
    if forecast is None:
        return [NO_RUNS]
    told = {**forecast["steps"], "whole chain": forecast["chain"]}
    rows = [["forecast, estimated", "energy", "95 % interval", "time of jobs", "95 % interval"]]
    rows += [
        [step, *(cell for key in ("joules", "seconds") for cell in _range(key, values))]
        for step, values in told.items()
        if "refused" not in values
    ]
    lines = aligned(rows) if len(rows) > 1 else ["forecast: none"]
    refused: dict[str, list[str]] = {}
    for step, values in told.items():
        if "refused" in values:
            refused.setdefault(values["refused"], []).append(step)
    lines += [f"{', '.join(steps)}: {reason}" for reason, steps in refused.items()]
    runs = "; ".join(f"{run['folder']} ({run['platform']}; energy {run['known']})" for run in forecast["calibration"])
    return [*lines, "", f"by {runs}", forecast["scope"], *forecast["notes"]]


def _range(key: str, values: dict[str, Any]) -> tuple[str, str]:
    """Return a figure and its interval."""
    low, high = (readable(f"{end}_{key}", values[f"{end}_{key}"]) for end in ("low", "high"))
    return readable(key, values[key]), f"{low} to {high}"
