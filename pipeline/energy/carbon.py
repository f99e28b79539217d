"""Joules to kilowatt-hours to grams of CO2: energy × PUE × carbon intensity."""

from __future__ import annotations

from typing import TypedDict

from pipeline.energy.settings import Energy

JOULES_PER_KWH = 3.6e6


class Footprint(TypedDict):
    """Energy and emissions of some computing, with the figures and sources behind them."""

    energy_joules: float
    energy_kwh: float
    pue: float
    pue_source: str
    facility_kwh: float
    carbon_intensity_grams_per_kwh: float
    carbon_intensity_source: str
    location_based_grams: float
    market_based_grams: float | None


def kilowatt_hours(energy_joules: float) -> float:
    """Joules as kilowatt-hours."""
    return energy_joules / JOULES_PER_KWH


def carbon_grams(energy_kwh: float, pue: float, grams_per_kwh: float) -> float:
    """Grams of CO2 equivalent of `energy_kwh` used by the computers, with the building's overhead `pue`."""
    return energy_kwh * pue * grams_per_kwh


def footprint(energy_joules: float, settings: Energy) -> Footprint:
    """Energy and emissions of `energy_joules`.

    Location-based is what the grid emitted on average, market-based what the contract for the electricity says
    (GHG Protocol, scope 2); the second is None where no contract is stated.
    """
    energy_kwh = kilowatt_hours(energy_joules)
    market = settings.market_based_grams_per_kwh
    return Footprint(
        energy_joules=energy_joules,
        energy_kwh=energy_kwh,
        pue=settings.pue,
        pue_source=settings.pue_source,
        facility_kwh=energy_kwh * settings.pue,
        carbon_intensity_grams_per_kwh=settings.carbon_intensity_grams_per_kwh,
        carbon_intensity_source=settings.carbon_intensity_source,
        location_based_grams=carbon_grams(energy_kwh, settings.pue, settings.carbon_intensity_grams_per_kwh),
        market_based_grams=None if market is None else carbon_grams(energy_kwh, settings.pue, market),
    )
