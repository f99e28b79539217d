"""Joules to grams of CO2: energy × PUE × carbon intensity."""

from __future__ import annotations

JOULES_PER_KWH = 3_600_000


def carbon_grams(joules: float, *, pue: float, grams_per_kwh: float) -> float:
    """Return grams of CO2 equivalent of what the computers used, with the overhead of their building.

    PUE is the building's energy over that of computing: Patterson et al. 2021, section 2. Location-based is what the
    grid emitted on average, market-based what the contract for the electricity says (GHG Protocol, scope 2): it depends
    on whose `grams_per_kwh` are given.
    """
    return joules / JOULES_PER_KWH * pue * grams_per_kwh
