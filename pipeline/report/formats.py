"""Numbers, sizes and times as a person reads them; links that are safe to follow."""

from __future__ import annotations

import math
import re

JOULES_PER_KWH = 3_600_000
NOT_STATED = "not stated"
_HTTP = re.compile(r"https?://[^\s<>\"'`|\\\[\]()]+", re.ASCII)


def number(value: float | None, digits: int = 4) -> str:
    """Return an integer with thousands separators, or a float rounded to `digits` significant digits."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if -4 <= magnitude < 15:
        return f"{value:,.{max(digits - 1 - magnitude, 0)}f}"
    return f"{value:.{digits - 1}e}"


def percent(part: float, whole: float) -> str:
    """Return the share in per cent with two decimals, or a dash where the whole is nothing."""
    return f"{100 * part / whole:.2f} %" if whole else "–"


def size(value: float | None) -> str:
    """Return a number of bytes in decimal units with three significant digits."""
    if value is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000:
            return f"{int(value)} B" if unit == "B" else f"{number(float(value), 3)} {unit}"
        value = value / 1000
    return f"{number(float(value), 3)} PB"


def duration(seconds: float | None) -> str:
    """Return a stretch of time in its two largest units."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min"


def kwh(joules: float | None) -> str:
    """Return an energy in kilowatt-hours; small ones in watt-hours."""
    if joules is None:
        return "not measured"
    hours = joules / JOULES_PER_KWH
    return f"{number(hours * 1000, 3)} Wh" if 0 < hours < 0.1 else f"{number(hours, 3)} kWh"


def mass(grams: float | None) -> str:
    """Return a mass of carbon dioxide equivalent in g, kg or t."""
    if grams is None:
        return "not computed"
    for unit, factor in (("t", 1e6), ("kg", 1e3)):
        if grams >= factor:
            return f"{number(grams / factor, 3)} {unit}"
    return f"{number(float(grams), 3)} g"


def safe_url(text: object) -> str | None:
    """Return the text where it is a plain http(s) address, else None: nothing else becomes a link."""
    return text if isinstance(text, str) and _HTTP.fullmatch(text) else None
