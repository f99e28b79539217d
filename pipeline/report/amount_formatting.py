"""Format times, energies and masses as a person reads them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from pipeline.energy.run_energy_report_reader import NOT_MEASURED, EnergyFigure, EnergyUnit, choose_energy_unit

MASSES = (EnergyUnit("t", 1e6), EnergyUnit("kg", 1e3), EnergyUnit("g", 1.0))
VOLUMES = (EnergyUnit("m³", 1e3), EnergyUnit("liters", 1.0))
MONEY = (EnergyUnit("euros", 1.0),)


def format_period(started: float, ended: float) -> str:
    """Return a stretch between two moments of Unix time, to the minute in UTC."""
    first, last = (f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M}" for moment in (started, ended))
    return f"{first} to {last.removeprefix(first[:11])} UTC"


def format_kwh(joules: float | None) -> str:
    """Return an energy in kilowatt-hours; small ones in watt-hours."""
    if joules is None:
        return NOT_MEASURED
    unit = choose_energy_unit(joules)
    return f"{unit.format(joules)} {unit.name}"


def format_mass(grams: float | None) -> str:
    """Return a mass of carbon dioxide equivalent in g, kg or t."""
    if grams is None:
        return "not computed"
    unit = _choose_unit(grams, MASSES)
    return f"{unit.format(grams)} {unit.name}"


def _choose_unit(amount: float, units: tuple[EnergyUnit, ...]) -> EnergyUnit:
    return next((unit for unit in units if amount >= unit.size), units[-1])


class Amount(NamedTuple):
    """What follows from an energy, such as its carbon, with the interval that the energy gives it."""

    value: float
    low: float
    high: float

    def format_value(self, units: tuple[EnergyUnit, ...]) -> str:
        unit = _choose_unit(self.value, units)
        return f"{unit.format(self.value)} {unit.name}"

    def interval(self, units: tuple[EnergyUnit, ...]) -> str:
        """Return the interval in the amount's unit; nothing where it is narrower than the digits shown."""
        unit = _choose_unit(self.value, units)
        low, high = unit.format(self.low), unit.format(self.high)
        return "" if low == high == unit.format(self.value) else f"{low} to {high}"

    def text(self, units: tuple[EnergyUnit, ...]) -> str:
        """Return the amount with its interval: `3.30 kg (3.06 to 3.54)`."""
        interval = self.interval(units)
        return self.format_value(units) + (f" ({interval})" if interval else "")


def derive_amount_from_energy(figure: EnergyFigure, convert: Callable[[float], float]) -> Amount | None:
    """Return what follows from an energy by a function of its joules; None where the energy is not known."""
    if not figure.is_known:
        return None
    return Amount(convert(figure.joules), convert(figure.low_joules), convert(figure.high_joules))
