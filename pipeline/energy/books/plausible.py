"""What power and energy can be: limits of hardware, and the unit in which a figure would make sense."""

from __future__ import annotations

from pipeline.energy.readings import Reading

NODE_WATTS = 20_000.0  # more than any air- or water-cooled node of eight boards takes (an 8 × B300 system: 14 to 15 kW)
BOARD_WATTS = 3_000.0  # more than any board of today takes (GB300: 1.4 kW)
AGREES = 0.02  # as a share: power × time against an energy that is stated
DIFFERS = 0.05  # as a share: two readings of the same thing

ENERGY_UNITS = {"J": 1.0, "kJ": 1e3, "Wh": 3.6e3, "kWh": 3.6e6, "mJ": 1e-3, "MJ": 1e6}  # in joules
POWER_UNITS = {"W": 1.0, "kW": 1e3, "mW": 1e-3}  # in watts


def figure(number: float) -> str:
    """Return a number with four digits that count, such as 2,793,000 or 0.7757."""
    rounded = float(f"{number:.4g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"


def wrong_watts(watts: float, most: float = NODE_WATTS) -> str | None:
    """Return what is wrong with a power in watts, in words that follow its name; None for a power that can be."""
    if watts < 0:
        return f"is {figure(watts)} W, and no power is negative"
    if watts == 0:
        return "is 0 W, and nothing that runs takes none"
    if watts > most:
        likely = f": it would be {figure(watts / 1e3)} W if it is in mW" if watts / 1e3 <= most else ""
        return f"is {figure(watts)} W, more than the hardware can take ({figure(most)} W){likely}"
    return None


def units_of(said: float, joules: float) -> list[str]:
    """Return the units in which a stated energy agrees with these joules within 2 %."""
    return [unit for unit, factor in ENERGY_UNITS.items() if abs(said * factor - joules) <= AGREES * abs(joules)]


def stated_energy(said: float, unit: str | None, joules: float, of: str) -> str | None:
    """Compare an energy that somebody states with power × time in joules, and return what is wrong with it.

    `unit` is None where no unit is stated; `of` says how the joules came about, such as `381.5 W × 3660 s × 2 nodes`.
    Manuals of EAR call the same figure once joules and once kilowatt-hours, so the unit is never believed.
    """
    fits = units_of(said, joules)
    if unit in fits or (unit is None and "J" in fits):
        return None
    truth = f"{of} = {figure(joules)} J = {figure(joules / ENERGY_UNITS['kWh'])} kWh"
    stated = f"{figure(said)} {unit}" if unit else f"{figure(said)} without a unit"
    if fits:
        return f"the stated energy of {stated} must be in {fits[0]}: {truth}"
    return f"the stated energy of {stated} is wrong in every unit ({', '.join(ENERGY_UNITS)}): {truth}"


def not_measured(component: Reading, problem: str) -> Reading:
    """Return a reading without its joules, and why."""
    return component.model_copy(update={"joules": None, "problem": problem})
