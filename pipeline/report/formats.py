"""Times, energies and masses as a person reads them."""

from __future__ import annotations

from pipeline.energy.carbon import JOULES_PER_KWH
from pipeline.ground.markup import number


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
